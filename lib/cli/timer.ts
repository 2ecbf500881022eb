// SPDX-License-Identifier: Apache-2.0
// The timer that reaps without anybody: a systemd user timer or a launchd agent, which runs a copy of this package that
// lies below the home and needs no project.
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { basename, dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { LaneError, OWN_ERRORS, wordsOf } from "../errors.js";
import { packageDir } from "../native.js";

/** How long systemctl or launchctl may take. */
const CALL_MS = 15_000;
const EVERY_MINUTES = 10;
const BOOTSTRAP_TRIES = 5;
const BOOTSTRAP_PAUSE_MS = 500;

export interface Place {
  /** Agent Lane's directory, resolved. */
  readonly home: string;
  readonly limactl: string | undefined;
  readonly platform?: NodeJS.Platform;
}

function failed(message: string, cause?: unknown): LaneError {
  return new LaneError({ code: "TIMER_FAILED", message, cure: OWN_ERRORS.TIMER_FAILED.cure, cause });
}

/** One timer for each home. */
const nameOf = (home: string): string => `agent-lane-reap-${createHash("sha256").update(home).digest("hex").slice(0, 8)}`;
const copyOf = (home: string): string => join(home, "reaper");

/** Runs a program of the system; rejects with what it said. */
function call(program: string, args: readonly string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    execFile(program, args, { timeout: CALL_MS, killSignal: "SIGKILL", encoding: "utf8" }, (error, _out, err) => {
      if (error === null) return resolve();
      const said = err.trim().split("\n").at(-1) ?? "";
      const why =
        error.code === "ENOENT" ? "it is not installed" : error.killed === true ? `no answer within ${CALL_MS / 1000} s` : said || error.message;
      reject(failed(`${[program, ...args].join(" ")}: ${why}`, error));
    });
  });
}

/** The whole file or none of it. */
function writeWhole(path: string, text: string): void {
  mkdirSync(dirname(path), { recursive: true });
  const aside = `${path}.${process.pid}.tmp`;
  try {
    writeFileSync(aside, text, { mode: 0o644, flag: "wx" });
    renameSync(aside, path);
  } finally {
    rmSync(aside, { force: true });
  }
}

function findPackage(name: string, from: string): string {
  for (let dir = from; ; dir = dirname(dir)) {
    const found = join(dir, "node_modules", name);
    if (existsSync(join(found, "package.json"))) return found;
    if (dir === dirname(dir)) throw failed(`the package ${name}, which the command needs, was not found from ${from}`);
  }
}

const needs = (dir: string): string[] => {
  const text = readFileSync(join(dir, "package.json"), "utf8");
  return Object.keys((JSON.parse(text) as { dependencies?: object }).dependencies ?? {});
};

/** Puts what the package in `source` needs beside it; two versions of one package go where each is found. */
function copyNeeds(source: string, place: string, top: string, placed: Map<string, string>): void {
  for (const name of needs(source)) {
    const found = findPackage(name, source);
    const known = placed.get(name);
    if (known === found) continue;
    const target = join(known === undefined ? top : place, "node_modules", name);
    placed.set(name, known ?? found);
    cpSync(found, target, { recursive: true, dereference: true, filter: (path) => path === found || basename(path) !== "node_modules" });
    copyNeeds(found, target, top, placed);
  }
}

/** A copy of this package that runs the command: built aside, then put in place of an older one. */
function installCopy(home: string): string {
  const place = copyOf(home), aside = `${place}.${process.pid}.tmp`, old = `${place}.${process.pid}.old`;
  try {
    rmSync(aside, { recursive: true, force: true });
    mkdirSync(aside, { mode: 0o700 });
    for (const part of ["dist", "prebuilds", "package.json"]) cpSync(join(packageDir, part), join(aside, part), { recursive: true, dereference: true });
    copyNeeds(packageDir, aside, aside, new Map());
    if (existsSync(place)) renameSync(place, old);
    renameSync(aside, place);
  } catch (error) {
    throw error instanceof LaneError ? error : failed(`the copy in ${place} could not be made: ${wordsOf(error)}`, error);
  } finally {
    for (const rest of [aside, old]) rmSync(rest, { recursive: true, force: true });
  }
  return join(place, "dist", "cli", "main.js");
}

function commandLine({ home, limactl }: Place): string[] {
  const words = [process.execPath, join(copyOf(home), "dist", "cli", "main.js"), "reap", "--home", home];
  return limactl === undefined ? words : [...words, "--limactl", limactl];
}

// ---- systemd ----

const quoted = (word: string): string => `"${word.replace(/[\\"]/g, "\\$&").replaceAll("%", "%%")}"`;

function units(place: Place): Record<string, string> {
  const name = nameOf(place.home);
  const what = `Agent Lane: destroy lanes whose owner is gone (${place.home.replaceAll("%", "%%")})`;
  return {
    [`${name}.service`]: `[Unit]
Description=${what}

[Service]
Type=oneshot
ExecStart=${commandLine(place).map((word) => quoted(word).replaceAll("$", "$$$$")).join(" ")}
Environment=${quoted(`PATH=${process.env["PATH"] ?? "/usr/local/bin:/usr/bin:/bin"}`)}
TimeoutStartSec=600
`,
    [`${name}.timer`]: `[Unit]
Description=${what}

[Timer]
OnStartupSec=1min
OnUnitActiveSec=${EVERY_MINUTES}min

[Install]
WantedBy=timers.target
`,
  };
}

const unitDir = (): string => {
  const config = process.env["XDG_CONFIG_HOME"] ?? "";
  return join(config.startsWith("/") ? config : join(homedir(), ".config"), "systemd", "user");
};

const systemctl = (...args: string[]): Promise<void> => call("systemctl", ["--user", "--no-ask-password", ...args]);

async function installSystemd(place: Place): Promise<string> {
  const name = nameOf(place.home);
  // Before anything is written: without a user's systemd there is nobody who would run it.
  await systemctl("show-environment");
  installCopy(place.home);
  for (const [file, text] of Object.entries(units(place))) writeWhole(join(unitDir(), file), text);
  await systemctl("daemon-reload");
  await systemctl("enable", "--now", `${name}.timer`);
  return join(unitDir(), `${name}.timer`);
}

async function uninstallSystemd(place: Place): Promise<boolean> {
  const files = Object.keys(units(place)).map((file) => join(unitDir(), file)).filter(existsSync);
  if (files.length > 0) {
    // Stopped first; one that is not running, or a systemd that is not there, keeps no file alive.
    const stopped = await systemctl("disable", "--now", `${nameOf(place.home)}.timer`).then(() => true, () => false);
    for (const file of files) rmSync(file, { force: true });
    if (stopped) await systemctl("daemon-reload");
  }
  return files.length > 0;
}

// ---- launchd ----

const label = (home: string): string => nameOf(home).replace(/^agent-lane-/, "com.agent-lane.");
const plistOf = (home: string): string => join(homedir(), "Library", "LaunchAgents", `${label(home)}.plist`);
const domain = (): string => `gui/${process.getuid?.() ?? 0}`;
const xml = (text: string): string => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

function plist(place: Place): string {
  const words = commandLine(place).map((word) => `    <string>${xml(word)}</string>`);
  return `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>${label(place.home)}</string>
  <key>ProgramArguments</key>
  <array>
${words.join("\n")}
  </array>
  <key>EnvironmentVariables</key>
  <dict>
    <key>PATH</key>
    <string>${xml(process.env["PATH"] ?? "/usr/local/bin:/usr/bin:/bin")}</string>
  </dict>
  <key>ProcessType</key>
  <string>Background</string>
  <key>RunAtLoad</key>
  <true/>
  <key>StartInterval</key>
  <integer>${EVERY_MINUTES * 60}</integer>
</dict>
</plist>
`;
}

async function installLaunchd(place: Place): Promise<string> {
  const file = plistOf(place.home);
  await call("launchctl", ["print", domain()]);
  installCopy(place.home);
  writeWhole(file, plist(place));
  const service = `${domain()}/${label(place.home)}`;
  await call("launchctl", ["bootout", service]).catch(() => undefined); // an older one
  await call("launchctl", ["enable", service]); // else one that was disabled by hand once stays so
  // bootout answers before the older one has ended; until then bootstrap fails ("5: Input/output error").
  for (let tries = BOOTSTRAP_TRIES; ; await sleep(BOOTSTRAP_PAUSE_MS)) {
    const error = await call("launchctl", ["bootstrap", domain(), file]).then(() => undefined, (thrown: unknown) => thrown);
    if (error === undefined) return file;
    if (--tries === 0) throw error;
  }
}

async function uninstallLaunchd(place: Place): Promise<boolean> {
  const file = plistOf(place.home);
  if (!existsSync(file)) return false;
  await call("launchctl", ["bootout", `${domain()}/${label(place.home)}`]).catch(() => undefined);
  rmSync(file, { force: true });
  return true;
}

/** Sets the timer up, or anew. Resolves with the file that describes it. */
export async function installTimer(place: Place): Promise<string> {
  try {
    return await ((place.platform ?? process.platform) === "darwin" ? installLaunchd(place) : installSystemd(place));
  } catch (error) {
    await uninstallTimer(place).catch(() => undefined); // half a timer is none
    throw error instanceof LaneError ? error : failed(wordsOf(error), error);
  }
}

/** Removes exactly what installTimer has put there. Resolves with whether there was anything. */
export async function uninstallTimer(place: Place): Promise<boolean> {
  try {
    const had = await ((place.platform ?? process.platform) === "darwin" ? uninstallLaunchd(place) : uninstallSystemd(place));
    const copied = existsSync(copyOf(place.home));
    rmSync(copyOf(place.home), { recursive: true, force: true });
    return had || copied;
  } catch (error) {
    throw error instanceof LaneError ? error : failed(wordsOf(error), error);
  }
}
