// SPDX-License-Identifier: Apache-2.0
// Attacks inside the lane: a program for its Python, run as root, whose answer is bounded and parsed strictly.
import type { Lane } from "../lane.js";
import { LaneError, wordsOf } from "../errors.js";
import { token } from "./canary.js";

/** What the guest answered, or why nothing can be made of it. */
export type Answered<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly why: string; readonly details: readonly string[] };

const ANSWER_MAX = 1 << 20;
const ATTACK_MS = 60_000;

// An attack may fill the memory or change the network: it refuses to run on anything but a lane.
const FRAME = String.raw`
import json, os, sys
A = json.loads(os.environ.pop("AL_VERIFY"))
def answer(value):
    sys.stdout.write(json.dumps({"nonce": A["nonce"], "value": value}) + "\n")
if not os.path.isdir("/run/agent-lane") or os.path.exists("/run/agent-lane/no-verify"):
    answer({"refused": "this is no lane"})
    sys.exit(0)
`;

const isRecord = (v: unknown): v is Readonly<Record<string, unknown>> => typeof v === "object" && v !== null && !Array.isArray(v);

/** Kinds of the answer's members. What has others, too few or too many is no answer. */
export type Kind = "text" | "texts" | "number" | "map of texts";

function fits(value: unknown, kind: Kind): boolean {
  switch (kind) {
    case "text":
      return typeof value === "string";
    case "texts":
      return Array.isArray(value) && value.every((v) => typeof v === "string");
    case "number":
      return typeof value === "number" && Number.isFinite(value);
    case "map of texts":
      return isRecord(value) && Object.values(value).every((v) => typeof v === "string");
  }
}

/** What `parse` makes of an answer's text: one line with the nonce, then the members that were asked for. */
export function parseAnswer<T>(text: string, nonce: string, shape: Readonly<Record<string, Kind>>): Answered<T> {
  const bad = (why: string): Answered<T> => ({ ok: false, why, details: [text.slice(0, 400)] });
  if (text.length > ANSWER_MAX) return bad("the guest's answer is too long");
  const lines = text.split("\n");
  if (lines.length !== 2 || lines[1] !== "") return bad("the guest's answer is not one line");
  let all: unknown;
  try {
    all = JSON.parse(lines[0] ?? "");
  } catch {
    return bad("the guest's answer is not JSON");
  }
  if (!isRecord(all) || Object.keys(all).sort().join() !== "nonce,value" || all["nonce"] !== nonce)
    return bad("the guest's answer is not the one that was asked for");
  const value = all["value"];
  if (isRecord(value) && value["refused"] !== undefined) return bad(`the attack did not run: ${wordsOf(value["refused"])}`);
  if (!isRecord(value) || Object.keys(value).sort().join() !== Object.keys(shape).sort().join())
    return bad("the guest's answer has other members than those that were asked for");
  const wrong = Object.entries(shape).find(([name, kind]) => !fits(value[name], kind));
  if (wrong !== undefined) return bad(`the guest's answer has a wrong ${wrong[0]}`);
  return { ok: true, value: value as T };
}

/**
 * Runs `code` (Python; it has A, the arguments, and calls answer once) as root of the guest. Whatever the guest says, this
 * ends within a minute and takes at most 1 MiB.
 */
export async function attack<T>(
  lane: Lane,
  code: string,
  args: Readonly<Record<string, unknown>>,
  shape: Readonly<Record<string, Kind>>,
): Promise<Answered<T>> {
  const nonce = token();
  try {
    const r = await lane.exec("exec python3 -I -", {
      sudo: true,
      cwd: "/",
      stdin: FRAME + code,
      env: { AL_VERIFY: JSON.stringify({ ...args, nonce }) },
      timeoutMs: ATTACK_MS,
      maxOutputBytes: ANSWER_MAX,
    });
    if (r.exitCode === 127) return { ok: false, why: "the image has no python3, which the attacks are written in", details: [] };
    if (r.exitCode !== 0) return { ok: false, why: `the attack ended with status ${r.exitCode}`, details: [r.stderr.slice(-400)] };
    return parseAnswer<T>(r.stdout, nonce, shape);
  } catch (error) {
    const code = error instanceof LaneError ? error.code : "an error";
    return { ok: false, why: `the attack ended with ${code}`, details: [wordsOf(error)] };
  }
}
