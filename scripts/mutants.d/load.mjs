// SPDX-License-Identifier: Apache-2.0
// Faults that show only under load or with several processes.
const bytes = { test: "ts:load", only: "no byte is mixed" };
const held = { test: "ts:load", only: "12000 commands" };
export default [
  { name: "a byte of output is lost", file: "src/chan_in.c", ...bytes,
    from: `if (!s->over) s->cbs.on_data(s, s->data, (int) sub, f->payload, f->len);`,
    to: `if (!s->over) s->cbs.on_data(s, s->data, (int) sub, f->payload, f->len - (f->len > 9000 && f->payload[0] == '7'));` },
  { name: "stdout and stderr are mixed", file: "src/agent/pump.c", ...bytes,
    from: `al_io_commit(s->id, AL_F_DATA, (uint8_t) sub, (uint32_t) got);`,
    to: `al_io_commit(s->id, AL_F_DATA, (uint8_t) (got == 700 ? AL_SUB_STDOUT : sub), (uint32_t) got);` },
  { name: "output is another command's", file: "src/agent/pump.c", ...bytes,
    from: `al_io_commit(s->id, AL_F_DATA, (uint8_t) sub, (uint32_t) got);`,
    to: `al_io_commit(got == 700 && s[1].state == AL_SLOT_RUN && s[1].fd[sub] >= 0 ? s[1].id : s->id, AL_F_DATA, (uint8_t) sub, (uint32_t) got);` },
  { name: "a command's own environment is left out", file: "src/lane_exec.c", ...bytes,
    from: `for (char *const *o = own; o && *o; o++) all[used++] = *o;`, to: `` },
  { name: "the agent keeps a descriptor", file: "src/agent/stream.c", ...held,
    from: `for (int i = 0; i < AL_SUBS; i++) al_stream_close_fd(s, i);`,
    to: `if (s->id % 1000 == 7) s->fd[0] = -1 - dup(0); for (int i = 0; i < AL_SUBS; i++) al_stream_close_fd(s, i);` },
  { name: "a command's memory stays", file: "src/exec.c", ...held,
    from: `  al__out_within_budget(e);
  al_free(e);`, to: `  al__out_within_budget(e);` },
  { name: "answered requests are kept", file: "lib/engine.ts", ...held,
    from: `this.#pending.delete(event.id);
        pending.resolve(event.value ?? null);`, to: `pending.resolve(event.value ?? null);` },
  { name: "who waits never sweeps", file: "src/lane_admit.c", test: "ts:several", only: "killed in the queue",
    from: `al_reaper_sweep(site, lane->driver, swept, site);`, to: `swept(site);` },
  { name: "BUSY names nobody", file: "src/lane_admit.c", test: "ts:several", only: "BUSY names",
    from: `lane->queue.holders[0] ? lane->queue.holders`, to: `lane->queue.holders[0] ? "some"` },
  { name: "the larger number goes first", file: "src/registry_admit.c", test: "ts:several", only: "first come",
    from: `a->queue->position > 1 || open >= a->max;`, to: `open >= a->max;` },
];
