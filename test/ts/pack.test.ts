// SPDX-License-Identifier: Apache-2.0
// What is published: the right files, nothing else, and a package description that tools agree with.
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";

const root = join(import.meta.dirname, "..", "..");
const scratch = mkdtempSync(join(tmpdir(), "al-pack-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));
const pkg = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as Record<string, never>;

let packed = "";
/** The package as `npm publish` would send it. */
function tarball(): string {
  if (packed === "") {
    const args = ["pack", "--silent", "--ignore-scripts", "--pack-destination", scratch];
    packed = join(scratch, execFileSync("npm", args, { cwd: root, encoding: "utf8" }).trim());
  }
  return packed;
}

describe("npm pack", () => {
  let files: { path: string; mode: number }[] = [];
  beforeAll(() => {
    const out = execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], {
      cwd: root,
      encoding: "utf8",
      stdio: ["ignore", "pipe", "ignore"],
    });
    files = (JSON.parse(out) as [{ files: typeof files }])[0].files;
  });

  it("holds what runs", () => {
    const paths = files.map((f) => f.path);
    const platform = `${process.platform}-${process.arch}`;
    for (const path of [
      "dist/index.js",
      "dist/index.d.ts",
      "dist/cli/main.js",
      `prebuilds/${platform}/agent_lane.node`,
      `prebuilds/${platform}/warden`,
      `prebuilds/${platform}/keeper`,
      "prebuilds/guest/agent-x86_64",
      "docs/ERRORS.md",
      "man/agent-lane.1",
      "docs/image-manifest.schema.json",
      "package.json",
    ])
      expect(paths).toContain(path);
  });

  it("holds what builds from source", () => {
    const paths = files.map((f) => f.path);
    for (const path of [
      "binding.gyp",
      "binding/addon.cc",
      "binding/pkgconfig.cjs",
      "scripts/build-native",
      "Makefile",
      "src/sources.mk",
      "src/al.h",
      "src/engine.c",
    ])
      expect(paths).toContain(path);
  });

  it("holds no tests, caches or build leftovers", () => {
    expect(
      files
        .map((f) => f.path)
        .filter((p) =>
          /^(test|bench|build|node_modules|lib)\/|^docs\/(?!\w+\.md$|[\w-]+\.schema\.json$)|tsbuildinfo|\.map$|\.log$|\.o$|\.test\.|^image\/out\//.test(
            p,
          ),
        ),
    ).toEqual([]);
  });

  it("holds nothing compiled from a file that is no longer there", () => {
    const compiled = files
      .map((f) => /^dist\/(.+?)(?:\.d\.ts|\.js)$/.exec(f.path)?.[1])
      .filter((name) => name !== undefined);
    expect(compiled.length).toBeGreaterThan(20);
    expect(compiled.filter((name) => !existsSync(join(root, "lib", `${name}.ts`)))).toEqual([]);
  });

  it("holds every file that README and SECURITY link to", () => {
    const paths = new Set(files.map((f) => f.path));
    for (const page of ["README.md", "SECURITY.md"]) {
      const text = readFileSync(join(root, page), "utf8");
      const links = [...text.matchAll(/\]\((?!https?:)([^)#]+)\)|`(docs\/[\w/]+\.md)`/g)].map((m) => m[1] ?? m[2]!);
      expect(links.length).toBeGreaterThan(0);
      expect(links.filter((link) => !paths.has(link))).toEqual([]);
    }
  });

  it("keeps the command executable", () => {
    expect((files.find((f) => f.path === "dist/cli/main.js")?.mode ?? 0) & 0o111).not.toBe(0);
    expect(readFileSync(join(root, "dist", "cli", "main.js"), "utf8").startsWith("#!/usr/bin/env node\n")).toBe(true);
  });
});

describe("package.json", () => {
  it("installs without running anything", () => {
    expect(pkg["gypfile"]).toBe(false);
    for (const script of ["preinstall", "install", "postinstall", "prepare"])
      expect(pkg["scripts"]).not.toHaveProperty(script);
  });

  it("is in order for publint", () => {
    const out = execFileSync(
      process.execPath,
      [join(root, "node_modules", "publint", "src", "cli.js"), "--strict", "--pack", "npm"],
      { cwd: root, encoding: "utf8", env: { ...process.env, NO_COLOR: "1" } },
    );
    expect(out).toContain("All good!");
  });

  it("resolves for every kind of import that an ESM package has, with types", () => {
    const attw = join(root, "node_modules", "@arethetypeswrong", "cli", "dist", "index.js");
    // The same as Sandcastle: ES modules only. A require() of it is Node's own error, before 22.12.
    const args = [attw, tarball(), "--profile", "esm-only", "--format", "json"];
    const r = spawnSync(process.execPath, args, { encoding: "utf8", env: { ...process.env, NO_COLOR: "1" } });
    expect(r.stderr).toBe("");
    expect(r.status).toBe(0);
    const { analysis, problems } = JSON.parse(r.stdout) as { analysis: { types: unknown }; problems?: object };
    expect(analysis.types).toEqual({ kind: "included" });
    expect(Object.keys(problems ?? {})).toEqual(
      expect.not.arrayContaining(["FalseESM", "FalseCJS", "UntypedResolution"]),
    );
  });

  it("has a lock without addresses", () => {
    expect(readFileSync(join(root, "package-lock.json"), "utf8")).not.toMatch(
      /"resolved"|https?:\/\/(?!.*(github|opencollective|tidelift|paulmillr|buymeacoffee|patreon|sponsor|funding))/,
    );
  });
});

describe("types", () => {
  it("satisfy a strict consumer, and refuse what is wrong", () => {
    const consumer = join(scratch, "consumer");
    const installed = join(consumer, "node_modules", "@agent-lane", "provider-lima");
    mkdirSync(installed, { recursive: true });
    mkdirSync(join(consumer, "node_modules", "@ai-hero"));
    execFileSync("tar", ["-xzf", tarball(), "--strip-components=1", "-C", installed]);
    symlinkSync(
      join(root, "node_modules", "@ai-hero", "sandcastle"),
      join(consumer, "node_modules", "@ai-hero", "sandcastle"),
    );
    symlinkSync(join(root, "node_modules", "@types"), join(consumer, "node_modules", "@types"));
    writeFileSync(join(consumer, "package.json"), '{"type":"module"}');
    // Sandcastle 0.12.0 uses types of a package that it does not depend on; whoever checks libraries must bring it.
    writeFileSync(
      join(consumer, "standard-schema.d.ts"),
      `declare module "@standard-schema/spec" {
  export interface StandardSchemaV1<Input = unknown, Output = Input> { readonly "~standard": { readonly types?: { readonly input: Input; readonly output: Output } } }
  export namespace StandardSchemaV1 { type InferOutput<S extends StandardSchemaV1> = NonNullable<S["~standard"]["types"]>["output"] }
}
`,
    );
    writeFileSync(
      join(consumer, "use.ts"),
      `import { createLane, lima, LaneError, type CopyInOptions, type CopyProgress, type LaneEvent, type LimaOptions } from "@agent-lane/provider-lima";
import { createSandbox, type SandboxProvider } from "@ai-hero/sandcastle";
const options: LimaOptions = { cpus: 2, network: "none", onEvent: (e: LaneEvent) => { if (e.type === "close-failed") e.error.cure.trim(); else if (e.type === "booting") e.timeMs.toFixed(); } };
const provider: SandboxProvider = lima(options);
export const sandbox = () => createSandbox({ branch: "b", sandbox: lima({ memoryGiB: undefined }) });
export const code = (e: unknown): string => (e instanceof LaneError && e.code === "BUSY" ? e.cure : String(provider));
export const copies = async (signal: AbortSignal, options: CopyInOptions = {}) => {
  const lane = await createLane();
  const { bytes, changedPath } = await lane.copyIn("a", "/a", { ...options, ignore: ["x"] as const, signal });
  const onProgress = ({ totalBytes = 0 }: CopyProgress) => void totalBytes.toFixed();
  const { skipped } = await lane.copyOut("/d", "d", { maxBytes: undefined, executables: true, onProgress });
  // @ts-expect-error a number of bytes
  await lane.copyFileOut("/a", "a", { maxBytes: "1 GiB" });
  return [bytes, skipped, changedPath?.length];
};
// @ts-expect-error an unknown option
lima({ cpu: 2 });
// @ts-expect-error a wrong value
lima({ network: "closed" });
// @ts-expect-error a code that does not exist
export const wrong = (e: LaneError) => e.code === "NOPE";
`,
    );
    writeFileSync(
      join(consumer, "tsconfig.json"),
      JSON.stringify({
        compilerOptions: {
          strict: true,
          exactOptionalPropertyTypes: true,
          noUncheckedIndexedAccess: true,
          module: "NodeNext",
          target: "ES2022",
          lib: ["ES2022", "ESNext.Disposable"],
          types: ["node"],
          noEmit: true,
          skipLibCheck: false,
          preserveSymlinks: false,
        },
        include: ["*.ts"],
      }),
    );
    const tsc = join(root, "node_modules", "typescript", "bin", "tsc");
    try {
      execFileSync(process.execPath, [tsc, "-p", consumer], { encoding: "utf8" });
    } catch (error) {
      throw new Error((error as { stdout: string }).stdout);
    }
  }, 120_000);
});
