// SPDX-License-Identifier: Apache-2.0
// Finds the image of a project, or makes it: a lane in which the setup runs, whose disk then is the image. One at a time makes
// it, whoever else wants it waits.
import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { performance } from "node:perf_hooks";
import { checkSignal } from "./checks.js";
import { engine as sharedEngine, type Engine } from "./engine.js";
import { aborted, badOption, LaneError, OWN_ERRORS, whence } from "./errors.js";
import { tell, type LaneEvent, type LanePreparingEvent } from "./events.js";
import { signedDigests } from "./images.js";
import type { Lane } from "./lane.js";
import type { NativeValue } from "./native.js";
import { openLane, type LaneOptions } from "./open.js";
import { OPTION_NAMES, resolveOptions, type LimaOptions, type ResolvedOptions } from "./options.js";
import { inputsKey, projectDigest, projectName, readInputs, type InputFile, type SettledProject } from "./project.js";
import { checkQueueTime } from "./rules.js";
import { SETTLE } from "./settle.js";

/** Where the inputs lie and the setup runs: beside the worktree, which Sandcastle makes anew. */
export const SETUP_DIR = "/home/agent/setup";

const POLL_MS = 500;
const TOLD_MS = 1000;
const SILENT_MS = 5000;
const SETTLE_MS = 240_000;
// From the end of the setup's time to that of its lane.
const LIFE_MINUTES = 15;
const TAIL_LINES = 30;
const TAIL_CHARS = 3000;
const LINE_CHARS = 500;

/** The options of a lane whose image is a project's. */
export type ProjectOptions = ResolvedOptions & { readonly image: SettledProject };

export interface Bounds {
  /** After how many seconds there must be an image. Default: as long as it takes, which has bounds of its own. */
  readonly seconds?: number | undefined;
  readonly queueTimeoutSeconds?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** What `prepareImage` has come to. */
export interface PreparedImage {
  /** Id of the project's image. */
  readonly image: string;
  /** Id of the image that it is derived from. */
  readonly parent: string;
  /** Whether this call has made it. */
  readonly made: boolean;
  /** How long this call has taken. */
  readonly seconds: number;
}

interface Found {
  readonly parent: string;
  readonly image?: string;
  readonly claimed: boolean;
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** A line of the guest's, made safe to show. */
function shown(line: string): string {
  return line
    .replace(/\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)/g, "")
    .replace(/[\0-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+/g, " ")
    .trimEnd()
    .slice(0, LINE_CHARS);
}

/** Who makes an image in this process, by project and key: a setup that fails has failed for all who wait for it. */
const making = new Map<string, Promise<unknown>>();

class Preparation {
  readonly #begun = performance.now();
  readonly #controller = new AbortController();
  readonly #tail: string[] = [];
  #step: LanePreparingEvent["step"] = "waiting";
  #doing = "";
  #lane: string | undefined;
  #toldAt = -Infinity;
  #late = false;

  constructor(
    readonly engine: Engine,
    readonly options: ProjectOptions,
    readonly bounds: Bounds,
    readonly files: readonly InputFile[],
    readonly keys: { readonly project: string; readonly inputsKey: string },
  ) {}

  get seconds(): number {
    return (performance.now() - this.#begun) / 1000;
  }

  async run(): Promise<PreparedImage> {
    const { signal, seconds } = this.bounds;
    const onAbort = (): void => this.#controller.abort();
    signal?.addEventListener("abort", onAbort, { once: true });
    const late = (): void => {
      this.#late = true;
      this.#controller.abort();
    };
    const timer = seconds === undefined ? undefined : setTimeout(late, seconds * 1000);
    const beat = setInterval(() => this.#heartbeat(), SILENT_MS);
    beat.unref();
    try {
      return await this.#find();
    } finally {
      clearInterval(beat);
      clearTimeout(timer);
      signal?.removeEventListener("abort", onAbort);
    }
  }

  async #find(): Promise<PreparedImage> {
    const params = await this.#params();
    for (;;) {
      this.#check();
      const request = this.engine.start<Found>("imageDerived", params);
      const { image, parent, claimed } = await request.done;
      if (image !== undefined) return { image, parent, made: false, seconds: this.seconds };
      if (!claimed) {
        await this.#wait();
        continue;
      }
      try {
        return { image: await this.#alone(parent), parent, made: true, seconds: this.seconds };
      } finally {
        await this.engine.request("imageUnclaim", { claim: request.id }).catch(() => undefined); // it goes with the engine
      }
    }
  }

  async #params(): Promise<{ readonly [key: string]: NativeValue }> {
    const { home, limactlPath, allowUnknownLima, imageKeys, image } = this.options;
    const from = image.extends?.startsWith("/") === true ? image.extends : undefined;
    const imageDigests = imageKeys === undefined ? undefined : await signedDigests(this.engine, { home }, imageKeys, from);
    return { home, limactlPath, allowUnknownLima, image: image.extends, imageDigests, ...this.keys, claim: true };
  }

  // ---- waiting ----

  get #name(): string {
    return [this.options.home, this.options.image.extends, this.keys.project, this.keys.inputsKey].join("\0");
  }

  async #alone(parent: string): Promise<string> {
    const work = this.#make(parent);
    making.set(this.#name, work);
    try {
      return await work;
    } finally {
      making.delete(this.#name);
    }
  }

  async #wait(): Promise<void> {
    const { timeoutMinutes } = this.options.image;
    this.#say("waiting", "another lane or process is making this image");
    if (this.seconds > (timeoutMinutes + LIFE_MINUTES) * 60)
      throw this.#notReady(`another process has been making it for ${Math.round(this.seconds / 60)} minutes`);
    const other = making.get(this.#name)?.catch((error: unknown) => {
      // What ended the other for reasons of its own is no reason for us.
      if (error instanceof LaneError && error.code === "SETUP_FAILED") throw error;
    });
    await Promise.race([other ?? sleep(POLL_MS), sleep(POLL_MS)]);
  }

  // ---- making ----

  async #make(parent: string): Promise<string> {
    const { image: project, ...options } = this.options;
    this.#say("lane", `its setup runs once, in a lane of its own, from image ${parent}`);
    const left = this.bounds.seconds === undefined ? Infinity : Math.floor(this.bounds.seconds - this.seconds);
    const own: LaneOptions = {
      ...options,
      image: parent,
      env: {},
      network: project.network,
      timeoutMinutes: project.timeoutMinutes + LIFE_MINUTES,
      startTimeoutSeconds: Math.max(5, Math.min(options.startTimeoutSeconds, left)),
      copyOutRoot: undefined,
      onEvent: (event) => this.#fromLane(event),
    };
    const { queueTimeoutSeconds } = this.bounds;
    let lane: Lane | undefined;
    try {
      lane = await openLane(own, { queueTimeoutSeconds, engine: this.engine });
      this.#lane = lane.name;
      this.#check();
      await this.#copyInputs(lane);
      await this.#setUp(lane, project);
      return await this.#save(lane);
    } catch (error) {
      this.#check(); // an end that was asked for is told as that
      throw error;
    } finally {
      await lane?.close();
    }
  }

  async #copyInputs(lane: Lane): Promise<void> {
    this.#say("inputs", `copying ${this.files.length} input files`);
    const own = await mkdtemp(join(tmpdir(), "agent-lane-inputs-"));
    const stage = join(own, "inputs"); // as it is to be in the guest; on the host `own` keeps others out
    try {
      await mkdir(stage);
      for (const { name, executable, data } of this.files) {
        const path = join(stage, name);
        await mkdir(dirname(path), { recursive: true });
        await writeFile(path, data);
        await chmod(path, executable ? 0o755 : 0o644);
      }
      await chmod(stage, 0o755);
      await lane.copyIn(stage, SETUP_DIR, { signal: this.#controller.signal });
    } finally {
      await rm(own, { recursive: true, force: true });
    }
  }

  async #setUp(lane: Lane, { setup, env, timeoutMinutes, network }: SettledProject): Promise<void> {
    this.#say("setup", "the setup has begun");
    const onLine = (line: string): void => this.#heard(line);
    const hint = network === "none" ? "; it had no network (image.network)" : "";
    try {
      const { exitCode } = await lane.exec(`set -e\n${setup}`, {
        cwd: SETUP_DIR,
        env,
        onLine,
        onStderrLine: onLine,
        leaveDaemons: false,
        timeoutMs: timeoutMinutes * 60_000,
        signal: this.#controller.signal,
      });
      if (exitCode !== 0) throw this.#failed(`ended with status ${exitCode} after ${Math.round(this.seconds)} s${hint}`);
    } catch (error) {
      if (!(error instanceof LaneError) || error.code !== "TIMEOUT") throw error;
      throw this.#failed(`was not done within timeoutMinutes (${timeoutMinutes})${hint}`);
    }
  }

  async #save(lane: Lane): Promise<string> {
    this.#say("saving", "the setup is done; its disk becomes the image");
    const rest = await lane.exec(SETTLE, { sudo: true, cwd: "/", timeoutMs: SETTLE_MS });
    if (rest.exitCode !== 0)
      throw new LaneError({
        code: "DERIVE_FAILED",
        message: `the guest did not come to rest after the setup: ${shown(rest.stderr) || `status ${rest.exitCode}`}`,
        cure: "See the message, and prepare the image again.",
        lane: lane.name,
      });
    const { image } = await this.engine.request<{ image: string }>("derive", { lane: lane.name, ...this.keys });
    this.#say("ready", `image ${image}`);
    return image;
  }

  // ---- words ----

  /** Throws when it is to end. */
  #check(): void {
    const { signal } = this.bounds;
    if (signal?.aborted === true) throw aborted("prepareImage", this.#lane ?? "", signal.reason);
    if (this.#late) throw this.#notReady(this.#doing);
  }

  #notReady(doing: string): LaneError {
    const within = this.bounds.seconds === undefined ? "" : ` within the ${Math.round(this.bounds.seconds)} s that a lane may take to start`;
    const message = `the image of project ${projectName(this.options.image)} was not ready${within}: ${doing}`;
    return new LaneError({ code: "IMAGE_NOT_READY", message, cure: OWN_ERRORS.IMAGE_NOT_READY.cure, lane: this.#lane });
  }

  #failed(how: string): LaneError {
    const tail = this.#tail.join("\n").slice(-TAIL_CHARS);
    const said = tail === "" ? ", without a word" : `; the last of its output:\n${tail}\n`;
    return new LaneError({
      code: "SETUP_FAILED",
      message: `the setup of project ${projectName(this.options.image)} ${how}${said}`,
      cure: OWN_ERRORS.SETUP_FAILED.cure,
      lane: this.#lane,
      stdout: tail,
    });
  }

  #heard(line: string): void {
    const text = shown(line);
    if (text === "") return;
    this.#tail.push(text);
    if (this.#tail.length > TAIL_LINES) this.#tail.shift();
    this.#doing = text;
    if (performance.now() - this.#toldAt >= TOLD_MS) this.#tell(text);
  }

  #heartbeat(): void {
    if (this.#doing !== "" && performance.now() - this.#toldAt >= SILENT_MS - 100) this.#tell(this.#doing);
  }

  #say(step: LanePreparingEvent["step"], doing: string): void {
    const again = step === this.#step && doing === this.#doing;
    this.#step = step;
    this.#doing = doing;
    if (!again) this.#tell(doing);
  }

  #tell(message: string): void {
    this.#toldAt = performance.now();
    const { image, onEvent } = this.options;
    tell(onEvent, {
      type: "preparing",
      project: projectName(image),
      step: this.#step,
      timeMs: Math.round(this.seconds * 1000),
      message,
      ...(this.#lane === undefined ? {} : { lane: this.#lane }),
    });
  }

  /** The states of the setup's lane are ours; what else it says is for the listener as it is. */
  #fromLane(event: LaneEvent): void {
    if (event.type === "notice" || event.type === "warning" || event.type === "stuck" || event.type === "close-failed")
      return tell(this.options.onEvent, event);
    if (event.type === "preparing" || event.type === "closing" || event.type === "closed") return;
    this.#lane = event.lane;
    if (this.#step === "lane") this.#say("lane", `its lane is ${event.type}${event.message === undefined ? "" : `: ${event.message}`}`);
  }
}

/** The image of the project, made when there is none. Rejects with IMAGE_NOT_READY, SETUP_FAILED, or what a lane's errors are. */
export async function projectImage(options: ProjectOptions, bounds: Bounds = {}, engine: Engine = sharedEngine()): Promise<PreparedImage> {
  const files = await readInputs(options.image);
  const keys = { project: await projectDigest(options.image), inputsKey: inputsKey(options.image, files, options) };
  return new Preparation(engine, options, bounds, files, keys).run();
}

const NAMES = [...OPTION_NAMES, "queueTimeoutSeconds"];

/**
 * Makes the image of a project ahead of time, with the options that `lima()` or `createLane()` will have; when it is there
 * already, this takes milliseconds. Unlike a lane of Sandcastle's, which has 120 s to start, it takes the time that the
 * setup takes (`image.timeoutMinutes`).
 *
 * ```ts
 * const options = { image: { extends: "docker", setup: "npm ci", inputs: ["package.json", "package-lock.json"] } };
 * await prepareImage(options);
 * await run({ sandbox: lima(options), … });
 * ```
 *
 * `queueTimeoutSeconds` is that of `createLane()`. Rejects with SETUP_FAILED (nothing is left then), DERIVE_FAILED, ABORTED, and
 * with what `createLane()` rejects with.
 */
export async function prepareImage(
  options: LimaOptions & { readonly queueTimeoutSeconds?: number | undefined },
  { signal }: { readonly signal?: AbortSignal | undefined } = {},
): Promise<PreparedImage> {
  checkSignal(signal);
  const { image, ...resolved } = resolveOptions(options, NAMES);
  if (typeof image !== "object") throw badOption("prepareImage() needs the option image as an object with a setup");
  const { queueTimeoutSeconds } = options;
  checkQueueTime(queueTimeoutSeconds);
  const told = whence(prepareImage);
  try {
    return await projectImage({ ...resolved, image }, { signal, queueTimeoutSeconds });
  } catch (error) {
    throw told(error);
  }
}
