// SPDX-License-Identifier: Apache-2.0
// A registry of npm packages on this machine's loopback, which a lane reaches: a few packages as `npm pack` fetched them, no more.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { scratch } from "./lanes.mjs";

/** `packages`: NAME@VERSION. The URL is as this machine sees it; `asked` are the paths that were asked for. */
export async function openRegistry(packages) {
  const dir = scratch("registry");
  const args = ["pack", "--json", "--silent", "--ignore-scripts", "--pack-destination", dir, ...packages];
  const packed = JSON.parse(execFileSync("npm", args, { encoding: "utf8", timeout: 120_000, cwd: dir }));
  const tarballs = new Map();
  const metadata = new Map();
  for (const { name, version, filename } of packed) {
    const bytes = readFileSync(join(dir, filename));
    const manifest = JSON.parse(
      execFileSync("tar", ["-xzOf", join(dir, filename), "package/package.json"], { encoding: "utf8", timeout: 20_000 }),
    );
    const path = `/${name}/-/${name.replace(/^.*\//, "")}-${version}.tgz`; // pnpm goes there by itself
    tarballs.set(path, bytes);
    const integrity = `sha512-${createHash("sha512").update(bytes).digest("base64")}`;
    metadata.set(`/${name}`, (base) => ({
      name,
      "dist-tags": { latest: version },
      versions: { [version]: { ...manifest, dist: { tarball: base + path, integrity } } },
    }));
  }
  const asked = [];
  const server = createServer((request, response) => {
    const path = decodeURIComponent(request.url.split("?")[0]);
    asked.push(path);
    const json = metadata.get(path)?.(`http://${request.headers.host}`);
    const body = tarballs.get(path) ?? (json && JSON.stringify(json));
    response.writeHead(body ? 200 : 404, { "content-type": json ? "application/json" : "application/octet-stream" });
    response.end(body ?? "");
  });
  await new Promise((resolve, reject) => server.on("error", reject).listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, asked, close: () => server.close() };
}
