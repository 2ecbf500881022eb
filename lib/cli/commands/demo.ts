// SPDX-License-Identifier: Apache-2.0
// agent-lane demo: one lane from its start to its end, in a dozen lines with times, and what it shows of the boundary.
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { homedir, release, tmpdir, type as systemName } from "node:os";
import { join } from "node:path";
import { Option, type Command } from "commander";
import { createLane } from "../../create.js";
import { engine } from "../../engine.js";
import type { Lane } from "../../lane.js";
import { duration } from "../../reporter.js";
import { plantPost, token } from "../../verify/canary.js";
import { processesNaming } from "../../verify/host.js";
import { interruptible, type Interrupt } from "../interrupt.js";
import { bytes, colours, columnsOf, plain, print, printJson, prose } from "../output.js";
import { LaneProgress } from "../progress.js";
import { addCommon, type CommonOptions } from "./common.js";

interface DemoOptions extends CommonOptions {
  readonly network: "open" | "none";
  readonly image?: string;
  readonly accelerator: "auto" | "tcg";
  readonly transport: "auto" | "shell" | "port";
  readonly allowUnknownLima?: boolean;
  readonly worktreePath?: string;
  readonly json?: boolean;
}

interface Step {
  readonly seconds: number;
  readonly what: string;
  readonly seen: string;
  /** Whether it is as it should be; null: it is only told. */
  readonly ok: boolean | null;
}

const START_SECONDS = 180;
const ASK_MS = 60_000;
const SAID_MAX = 200;
const GATEWAY = "192.168.5.2";
const OUTSIDE = "1.1.1.1 443";

/** "ADDRESS PORT" lines of those that answered. */
const KNOCK = `for to in "$@"; do
  { timeout 3 bash -c 'exec 3<>"/dev/tcp/$0/$1"' $to 2>/dev/null && echo "$to" & }
done
wait
`;

class Demo {
  readonly steps: Step[] = [];
  readonly #options: DemoOptions;
  readonly #interrupt: Interrupt;
  readonly #begun = performance.now();
  readonly #progress: LaneProgress;
  readonly #dir = mkdtempSync(join(tmpdir(), "agent-lane-demo-"));

  constructor(options: DemoOptions, interrupt: Interrupt) {
    this.#options = options;
    this.#interrupt = interrupt;
    this.#progress = new LaneProgress("auto");
  }

  #tell(what: string, seen: string, ok: boolean | null = null): void {
    const seconds = Math.round((performance.now() - this.#begun) / 100) / 10;
    this.#progress.waiting.off();
    this.steps.push({ seconds, what, seen: plain(seen), ok });
    if (this.#options.json === true) return;
    const text = ok === null ? plain(seen) : ok ? colours.green(plain(seen)) : colours.red(plain(seen));
    print(prose(`${duration(seconds * 1000).padStart(9)}  ${what.padEnd(14)} `, text, columnsOf(process.stdout)));
  }

  /** What a command of the guest's says, as one short line. */
  async #ask(lane: Lane, script: string, args: readonly string[] = []): Promise<string> {
    const words = args.map((arg) => `'${arg.replaceAll("'", "'\\''")}'`).join(" ");
    const options = { timeoutMs: ASK_MS, maxOutputBytes: 65_536, signal: this.#interrupt.signal };
    const { stdout } = await lane.exec(`set -- ${words}\n${script}`, options);
    return stdout.trim().replaceAll("\n", ", ").slice(0, SAID_MAX);
  }

  async run(): Promise<boolean> {
    const { home, limactl, network, image, accelerator, transport, allowUnknownLima, worktreePath } = this.#options;
    let lane: Lane | undefined;
    try {
      lane = await createLane({
        home, limactlPath: limactl, network, image, accelerator, transport, allowUnknownLima, worktreePath,
        cpus: 1, memoryGiB: 1, timeoutMinutes: 15, startTimeoutSeconds: START_SECONDS, queueTimeoutSeconds: 3600,
        onEvent: this.#progress.event,
      });
      this.#interrupt.endsBySignal();
      this.#interrupt.signal.throwIfAborted();
      const facts = [lane.facts["image"], lane.facts["accelerator"]].map(plain).filter((fact) => fact !== "");
      this.#tell("a lane", `${lane.name} is ready: ${[...facts, `network "${network}"`].join(", ")}`);
      await this.#inside(lane);
      await this.#files(lane);
      await this.#end(lane);
    } finally {
      await lane?.close();
      this.#progress.waiting.off();
      rmSync(this.#dir, { recursive: true, force: true });
    }
    return this.steps.every(({ ok }) => ok !== false);
  }

  async #inside(lane: Lane): Promise<void> {
    this.#tell("its kernel", `${await this.#ask(lane, "uname -sr")}; this machine's is ${systemName()} ${release()}`);
    this.#tell("its user", await this.#ask(lane, 'echo "$(id -un)$(sudo -n id -u 2>/dev/null | sed "s/^0$/, who may become root in there/")"'));
    const canary = join(this.#dir, "canary");
    writeFileSync(canary, token());
    const there = await this.#ask(lane, 'for p in "$@"; do [ ! -e "$p" ] || echo "$p"; done', [homedir(), canary]);
    this.#tell("your files", there === "" ? "your home directory and a file planted beside it are not there" : `THERE: ${there}`, there === "");
    await this.#docker(lane);
    await this.#network(lane);
  }

  async #docker(lane: Lane): Promise<void> {
    const found = await this.#ask(lane, 'for s in /var/run/docker.sock /run/docker.sock "$SSH_AUTH_SOCK" "$DOCKER_HOST"; do [ -n "$s" ] && [ -e "$s" ] && [ -z "$(pgrep -x dockerd)" ] && echo "$s"; done');
    this.#tell("your sockets", found === "" ? "no Docker socket and no ssh agent of yours" : `THERE: ${found}`, found === "");
  }

  async #network(lane: Lane): Promise<void> {
    const open = this.#options.network === "open";
    const post = await plantPost("demo", "127.0.0.1");
    try {
      const targets = [...(post === undefined ? [] : [`${GATEWAY} ${post.port}`, `127.0.0.1 ${post.port}`]), OUTSIDE];
      const answered = await this.#ask(lane, KNOCK, targets);
      const visits = post?.tcp.hits.length ?? 0;
      const silent = answered === "" && visits === 0;
      const words = silent ? "nothing answers: neither a service planted on this machine nor the internet" : `${answered || "a service planted on this machine"} can be reached`;
      this.#tell("the network", open ? `${words}, as network "open" allows` : words, open ? null : silent);
    } finally {
      post?.tcp.close();
      post?.udp.close();
    }
  }

  async #files(lane: Lane): Promise<void> {
    const { signal } = this.#interrupt;
    const input = join(this.#dir, "hello.txt"), output = join(this.#dir, "back.txt");
    writeFileSync(input, "hello from this machine\n");
    const guest = `${lane.worktreePath}/hello.txt`;
    const sent = await lane.copyIn(input, guest, { signal });
    this.#tell("a file in", `hello.txt, ${bytes(sent.bytes)}`);
    const size = await this.#ask(lane, 'echo "hello from $(uname -n)" >>"$1"; wc -c <"$1"', [guest]);
    this.#tell("a change", `the guest added a line: ${size} B now`);
    const got = await lane.copyFileOut(guest, output, { signal });
    const whole = readFileSync(output, "utf8").startsWith("hello from this machine\n");
    this.#tell("a file out", `hello.txt, ${bytes(got.bytes)}, checked and put in place whole`, whole);
  }

  async #end(lane: Lane): Promise<void> {
    const home = String(lane.facts["home"]);
    this.#progress.step("closing the lane");
    await lane.close();
    const rows = await engine().request<readonly Readonly<Record<string, unknown>>[]>("list", { home: this.#options.home });
    const left = [
      processesNaming(join(home, "lima", lane.name) + "/").length,
      existsSync(join(home, "lima", lane.name)) ? 1 : 0,
      rows.filter((row) => row["name"] === lane.name).length,
    ] as const;
    this.#tell("the end", `closed; left over: ${left[0]} processes, ${left[1]} directories, ${left[2]} open rows`, left.every((n) => n === 0));
  }
}

async function demo(options: DemoOptions): Promise<void> {
  await interruptible(async (interrupt) => {
    const show = new Demo(options, interrupt);
    const ok = await show.run();
    process.exitCode = ok ? 0 : 1;
    if (options.json === true) return printJson({ ok, network: options.network, steps: show.steps });
    const last = ok ? "That is what the guest says, which proves nothing: agent-lane verify attacks a lane and counts what this machine saw." : `${colours.red("Something is not as it should be")}: agent-lane verify looks closer.`;
    print(`\n${prose("", last, columnsOf(process.stdout))}`);
  });
}

export function addDemo(program: Command): void {
  addCommon(program.command("demo"), { limactl: true })
    .description("show one lane from its start to its end, in a dozen lines with times")
    .addOption(new Option("--network <network>", "the network of the lane").choices(["none", "open"]).default(process.platform === "darwin" ? "open" : "none", "none; open on macOS"))
    .option("--image <image>", "the image to start (name, id or directory; default: the newest)")
    .addOption(new Option("--accelerator <accelerator>", "as of lima()").choices(["auto", "tcg"]).default("auto"))
    .addOption(new Option("--transport <transport>", "as of lima()").choices(["auto", "shell", "port"]).default("auto"))
    .option("--allow-unknown-lima", "accept a limactl whose version cannot be read")
    .addOption(new Option("--worktree-path <path>", "as of lima()").hideHelp())
    .option("--json", "print one JSON object: {ok, network, steps: [{seconds, what, seen, ok}]}")
    .addHelpText(
      "after",
      "\nIt starts a small lane, looks around in it, copies a file in and out, and closes it. Exits 1 when something is not as it\n" +
        "should be: a file of yours that the guest sees, a service that it reaches, anything that is left.\n" +
        "\nExamples:\n  agent-lane demo\n  agent-lane demo --network open\n  agent-lane demo --json | jq .ok",
    )
    .action(demo);
}
