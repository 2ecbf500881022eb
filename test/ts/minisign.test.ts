// SPDX-License-Identifier: Apache-2.0
// Signatures of minisign: what it made itself is valid, and nothing that differs from that by a bit.
import { createHash, generateKeyPairSync, sign } from "node:crypto";
import { expect, it } from "vitest";
import { checkSignature, publicKey, type PublicKey } from "../../lib/minisign.js";
import { signer } from "./support/minisign.mjs";

const data = Buffer.from('{"format":"agent-lane-image/1"}');

it("takes a public key as minisign writes it, and shows its id as minisign does", () => {
  // The example key of minisign's own documentation.
  const key = publicKey("RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3");
  expect(key?.id).toBe("E7620F1842B4E81F");
});

it.each([
  "",
  "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO",
  "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3AAAA",
  " RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3",
  "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\n",
  "AAAf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3",
  "untrusted comment: minisign public key E7620F1842B4E81F",
])("%j is no public key", (text) => {
  expect(publicKey(text)).toBeUndefined();
});

it("checks the prehashed form that minisign makes", () => {
  const own = signer();
  const file = own.sign(data, "timestamp:1\tfile:manifest.json");
  const key = publicKey(own.publicKey) as PublicKey;
  expect(checkSignature(data, file, [key])).toEqual({
    state: "valid",
    keyId: own.id,
    key: own.publicKey,
    comment: "timestamp:1\tfile:manifest.json",
  });
  expect(checkSignature(data, file, [])).toEqual({ state: "unchecked", keyId: own.id });
  expect(checkSignature(data, file, [publicKey(signer().publicKey) as PublicKey]).state).toBe("unchecked");
});

it("any flipped bit of manifest or signature is found", () => {
  const own = signer();
  const file = own.sign(data);
  const keys = [publicKey(own.publicKey) as PublicKey];
  for (let at = 0; at < data.length * 8; at++) {
    const other = Buffer.from(data);
    other[at >> 3]! ^= 1 << (at & 7);
    expect(checkSignature(other, file, keys).state).toBe("invalid");
  }
  // All but the first line, which nothing signs.
  for (let at = (file.indexOf(10) + 1) * 8; at < file.length * 8; at++) {
    const other = Buffer.from(file);
    other[at >> 3]! ^= 1 << (at & 7);
    // The key's id is what it is looked up by: with another one it is a signature by somebody else.
    expect(["invalid", "unchecked"], `bit ${at}`).toContain(checkSignature(data, other, keys).state);
  }
});

it("another key with the same id is not enough", () => {
  const own = signer();
  const other = signer(own.rawId);
  expect(other.id).toBe(own.id);
  const file = own.sign(data);
  expect(checkSignature(data, file, [publicKey(other.publicKey) as PublicKey]).state).toBe("invalid");
  const both = [other, own].map((each) => publicKey(each.publicKey) as PublicKey);
  expect(checkSignature(data, file, both).state).toBe("valid");
});

it("the old form, which signs the file itself, is not taken", () => {
  const { privateKey, publicKey: raw } = generateKeyPairSync("ed25519");
  const id = Buffer.from("12345678");
  const x = Buffer.from(raw.export({ format: "jwk" }).x as string, "base64url");
  const key = publicKey(Buffer.concat([Buffer.from("Ed"), id, x]).toString("base64")) as PublicKey;
  // The signed bytes are the hash of another file: under the new form that file would pass.
  const digest = createHash("blake2b512").update(data).digest();
  const signature = sign(null, digest, privateKey);
  const global = sign(null, Buffer.concat([signature, Buffer.from("c")]), privateKey);
  const lines = (algorithm: string): Buffer =>
    Buffer.from(
      `untrusted comment: x\n${Buffer.concat([Buffer.from(algorithm), id, signature]).toString("base64")}\ntrusted comment: c\n${global.toString("base64")}\n`,
    );
  expect(checkSignature(digest, lines("Ed"), [key])).toMatchObject({ state: "invalid", why: /old kind/ });
  expect(checkSignature(data, lines("ED"), [key]).state).toBe("valid");
  expect(checkSignature(data, lines("EX"), [key]).state).toBe("invalid");
});

it.each(["", "x", "a\nb\nc\nd\n", "untrusted comment: x\n\ntrusted comment: \n\n", "\n\n\n\n", "\n".repeat(5)])(
  "%j is no signature",
  (text) => {
    expect(checkSignature(data, Buffer.from(text), []).state).toBe("invalid");
  },
);
