// SPDX-License-Identifier: Apache-2.0
// The option image as an object: what it may be, which files of a project go into an image, and when it is another image.
import { chmodSync, mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import type { LaneError } from "../../lib/errors.js";
import { resolveOptions, type LimaOptions } from "../../lib/options.js";
import { inputsKey, projectDigest, readInputs, type SettledProject } from "../../lib/project.js";
import { rejection } from "./support/fake-engine.js";

const made: string[] = [];
afterAll(() => made.forEach((dir) => rmSync(dir, { recursive: true, force: true })));

function directory(files: Record<string, string> = {}): string {
  const dir = realpathSync(mkdtempSync(join(tmpdir(), "al-project-")));
  made.push(dir);
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(join(dir, name, ".."), { recursive: true });
    writeFileSync(join(dir, name), text);
  }
  return dir;
}

function settled(image: object, options: LimaOptions = {}): SettledProject {
  const one = resolveOptions({ ...options, image: { setup: "true", ...image } }).image;
  if (typeof one !== "object") throw new Error("no project");
  return one;
}

function refusal(image: unknown): LaneError {
  try {
    resolveOptions({ image } as LimaOptions);
  } catch (error) {
    return error as LaneError;
  }
  throw new Error(`accepted: ${JSON.stringify(image)}`);
}

describe("the option", () => {
  it("has defaults", () => {
    const dir = directory();
    expect(settled({ directory: dir })).toEqual({
      extends: undefined,
      setup: "true",
      inputs: [],
      directory: dir,
      project: undefined,
      env: {},
      network: "open",
      timeoutMinutes: 20,
    });
  });

  it("means the repository that the process is in", () => {
    const dir = directory({ ".git/HEAD": "", "a/b/c": "" });
    const before = process.cwd();
    try {
      process.chdir(join(dir, "a/b"));
      expect(settled({}).directory).toBe(dir);
    } finally {
      process.chdir(before);
    }
  });

  it("reaches the network when the lanes do, unless it says so", () => {
    expect(settled({}, { network: "none" }).network).toBe("none");
    expect(settled({ network: "open" }, { network: "none" }).network).toBe("open");
    expect(settled({ network: "none" }).network).toBe("none");
  });

  it("is a copy", () => {
    const image = { setup: "true", inputs: ["a"], env: { A: "1" } };
    const one = settled(image);
    image.inputs.push("b");
    image.env.A = "2";
    expect([one.inputs, one.env]).toEqual([["a"], { A: "1" }]);
  });

  it("is still a name, an id or a path", () => {
    expect(resolveOptions({ image: "docker" }).image).toBe("docker");
    expect(refusal("").message).toMatch(/option image must be a name or an absolute path/);
    expect(refusal(["docker"]).message).toMatch(/not an array/);
    expect(refusal(7).message).toMatch(/the number 7/);
  });

  it.each([
    [{}, /image\.setup must be a shell script, not undefined/],
    [{ setup: " \n" }, /image\.setup .* empty/],
    [{ setup: "x".repeat(40_000) }, /at most 32768/],
    [{ setup: "a\0b" }, /NUL/],
    [{ setup: "true", inputs: "package.json" }, /image\.inputs must be a list of paths/],
    [{ setup: "true", inputs: [1] }, /image\.inputs .*the number 1/],
    [{ setup: "true", inputs: ["/etc/passwd"] }, /image\.inputs .*not a normal path/],
    [{ setup: "true", inputs: ["../x"] }, /leads out/],
    [{ setup: "true", inputs: [".."] }, /leads out/],
    [{ setup: "true", inputs: ["a/../../x"] }, /not a normal path/],
    [{ setup: "true", inputs: ["./a"] }, /not a normal path/],
    [{ setup: "true", inputs: ["."] }, /not a normal path/],
    [{ setup: "true", inputs: ["a/"] }, /not a normal path/],
    [{ setup: "true", inputs: [""] }, /no path/],
    [{ setup: "true", inputs: ["a\nb"] }, /no path/],
    [{ setup: "true", inputs: [".git/config"] }, /git's own/],
    [{ setup: "true", inputs: ["sub/.GIT"] }, /git's own/],
    [{ setup: "true", inputs: Array(1001).fill("a") }, /1001 paths/],
    [{ setup: "true", directory: "here" }, /image\.directory must be an absolute path/],
    [{ setup: "true", project: "" }, /image\.project/],
    [{ setup: "true", project: "a\nb" }, /image\.project/],
    [{ setup: "true", env: { "a-b": "1" } }, /image\.env/],
    [{ setup: "true", network: "some" }, /image\.network must be "open" or "none"/],
    [{ setup: "true", timeoutMinutes: 0 }, /image\.timeoutMinutes .*from 1 to 1425/],
    [{ setup: "true", extends: "" }, /image\.extends/],
  ])("refuses %j", (image, message) => {
    const error = refusal(image);
    expect(error.code).toBe("BAD_OPTION");
    expect(error.message).toMatch(message);
  });

  it("suggests the near field", () => {
    expect(refusal({ setup: "true", input: ["a"] }).message).toMatch(/no field of option image "input"; did you mean inputs/);
  });
});

describe("input files", () => {
  it("are read with their modes, directories with all that is in them, each once, by name", async () => {
    const dir = directory({ "package.json": "{}", "tools/b.sh": "b", "tools/a/c": "c", other: "o" });
    chmodSync(join(dir, "tools/b.sh"), 0o755);
    const files = await readInputs(settled({ directory: dir, inputs: ["tools", "package.json", "tools/b.sh"] }));
    expect(files.map(({ name, executable, data }) => [name, executable, data.toString()])).toEqual([
      ["package.json", false, "{}"],
      ["tools/a/c", false, "c"],
      ["tools/b.sh", true, "b"],
    ]);
  });

  it("follow no link, neither as a file nor on the way", async () => {
    const secret = directory({ key: "secret" });
    const dir = directory({ "real/a": "a" });
    symlinkSync(join(secret, "key"), join(dir, "package-lock.json"));
    symlinkSync(secret, join(dir, "outside"));
    symlinkSync("real", join(dir, "inside"));
    symlinkSync(join(secret, "key"), join(dir, "real", "b"));
    for (const name of ["package-lock.json", "outside", "outside/key", "inside/a", "real"]) {
      const error = await rejection(readInputs(settled({ directory: dir, inputs: [name] })));
      expect([name, error.code]).toEqual([name, "SOURCE_UNSUPPORTED"]);
      expect(error.message).toMatch(/link/);
    }
  });

  it("that are missing are named", async () => {
    const error = await rejection(readInputs(settled({ directory: directory(), inputs: ["package-lock.json"] })));
    expect(error.code).toBe("SOURCE_MISSING");
    expect(error.message).toMatch(/image\.inputs: package-lock\.json/);
  });

  it("are bounded", async () => {
    const dir = directory({ a: "", b: "b" });
    const { truncateSync } = await import("node:fs");
    truncateSync(join(dir, "a"), 64 * 2 ** 20);
    const error = await rejection(readInputs(settled({ directory: dir, inputs: ["a", "b"] })));
    expect(error.message).toMatch(/more than 64 MiB/);
  });

  it.each([
    [".env", "A=1"],
    ["sub/.env.local", "A=1"],
    [".netrc", "machine x"],
    [".npmrc", "//registry.example.com/:_authToken=npm_abc"],
    [".npmrc", "registry=https://a\n_auth = Zm9v"],
    [".yarnrc.yml", 'npmAuthToken: "abc"'],
  ])("with secrets are refused: %s", async (name, text) => {
    const error = await rejection(readInputs(settled({ directory: directory({ [name]: text }), inputs: [name] })));
    expect(error.code).toBe("BAD_OPTION");
    expect(error.message).toContain(name);
    expect(error.message).not.toContain("abc");
  });

  it.each([
    [".env.example", "A=1"],
    [".npmrc", "registry=https://a\n//registry.example.com/:_authToken=${NPM_TOKEN}\n# _auth=x"],
  ])("that only look like it are taken: %s", async (name, text) => {
    expect(await readInputs(settled({ directory: directory({ [name]: text }), inputs: [name] }))).toHaveLength(1);
  });
});

describe("the key", () => {
  const lanes = { guestSudo: true, diskGiB: 30 };
  const dir = directory({ a: "a", b: "b" });
  const key = async (image: object = {}, more: object = {}): Promise<string> => {
    const one = settled({ directory: dir, inputs: ["a"], ...image });
    return inputsKey(one, await readInputs(one), { ...lanes, ...more });
  };

  it("is the same for the same", async () => {
    expect(await key({ env: { A: "1", B: "2" } })).toBe(await key({ env: { B: "2", A: "1" }, timeoutMinutes: 3 }));
    expect(await key()).toMatch(/^[0-9a-f]{64}$/);
  });

  it("is another one when anything of it is", async () => {
    const keys = await Promise.all([
      key(),
      key({ setup: "false" }),
      key({ inputs: ["b"] }),
      key({ inputs: ["a", "b"] }),
      key({ env: { A: "1" } }),
      key({ network: "none" }),
      key({}, { guestSudo: false }),
      key({}, { diskGiB: 31 }),
    ]);
    const before = await key();
    writeFileSync(join(dir, "a"), "changed");
    keys.push(await key());
    chmodSync(join(dir, "a"), 0o755);
    keys.push(await key());
    writeFileSync(join(dir, "a"), "a");
    chmodSync(join(dir, "a"), 0o644);
    expect(await key()).toBe(before);
    expect(new Set(keys).size).toBe(keys.length);
  });

  it("of a project is that of its path or its name, which never meet", async () => {
    const link = join(directory(), "link");
    symlinkSync(dir, link);
    const path = await projectDigest(settled({ directory: dir }));
    expect(await projectDigest(settled({ directory: link }))).toBe(path);
    expect(await projectDigest(settled({ directory: directory() }))).not.toBe(path);
    expect(await projectDigest(settled({ directory: dir, project: dir }))).not.toBe(path);
    const named = await projectDigest(settled({ directory: dir, project: "web" }));
    expect(await projectDigest(settled({ directory: directory(), project: "web" }))).toBe(named);
  });
});
