// SPDX-License-Identifier: Apache-2.0
// Starts a lane: the create request, the lane's events, and what becomes of a lane whose handle is lost.
import { freemem, totalmem } from "node:os";
import { engine as sharedEngine, type Engine } from "./engine.js";
import { asLaneError, badOption } from "./errors.js";
import { tell, type LaneEvent } from "./events.js";
import { signedDigests } from "./images.js";
import { Lane, type NativeLane } from "./lane.js";
import { START_TIMEOUT_ADVISED, type ResolvedOptions } from "./options.js";
import { reachNow } from "./reach.js";
import { checkEnv } from "./rules.js";

/** What is known of a lane without its handle: nothing in here leads to that. */
interface Remains {
  readonly name: string;
  readonly engine: Engine;
  readonly onEvent: ResolvedOptions["onEvent"];
  readonly begun: number;
  readonly over: () => boolean;
}

/**
 * The last resort: an open lane whose handle nobody can reach any more is closed. That comes when the garbage collector
 * sees it, which may be late or never: lifetime, the sync-in watchdog and the process's end do not wait for it.
 */
const dropped = new FinalizationRegistry<Remains>(({ name, engine, onEvent, begun, over }) => {
  if (over() || engine.closed) return;
  const message = `the handle of ${name} was dropped without close; the lane is closed now`;
  tell(onEvent, { type: "warning", option: "handle", lane: name, timeMs: Date.now() - begun, message });
  engine
    .request("close", { lane: name, reason: "its handle was dropped" })
    .catch(() => undefined); // it is stuck, which its events say, or the process ends
});

export interface OpenOptions {
  /** Variables of the run, over those of the options. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** Whether a lane that never sees Sandcastle's sync-in counts as lost. */
  readonly syncInWatchdog?: boolean;
  /** How long to wait for a place; the start timeout then counts from there. Default: inside the start timeout. */
  readonly queueTimeoutSeconds?: number | undefined;
  readonly engine?: Engine;
}

/** What a lane is opened with: an image that is there. */
export type LaneOptions = Omit<ResolvedOptions, "image"> & { readonly image?: string | undefined };

const GIB = 2 ** 30;

/** A VM that cannot have its memory ends in the guest's or the host's OOM killer, long after the start. */
function checkMemory({ memoryGiB, onEvent }: LaneOptions): void {
  const text = (bytes: number): string => (bytes / GIB).toFixed(1);
  // A kernel keeps some for itself: a machine of 8 GiB says 7.7.
  if (memoryGiB > Math.ceil(totalmem() / GIB))
    throw badOption(`option memoryGiB is ${memoryGiB}, and this machine has ${text(totalmem())} GiB of memory in all`);
  // On macOS what is free says nothing about what can be had.
  if (memoryGiB * GIB <= freemem() || process.platform === "darwin") return;
  const message = `memoryGiB is ${memoryGiB}, and ${text(freemem())} GiB are available now: the VM may be killed for it`;
  tell(onEvent, { type: "warning", option: "memoryGiB", message });
}

/**
 * Starts a lane and resolves when it can be used. Rejects with a LaneError after everything of it has been removed
 * again.
 */
export async function openLane(
  options: LaneOptions,
  { env = {}, syncInWatchdog = false, queueTimeoutSeconds, engine = sharedEngine() }: OpenOptions = {},
): Promise<Lane> {
  checkEnv(env, "env");
  const { onEvent, env: ownEnv, copyOutRoot: _root, ...rest } = options;
  if (syncInWatchdog && options.startTimeoutSeconds > START_TIMEOUT_ADVISED) {
    const asked = `startTimeoutSeconds ${options.startTimeoutSeconds}`;
    const message = `${asked}: Sandcastle gives up after 120 s and then forgets the lane`;
    tell(onEvent, { type: "warning", option: "startTimeoutSeconds", message });
  }
  checkMemory(options);
  const begun = Date.now();
  const token = {};
  const letGo = (): void => void dropped.unregister(token);
  // The engine holds this for as long as the lane lives, so it must not hold the handle.
  let handle: WeakRef<Lane> | undefined;
  let ended: string | undefined;
  let id = 0;
  const onLane = (value: unknown): void => {
    const told = value as LaneEvent;
    const event = told.type === "ready" && options.network === "open" ? { ...told, reach: reachNow() } : told;
    if (event.type === "closed" || event.type === "stuck") {
      engine.forget(id);
      ended = event.message ?? "it has ended";
      handle?.deref()?.ended(ended);
      letGo();
    }
    tell(onEvent, event);
  };
  try {
    const { image, imageKeys: keys } = options;
    const from = image?.startsWith("/") === true ? image : undefined;
    const imageDigests = keys === undefined ? undefined : await signedDigests(engine, options, keys, from);
    const request = engine.start<NativeLane>(
      "create",
      {
        ...rest,
        imageDigests,
        env: { ...ownEnv, ...env },
        syncInTimeoutSeconds: syncInWatchdog ? options.syncInTimeoutSeconds : 0,
        queueTimeoutSeconds,
      },
      { onLane },
    );
    id = request.id;
    const native = await request.done;
    const lane = new Lane(engine, { ...options, env: { ...ownEnv, ...env } }, native, letGo);
    handle = new WeakRef(lane);
    dropped.register(lane, { name: native.lane, engine, onEvent, begun, over: () => ended !== undefined }, token);
    if (ended !== undefined) lane.ended(ended);
    return lane;
  } catch (thrown) {
    const error = asLaneError(thrown);
    // A lane that had a name says "closed" or "stuck" right after its error; without one nothing more comes.
    if (error.lane === undefined) engine.forget(id);
    throw error;
  }
}
