// SPDX-License-Identifier: Apache-2.0
// The edges of a lane's life and the victims, in the order in which a lane comes by: what scripts/chaos knows of both.

/**
 * { name, phase, text }. `phase`: who exists there. "row" nothing but the row; "directory" the instance, too; "boot" limactl
 * and soon the rest; "guest" the whole VM; "ready" the handle; "end" what destroy has left of it.
 */
export const EDGES = [
  { name: "registered", phase: "row", text: "the row is written" },
  { name: "creating", phase: "row", text: "before anything is built" },
  { name: "kept", phase: "row", text: "the keeper has confirmed it" },
  { name: "half-built", phase: "row", text: "_tmp.NAME is there, qemu-img runs" },
  { name: "built", phase: "directory", text: "the directory has its name" },
  { name: "verified", phase: "directory", text: "limactl has read it back" },
  { name: "booting", phase: "directory", text: "before limactl start" },
  { name: "started", phase: "boot", text: "limactl start runs" },
  { name: "port-open", phase: "guest", text: "QEMU's end of the channel is there" },
  { name: "transport", phase: "guest", text: "the guest has answered" },
  { name: "proven", phase: "guest", text: "the guest has proven the secret" },
  { name: "configured", phase: "guest", text: "worktree and sudo are set" },
  { name: "ready", phase: "guest", text: "the row says ready, the caller does not know" },
  { name: "exec", phase: "ready", text: "a command is in flight" },
  { name: "copy-in", phase: "ready", text: "a directory is being copied in" },
  { name: "claimed", phase: "ready", text: "close has its row" },
  { name: "cut", phase: "ready", text: "channel and boot are closed, nothing is destroyed yet" },
  { name: "inspected", phase: "ready", text: "stale pid files are gone" },
  { name: "deleting", phase: "ready", text: "limactl delete runs" },
  { name: "deleted", phase: "end", text: "limactl delete has ended" },
  { name: "swept", phase: "end", text: "no process is left" },
  { name: "removed", phase: "end", text: "no directory is left" },
  { name: "destroyed", phase: "end", text: "proven gone, the row is open" },
  { name: "row-closed", phase: "end", text: "the row is closed, the caller does not know" },
];
export const HOOKS = EDGES.map((e) => e.name);

/** Who is killed: by SIGKILL, but "owner-stop", which gets SIGSTOP and a short lifetime. */
export const VICTIMS = ["owner", "keeper", "both", "owner-stop", "warden", "limactl", "hostagent", "qemu", "ssh"];
/** The guest's part: "honest", or "hostile", whose lane agent stands still and whose clock is wrong. */
export const GUESTS = ["honest", "hostile"];
