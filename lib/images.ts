// SPDX-License-Identifier: Apache-2.0
// Which images the pinned keys have signed: the digests of their manifests, which the core then holds every image to.
import { createHash } from "node:crypto";
import type { Engine } from "./engine.js";
import { checkSignature, publicKey, type PublicKey, type Verdict } from "./minisign.js";

interface SignedImage {
  readonly id: string;
  readonly manifest: Buffer;
  readonly signature: Buffer;
}

export interface SignatureOf {
  readonly id: string;
  /** Of the manifest's bytes, made here: what the verdict is about. */
  readonly sha256: string;
  readonly verdict: Verdict;
}

interface Place {
  readonly home?: string | undefined;
}

/** The signatures in the store, or the one of an image that is not in it (`from`: its directory or archive). */
export async function signatures(
  engine: Engine,
  { home }: Place,
  keys: readonly PublicKey[],
  from?: string,
): Promise<SignatureOf[]> {
  const images = await engine.request<readonly SignedImage[]>("imageSigned", { home, from });
  return images.map(({ id, manifest, signature }) => ({
    id,
    sha256: createHash("sha256").update(manifest).digest("hex"),
    verdict: checkSignature(manifest, signature, keys),
  }));
}

/** The texts have passed the rule of imageKeys. */
export function keysOf(texts: readonly string[]): PublicKey[] {
  return texts.map(publicKey).filter((key) => key !== undefined);
}

/** Digests of the manifests that one of the keys has signed, each with that key, for `imageDigests` of a request. */
export async function signedDigests(
  engine: Engine,
  place: Place,
  texts: readonly string[],
  from?: string,
): Promise<string[]> {
  const keys = keysOf(texts);
  const found = await signatures(engine, place, keys);
  if (from !== undefined) found.push(...(await signatures(engine, place, keys, from)));
  return found.flatMap(({ sha256, verdict }) => (verdict.state === "valid" ? [`${sha256} ${verdict.key}`] : []));
}
