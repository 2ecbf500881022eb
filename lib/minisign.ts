// SPDX-License-Identifier: Apache-2.0
// Signatures in the format of minisign, checked with Node's own Ed25519 and BLAKE2b.
import { createHash, createPublicKey, verify, type KeyObject } from "node:crypto";

// https://jedisct1.github.io/minisign/#signature-format
//   public key   base64(algorithm "Ed", key id 8, key 32)
//   signature    a comment, base64(algorithm "ED", key id 8, signature 64), a trusted comment, base64(signature 64)
// "ED" signs the BLAKE2b-512 of the file. The older "Ed" signs the file itself and is not taken: what is signed that way
// can be the hash of another file.
const ID = 8;
const KEY = 32;
const SIGNATURE = 64;
const TRUSTED = Buffer.from("trusted comment: ");

export interface PublicKey {
  readonly text: string;
  /** As minisign shows it. */
  readonly id: string;
  readonly key: KeyObject;
}

/** Exactly n bytes in base64 as it is written, without a bit to spare; undefined for anything else. */
function fromBase64(text: string, n: number): Buffer | undefined {
  const raw = Buffer.from(text, "base64");
  return raw.length === n && raw.toString("base64") === text ? raw : undefined;
}

const idText = (raw: Buffer): string => Buffer.from(raw).reverse().toString("hex").toUpperCase();

/** A public key: the second line of minisign.pub. undefined when it is none. */
export function publicKey(text: string): PublicKey | undefined {
  const raw = fromBase64(text, 2 + ID + KEY);
  if (raw === undefined || raw.toString("latin1", 0, 2) !== "Ed") return undefined;
  const x = raw.toString("base64url", 2 + ID);
  const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
  return { text, id: idText(raw.subarray(2, 2 + ID)), key };
}

interface Parsed {
  readonly keyId: string;
  readonly signature: Buffer;
  readonly comment: Buffer;
  readonly global: Buffer;
}

function linesOf(data: Buffer): Buffer[] {
  const lines: Buffer[] = [];
  for (let from = 0, to: number; from < data.length; from = to + 1) {
    to = data.indexOf(10, from);
    if (to < 0) to = data.length;
    lines.push(data.subarray(from, to));
  }
  return lines;
}

function parse(file: Buffer): Parsed | string {
  const [, first, comment, last, ...more] = linesOf(file);
  if (first === undefined || comment === undefined || last === undefined || more.length > 0) return "it does not have four lines";
  const raw = fromBase64(first.toString("latin1"), 2 + ID + SIGNATURE);
  const global = fromBase64(last.toString("latin1"), SIGNATURE);
  if (raw === undefined || global === undefined || !comment.subarray(0, TRUSTED.length).equals(TRUSTED))
    return "it is not in the format of minisign";
  const algorithm = raw.toString("latin1", 0, 2);
  if (algorithm !== "ED")
    return algorithm === "Ed" ? "it is of minisign's old kind; sign again, without -l" : "its algorithm is unknown";
  return {
    keyId: idText(raw.subarray(2, 2 + ID)),
    signature: raw.subarray(2 + ID),
    comment: comment.subarray(TRUSTED.length),
    global,
  };
}

export type Verdict =
  | { readonly state: "valid"; readonly keyId: string; readonly key: string; readonly comment: string }
  /** No key was given, or none of this id: it has not been checked. */
  | { readonly state: "unchecked"; readonly keyId: string }
  | { readonly state: "invalid"; readonly keyId?: string; readonly why: string };

/** What the signature `file` says of `data`, with these keys. */
export function checkSignature(data: Buffer, file: Buffer, keys: readonly PublicKey[]): Verdict {
  const parsed = parse(file);
  if (typeof parsed === "string") return { state: "invalid", why: parsed };
  const { keyId, signature, comment, global } = parsed;
  const candidates = keys.filter(({ id }) => id === keyId);
  if (candidates.length === 0) return { state: "unchecked", keyId };
  const digest = createHash("blake2b512").update(data).digest();
  const signed = Buffer.concat([signature, comment]);
  const good = candidates.find(({ key }) => verify(null, digest, key, signature) && verify(null, signed, key, global));
  if (good === undefined) return { state: "invalid", keyId, why: "the key did not make it for this manifest" };
  return { state: "valid", keyId, key: good.text, comment: comment.toString() };
}
