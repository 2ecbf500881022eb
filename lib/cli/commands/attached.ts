// SPDX-License-Identifier: Apache-2.0
// A lane that another process owns, for the commands that use one: which one is meant, and the way into it.
import { engine } from "../../engine.js";
import { LaneError } from "../../errors.js";
import { plain } from "../output.js";
import { waited } from "../progress.js";
import { common, type CommonOptions } from "./common.js";

type Row = Readonly<Record<string, unknown>>;

/** The only lane that is ready, when none is named. */
async function onlyLane(options: CommonOptions): Promise<string> {
  const rows = await engine().request<readonly Row[]>("list", common(options));
  const ready = rows.filter((row) => row["state"] === "ready" && row["ownerAlive"] !== false).map((row) => plain(row["name"]));
  const [name] = ready;
  if (ready.length === 1 && name !== undefined) return name;
  throw new LaneError({
    code: "NO_SUCH_LANE",
    message:
      ready.length === 0 ? "there is no lane that is ready" : `${ready.length} lanes are ready: ${ready.join(", ")}`,
    cure: ready.length === 0 ? "See `agent-lane ls` for lanes that are starting." : "Name the one you mean.",
  });
}

/** Attaches to the lane of that name, or to the only one; `hint` is the cure for what looks like no name at all. */
async function attach(
  name: string | undefined,
  options: CommonOptions,
  hint: (name: string) => string,
): Promise<string> {
  const wanted = name ?? (await onlyLane(options));
  try {
    const way = engine().request<{ lane: string }>("attach", { ...common(options), lane: wanted });
    return (await waited(`entering ${wanted}`, way)).lane;
  } catch (error) {
    if (!(error instanceof LaneError) || error.code !== "BAD_NAME") throw error;
    throw new LaneError({ code: error.code, message: error.message, cure: `${error.cure} ${hint(wanted)}` });
  }
}

/** Does something in it, and leaves it however that ends. */
export async function attached<T>(
  name: string | undefined,
  options: CommonOptions,
  hint: (name: string) => string,
  work: (lane: string) => Promise<T>,
): Promise<T> {
  const lane = await attach(name, options, hint);
  try {
    return await work(lane);
  } finally {
    await engine().request("close", { lane }).catch(() => undefined);
  }
}
