// SPDX-License-Identifier: Apache-2.0
// The package that scripts/build-package has left in build/package, and which targets it was asked for.
import { execFileSync, spawn, type SpawnOptions } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";

export const root = join(import.meta.dirname, "..", "..");
export const built = join(root, "build", "package");
export const unpackedRoot = join(built, "root");

export function tarball(): string {
  const found = readdirSync(built).filter((name) => name.endsWith(".tgz"));
  if (found.length !== 1) throw new Error("there is no package to test: run scripts/build-package first (nothing is skipped)");
  return join(built, found[0]!);
}

export interface Prebuilds {
  readonly schema: number;
  readonly sources: string;
  readonly builtWith: Readonly<Record<string, string>>;
  readonly files: Readonly<Record<string, { readonly bytes: number; readonly sha256: string }>>;
}
export const prebuilds = (dir = unpackedRoot): Prebuilds =>
  JSON.parse(readFileSync(join(dir, "prebuilds", "prebuilds.json"), "utf8")) as Prebuilds;

/** The tarball, unpacked where an installation would put it, with what it depends on beside it. */
export function installed(dir: string): string {
  const scope = join(dir, "node_modules", "@agent-lane");
  mkdirSync(scope, { recursive: true });
  execFileSync("tar", ["-xzf", tarball(), "-C", scope]);
  execFileSync("mv", [join(scope, "package"), join(scope, "provider-lima")]);
  const { dependencies } = JSON.parse(readFileSync(join(unpackedRoot, "package.json"), "utf8")) as {
    dependencies: Record<string, string>;
  };
  for (const name of Object.keys(dependencies)) symlinkSync(join(root, "node_modules", name), join(dir, "node_modules", name));
  return join(scope, "provider-lima");
}

export interface Ended {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Not spawnSync: vitest's worker must answer its parent within a minute, and these programs may take longer. */
export function ended(program: string, args: readonly string[], { timeout = 100_000, ...options }: SpawnOptions = {}): Promise<Ended> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { ...options, stdio: ["ignore", "pipe", "pipe"], timeout, killSignal: "SIGKILL" });
    let stdout = "";
    let stderr = "";
    child.stdout!.on("data", (data: Buffer) => (stdout += data.toString()));
    child.stderr!.on("data", (data: Buffer) => (stderr += data.toString()));
    child.on("error", reject);
    child.on("close", (status) => resolve({ status, stdout, stderr }));
  });
}
