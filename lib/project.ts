// SPDX-License-Identifier: Apache-2.0
// What a project image is: the option `image` as an object, the project's files that go into it, and the key by which it is
// found again.
import { createHash } from "node:crypto";
import { constants, existsSync } from "node:fs";
import { open, readdir, realpath, type FileHandle } from "node:fs/promises";
import { basename, dirname, join, posix } from "node:path";
import { badOption, LaneError, wordsOf } from "./errors.js";
import * as is from "./rules.js";

/** The image of a project: another image in which a script of the project's has run once. */
export interface ProjectImage {
  /** The image that the setup starts from, as the option `image` itself. Default: the newest. */
  readonly extends?: string | undefined;
  /**
   * Script for `sh -e`, run once, as user `agent` in `~/setup` of a lane of its own, where the inputs lie. It gets no
   * variable of yours but those of `env` here. 1–32768 characters.
   */
  readonly setup: string;
  /**
   * Files and directories of the project that the setup reads, relative to `directory`, without links. When one of them
   * changes, a new image is made. Default: none.
   */
  readonly inputs?: readonly string[] | undefined;
  /**
   * Absolute path of the project. Default: the nearest directory from the current one upwards that has a `.git`, else the
   * current one.
   */
  readonly directory?: string | undefined;
  /**
   * Whose image it is: lanes share one only when this is the same. Default: the canonical path of `directory`. Text of
   * 1–200 characters.
   */
  readonly project?: string | undefined;
  /** Variables of the setup, such as a registry's address. They are part of the image: never a secret. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** Whether the setup reaches the network. Default: as the lanes do (option `network`). */
  readonly network?: "open" | "none" | undefined;
  /** Time that the setup may take, in minutes. Integer 1–1425, default 20. */
  readonly timeoutMinutes?: number | undefined;
}

/** With the defaults, and out of reach for later changes of the caller's object. */
export interface SettledProject {
  readonly extends: string | undefined;
  readonly setup: string;
  readonly inputs: readonly string[];
  readonly directory: string;
  readonly project: string | undefined;
  readonly env: Readonly<Record<string, string>>;
  readonly network: "open" | "none";
  readonly timeoutMinutes: number;
}

const SETUP_MAX = 32_768;
const INPUTS_MAX = 1000;
const PROJECT_MAX = 200;
const FILES_MAX = 10_000;
const BYTES_MAX = 64 * 2 ** 20;
const NAMES: readonly (keyof ProjectImage)[] = [
  "extends",
  "setup",
  "inputs",
  "directory",
  "project",
  "env",
  "network",
  "timeoutMinutes",
];

function checkSetup(where: string, value: unknown): void {
  if (typeof value !== "string") throw badOption(`${where} must be a shell script, not ${is.kindOf(value)}`);
  if (value.trim() === "") throw badOption(`${where} must be a shell script, not an empty text`);
  if (value.length > SETUP_MAX)
    throw badOption(`${where} has ${value.length} characters; at most ${SETUP_MAX} are allowed (a longer one can be an input)`);
  if (value.includes("\0")) throw badOption(`${where} contains a NUL character`);
}

/** Relative, normal, and not of git's own directory, whose remotes may hold a password. */
function wrongInput(value: unknown): string | undefined {
  if (typeof value !== "string") return is.kindOf(value);
  const shown = JSON.stringify(value.slice(0, 80));
  if (value === "" || /[\0-\x1f\x7f]/.test(value)) return `${shown}, which is no path`;
  if (posix.isAbsolute(value) || posix.normalize(value) !== value || value.endsWith("/") || value === ".")
    return `${shown}, which is not a normal path`;
  const parts = value.split("/");
  if (parts[0] === "..") return `${shown}, which leads out of the directory`;
  return parts.some((part) => part.toLowerCase() === ".git") ? `${shown}, which is git's own` : undefined;
}

function checkInputs(where: string, value: unknown): void {
  if (!Array.isArray(value)) throw badOption(`${where} must be a list of paths below the directory, not ${is.kindOf(value)}`);
  if (value.length > INPUTS_MAX) throw badOption(`${where} has ${value.length} paths; at most ${INPUTS_MAX} are allowed`);
  for (const each of Array.from(value as unknown[])) {
    const wrong = wrongInput(each);
    if (wrong !== undefined) throw badOption(`${where} must be paths below the directory, such as "package-lock.json", not ${wrong}`);
  }
}

function checkProject(where: string, value: unknown): void {
  if (typeof value !== "string") throw badOption(`${where} must be a name, not ${is.kindOf(value)}`);
  if (!/^[^\0-\x1f\x7f]{1,200}$/u.test(value) || value.trim() === "")
    throw badOption(`${where} must be a name of 1 to ${PROJECT_MAX} characters without control characters`);
}

const network = is.oneOf("open", "none");
const minutes = is.integer(1, 1425);

function checkFields(where: string, value: object): void {
  const given = is.readOnce(value as ProjectImage, NAMES);
  checkSetup(`${where}.setup`, given.setup);
  if (given.extends !== undefined) is.nameOrPath.check(`${where}.extends`, given.extends);
  if (given.inputs !== undefined) checkInputs(`${where}.inputs`, given.inputs);
  if (given.directory !== undefined) is.hostPath.check(`${where}.directory`, given.directory);
  if (given.project !== undefined) checkProject(`${where}.project`, given.project);
  if (given.env !== undefined) is.environment.check(`${where}.env`, given.env);
  if (given.network !== undefined) network.check(`${where}.network`, given.network);
  if (given.timeoutMinutes !== undefined) minutes.check(`${where}.timeoutMinutes`, given.timeoutMinutes);
}

/** The rule of the option `image`. */
export const imageRule: is.Rule = {
  bounds: "name, id, absolute path, or an object",
  show: is.nameOrPath.show,
  check(where, value) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return is.nameOrPath.check(where, value);
    is.refuseUnknown(`field of ${where}`, value, NAMES);
    checkFields(where, value);
  },
};

/** The nearest directory from `from` upwards that is a repository's, else `from`. */
function repositoryOf(from: string): string {
  for (let dir = from; ; dir = dirname(dir)) {
    if (existsSync(join(dir, ".git"))) return dir;
    if (dirname(dir) === dir) return from;
  }
}

/** A checked one, with its defaults. */
export function settleProject(given: ProjectImage, lanes: { readonly network: "open" | "none" }): SettledProject {
  const one = is.readOnce(given, NAMES);
  return Object.freeze({
    extends: one.extends,
    setup: one.setup,
    inputs: Object.freeze([...(one.inputs ?? [])]),
    directory: one.directory ?? repositoryOf(process.cwd()),
    project: one.project,
    env: Object.freeze({ ...one.env }),
    network: one.network ?? lanes.network,
    timeoutMinutes: one.timeoutMinutes ?? 20,
  });
}

/** For people. */
export function projectName({ project, directory }: SettledProject): string {
  return project ?? basename(directory);
}

// ---- the files ----

export interface InputFile {
  /** Relative to the directory. */
  readonly name: string;
  readonly executable: boolean;
  readonly data: Buffer;
}

function fault(code: "SOURCE_MISSING" | "SOURCE_UNREADABLE" | "SOURCE_UNSUPPORTED", message: string, cause?: unknown): LaneError {
  const cure = "Correct image.inputs: regular files and directories of the project, without links, of 64 MiB in all.";
  return new LaneError({ code, message: `image.inputs: ${message}`, cure, cause });
}

const CREDENTIAL = /^[^#;\n]*(?:_authToken|_auth|_password|npmAuthToken|npmAuthIdent)["']?\s*[=:]\s*["']?(?!\$\{)[^\s"']/m;

/** An image stays, and everything of the project's may read it: what is known to hold secrets does not go in. */
function refuseSecret({ name, data }: InputFile): void {
  const file = basename(name);
  const never = /^(?:\.netrc|\.pypirc|\.git-credentials|\.env(?:\..+)?)$/.test(file) && !/\.(?:example|sample|template|dist)$/.test(file);
  const holds = /^\.(?:npmrc|yarnrc|yarnrc\.yml)$/.test(file) && CREDENTIAL.test(data.toString());
  if (!never && !holds) return;
  throw badOption(
    `image.inputs: ${name} ${never ? "is a file for secrets" : "holds a credential"}, and what goes into an image stays there; let the file name a variable (\${TOKEN}), or leave it out`,
  );
}

class Reader {
  readonly files = new Map<string, InputFile>();
  #bytes = 0;

  constructor(readonly root: string) {}

  /** Reads a file, or a directory with all that is in it. `root` is canonical, so a path that is not is behind a link. */
  async read(name: string): Promise<void> {
    const wrong = wrongInput(name);
    if (wrong !== undefined) throw fault("SOURCE_UNSUPPORTED", `there is ${wrong}`);
    const path = join(this.root, name);
    const canonical = await realpath(path).catch((error: unknown) => {
      const missing = (error as NodeJS.ErrnoException).code === "ENOENT";
      throw fault(missing ? "SOURCE_MISSING" : "SOURCE_UNREADABLE", `${name}: ${missing ? `is not in ${this.root}` : wordsOf(error)}`, error);
    });
    if (canonical !== path) throw fault("SOURCE_UNSUPPORTED", `${name} is a link, or lies behind one`);
    const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
    const handle = await open(path, flags).catch((error: unknown) => {
      throw fault("SOURCE_UNREADABLE", `${name}: ${wordsOf(error)}`, error);
    });
    try {
      const stat = await handle.stat();
      if (stat.isDirectory()) await this.#directory(name, path);
      else if (stat.isFile()) await this.#file(name, handle, stat.size, (stat.mode & 0o100) !== 0);
      else throw fault("SOURCE_UNSUPPORTED", `${name} is neither a file nor a directory`);
    } finally {
      await handle.close();
    }
  }

  async #directory(name: string, path: string): Promise<void> {
    for (const entry of (await readdir(path)).sort()) await this.read(`${name}/${entry}`);
  }

  async #file(name: string, handle: FileHandle, size: number, executable: boolean): Promise<void> {
    this.#bytes += size;
    if (this.#bytes > BYTES_MAX || this.files.size >= FILES_MAX)
      throw fault("SOURCE_UNSUPPORTED", `more than ${BYTES_MAX / 2 ** 20} MiB or ${FILES_MAX} files, at ${name}`);
    const data = Buffer.alloc(size);
    const { bytesRead } = await handle.read(data, 0, size, 0);
    const file = { name, executable, data: data.subarray(0, bytesRead) };
    refuseSecret(file);
    this.files.set(name, file);
  }
}

/** The input files, by name, each once. They are read once: what is copied into the guest is what the key was made of. */
export async function readInputs({ directory, inputs }: SettledProject): Promise<InputFile[]> {
  const root = await realpath(directory).catch((error: unknown) => {
    throw badOption(`option image.directory: ${wordsOf(error)}`, error);
  });
  const reader = new Reader(root);
  for (const name of inputs) await reader.read(name);
  return [...reader.files.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

// ---- the keys ----

const sha256 = (data: string | Buffer): string => createHash("sha256").update(data).digest("hex");

/** Digest that stands for the project. A name and a path never meet. */
export async function projectDigest({ project, directory }: SettledProject): Promise<string> {
  return sha256(JSON.stringify(project === undefined ? ["path", await realpath(directory)] : ["name", project]));
}

/**
 * Digest over all that decides what the setup makes, but for the image that it starts from. `guestSudo` is in it since an
 * image in which the project's code was root must not serve lanes in which it may not be; `diskGiB` since the disk only grows.
 */
export function inputsKey(
  { setup, env, network: net }: SettledProject,
  files: readonly InputFile[],
  { guestSudo, diskGiB }: { readonly guestSudo: boolean; readonly diskGiB: number },
): string {
  const variables = Object.entries(env).sort(([a], [b]) => (a < b ? -1 : 1));
  const contents = files.map(({ name, executable, data }) => [name, executable, sha256(data)]);
  return sha256(JSON.stringify({ version: 1, setup, env: variables, network: net, guestSudo, diskGiB, files: contents }));
}
