// SPDX-License-Identifier: Apache-2.0
// A key pair of minisign, and signatures as `minisign -S` writes them.
import { createHash, generateKeyPairSync, randomBytes, sign } from "node:crypto";

export function signer(rawId = randomBytes(8)) {
  const { privateKey, publicKey } = generateKeyPairSync("ed25519");
  const raw = Buffer.from(publicKey.export({ format: "jwk" }).x, "base64url");
  return {
    rawId,
    id: Buffer.from(rawId).reverse().toString("hex").toUpperCase(),
    publicKey: Buffer.concat([Buffer.from("Ed"), rawId, raw]).toString("base64"),
    sign(data, comment = "timestamp:1") {
      const signature = sign(null, createHash("blake2b512").update(data).digest(), privateKey);
      const global = sign(null, Buffer.concat([signature, Buffer.from(comment)]), privateKey);
      const first = Buffer.concat([Buffer.from("ED"), rawId, signature]).toString("base64");
      return Buffer.from(
        `untrusted comment: signature from minisign secret key\n${first}\ntrusted comment: ${comment}\n${global.toString("base64")}\n`,
      );
    },
  };
}
