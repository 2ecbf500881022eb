// SPDX-License-Identifier: Apache-2.0
// A process that owns one lane and does with it what people do: owner.mjs OPTIONS(JSON: options of createLane, guest, tree,
// alone). One JSON line for each thing that happens. Without `alone` it waits for the line "go" before it uses the lane
// and for "close" before it closes it.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { createLane } from "@agent-lane/provider-lima";

const { options, guest, tree, alone } = JSON.parse(process.argv[2]);
const say = (what, more = {}) => process.stdout.write(`${JSON.stringify({ what, ...more })}\n`);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
/** Until the driver says so. Beside that it may have root of the guest do something: "root COMMAND". */
const wait = async (line, lane) => {
  while (!alone) {
    const next = await lines.next();
    if (next.done) await sleep(2 ** 30); // the driver is gone; its end is not the owner's
    if (next.value === line) return;
    if (next.value.startsWith("root ")) lane.exec(next.value.slice(5), { cwd: "/", sudo: true }).catch(() => undefined);
  }
};

/** The lane agent stands still and so cannot power the guest off; the clock is years away. */
const HOSTILE = "date -s '1999-01-01'; (sleep 0.3; pkill -STOP -x agent) >/dev/null 2>&1 &";

async function use(lane) {
  const work = async () => {
    const { stdout } = await lane.exec("head -c 3000000 /dev/zero | wc -c", { cwd: "/" });
    if (stdout.trim() !== "3000000") throw new Error(`the guest said ${JSON.stringify(stdout)}`);
    await lane.copyIn(tree, "/home/agent/in");
  };
  if (guest === "honest") return work();
  // Nothing of this is ever answered.
  lane.exec("sleep 1", { cwd: "/" }).catch(() => undefined);
  lane.copyIn(tree, "/home/agent/in").catch(() => undefined);
  await sleep(1000);
}

try {
  const lane = await createLane({ ...options, onEvent: (e) => say("event", { type: e.type, lane: e.lane, message: e.message }) });
  if (guest === "hostile") {
    await lane.exec(HOSTILE, { cwd: "/", sudo: true });
    await sleep(700);
  }
  say("ready");
  await wait("go", lane);
  for (let i = 0; i < (alone ? 3 : 1); i++) await use(lane);
  say("went-on");
  await wait("close", lane);
  await lane.close();
  say("closed");
} catch (error) {
  say("ended", { code: error.code, message: error.message });
}
// What is left of this process ends it: nothing, or it hangs.
process.stdin.destroy();
