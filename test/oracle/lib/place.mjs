// SPDX-License-Identifier: Apache-2.0
// Where the product runs in a scenario: `lima` on real VMs in the user's own home, `agent` in a home of its own, with
// the real lane agent as a local process behind a scripted limactl. Also what a hostile or dying guest needs: its
// processes.
import { spawnSync } from "node:child_process";
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { makeImage, makePrograms } from "../../ts/support/image.mjs";
import { processesOf } from "./processes.mjs";

const scriptedLimactl = fileURLToPath(new URL("./limactl.mjs", import.meta.url));
const faultyLimactl = fileURLToPath(new URL("../bin/limactl-faulty", import.meta.url));

/** Makes the place below `scratch` and gives the environment that tells a scenario's process of it. */
export function makePlace(provider, scratch) {
  if (provider === "lima") return { AGENT_LANE_HOME: process.env.AGENT_LANE_HOME ?? join(homedir(), ".agent-lane") };
  if (provider !== "agent") return {};
  const home = join(scratch, "h"), bin = join(scratch, "bin");
  mkdirSync(home, { mode: 0o700 });
  mkdirSync(bin);
  chmodSync(bin, 0o755);
  const limactl = makePrograms(bin, scriptedLimactl);
  makeImage(join(scratch, "image"));
  // What the image sets for git, and nothing of this machine.
  writeFileSync(join(scratch, "gitconfig"), "[core]\n\tquotePath = false\n");
  return {
    AGENT_LANE_HOME: home,
    AGENT_LANE_LIMACTL: limactl,
    ORACLE_PLACE: scratch,
    PATH: `${bin}:${process.env.PATH}`,
  };
}

function agentLanes() {
  const scratch = process.env.ORACLE_PLACE;
  let n = 0, disk;
  return {
    options() {
      disk = join(scratch, `guest-${++n}`);
      return {
        worktreePath: join(disk, "workspace"),
        limactlPath: process.env.AGENT_LANE_LIMACTL,
        image: join(scratch, "image"),
        accelerator: "tcg",
        memoryGiB: 1,
      };
    },
    env() {
      const home = join(disk, "home");
      return {
        PATH: `${home}/.local/bin:/usr/local/bin:/usr/bin:/bin`,
        HOME: home,
        TMPDIR: disk,
        LANG: "C.UTF-8",
        GIT_CONFIG_SYSTEM: join(scratch, "gitconfig"),
      };
    },
    prepare(faults) {
      mkdirSync(join(disk, "home"), { recursive: true });
      const run = join(process.env.AGENT_LANE_HOME, "run");
      mkdirSync(run, { recursive: true, mode: 0o700 });
      writeFileSync(join(run, "oracle.json"), JSON.stringify({ ...faults, disk }));
    },
    guest: () => processesOf(disk),
  };
}

function realLanes() {
  const base = { cpus: 2, memoryGiB: 1.5, ...JSON.parse(process.env.ORACLE_LIMA_OPTIONS ?? "{}") };
  let name;
  return {
    options: (faults) => {
      if (!faults) return base;
      process.env.ORACLE_LIMACTL ??=
        process.env.AGENT_LANE_LIMACTL ??
        spawnSync("sh", ["-c", "command -v limactl"], { encoding: "utf8" }).stdout.trim();
      // The product gives limactl an environment of its own making, so the faults travel in the program's name.
      const file = join(dirname(process.env.TMPDIR), "limactl");
      const lines = Object.entries(faults).map(([verb, how]) => `${verb}=${how}`).join(" ");
      writeFileSync(file, `#!/bin/sh\nexec '${faultyLimactl}' '${process.env.ORACLE_LIMACTL}' '${lines}' "$@"\n`, {
        mode: 0o755,
      });
      return { ...base, limactlPath: file };
    },
    env: () => ({}),
    prepare: () => undefined,
    named: (lane) => (name = lane),
    guest: () => [Number(readFileSync(join(process.env.AGENT_LANE_HOME, "lima", name, "qemu.pid"), "utf8"))],
  };
}

/** The product as a maker of inner providers for logged(). `onLane` is told the name of each lane. */
export async function productProvider(provider, onLane) {
  const { lima } = await import("@agent-lane/provider-lima");
  const lanes = provider === "agent" ? agentLanes() : realLanes();
  const signal = (name) => () => lanes.guest().forEach((pid) => process.kill(pid, name));
  const make = ({ env, guestEnv, faults, product }) => ({
    env: env ?? {},
    create(options) {
      const onEvent = (event) => {
        if (event.type !== "creating") return;
        lanes.named?.(event.lane);
        onLane(event.lane);
      };
      const own = lanes.options(faults);
      lanes.prepare(faults);
      // The scenario's guestEnv stands for what an image sets; for a real lane it goes in with the run's environment.
      return lima({ ...own, ...product, onEvent }).create({
        ...options,
        env: { ...lanes.env(), ...guestEnv, ...options.env },
      });
    },
  });
  return Object.assign(make, { freezeGuest: signal("SIGSTOP"), killGuest: signal("SIGKILL") });
}
