// SPDX-License-Identifier: Apache-2.0
// Faults in the keeper, in its link, and in what the warden makes of it.
const program = { test: "c:test_keeper" };
const link = { test: "c:test_keeper_link" };
const warden = { test: "c:test_warden_end" };
export default [
  { name: "any process with the owner's pid is the owner", file: "src/keeper/watch_linux.c", ...program,
    from: `int alive = al_plat_ident_alive(&owner);
  return`, to: `int alive = kill(owner.pid, 0) == 0;
  return` },
  { name: "only the link's end counts", file: "src/keeper/main.c", ...program,
    from: `if (news->owner_gone && !k.orphaned) {`, to: `if (news->owner_gone && k.link < 0 && !k.orphaned) {` },
  { name: "only the owner's end counts", file: "src/keeper/link.c", ...program, from: `    k->orphaned = true;`, to: `    return true;` },
  { name: "what was said last is not heard", file: "src/keeper/main.c", ...program,
    from: `(news->link || news->owner_gone) && !al_keeper_link_read(&k)`, to: `news->owner_gone == news->link && news->link && false` },
  { name: "lifetimes are the owner's affair", file: "src/keeper/lanes.c", ...program,
    from: `if (!k->orphaned && !over) continue;`, to: `if (!k->orphaned) continue;` },
  { name: "the owner gets no advance", file: "src/keeper/keeper.h", ...program,
    from: `#define AL_KEEPER_ADVANCE_MS 1000`, to: `#define AL_KEEPER_ADVANCE_MS 0` },
  { name: "dropped lanes stay", file: "src/keeper/lanes.c", ...program,
    from: `else lane->state = AL_KEEPER_FREE;
}`, to: `}` },
  { name: "one try is enough", file: "src/keeper/lanes.c", ...program,
    from: `if (++lane->tries < AL_KEEPER_TRIES_MAX) return;`, to: `` },
  { name: "records of any length", file: "src/keeper/link.c", ...program,
    from: `in.head.size == size_of(in.head.type)`, to: `in.head.size <= sizeof in` },
  { name: "names of any kind", file: "src/keeper/link.c", ...program, from: `!al_name_valid(r->name) || `, to: `` },
  { name: "limactl is waited for", file: "src/keeper/end.c", ...program,
    from: `if (al_plat_mono_ms() < end) {
      pause_ms(POLL_MS);`, to: `if (end > 0) {
      pause_ms(POLL_MS);` },
  { name: "the keeper trusts pid files", file: "src/keeper/end.c", ...program,
    from: `(void) al_teardown_inspect(t);
  if (t->needs_limactl)`, to: `if (true)` },
  { name: "the log grows", file: "src/keeper/log.c", ...program,
    from: `st.st_size <= AL_KEEPER_LOG_MAX - LINE_MAX_BYTES`, to: `st.st_size >= 0` },
  { name: "the keeper keeps what it inherits", file: "src/keeper/main.c", ...program, from: `  al_keeper_close_stray();
`, to: `` },
  { name: "the keeper stays in the family", file: "src/keeper/main.c", ...program, from: `  if (pid > 0) _exit(0);
`, to: `  if (pid == 0) _exit(0);
` },
  { name: "the link is inherited", file: "src/platform_posix.c", ...link,
    from: `if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return -errno;
  for (int i = 0; i < 2; i++) {`, to: `if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return -errno;
  for (int i = 2; i < 2; i++) {` },
  { name: "a new keeper is told nothing", file: "src/keeper_link.c", ...link,
    from: `for (entry_t *e = l->entries; e; e = e->next) tell(l, e);`, to: `if (!again) tell(l, l->entries);` },
  { name: "a keeper that ends is not replaced", file: "src/keeper_link.c", ...link,
    from: `if (!l->conn && (l->entries || l->wanted) && now >= l->again_at)`, to: `if (!l->conn && l->wanted && now >= l->again_at)` },
  { name: "nobody waits for the keeper's word", file: "src/keeper_link.c", ...link,
    from: `if (l->up) tell(l, e);`, to: `if (l->up) tell(l, e);
  else settle(l, e, 0, NULL);` },
  { name: "a keeper that is given up lives on", file: "src/keeper_link.c", ...link,
    from: `if (c->said_hello && !l->closing) (void) al_plat_ident_kill(&l->keeper, SIGKILL);`, to: `` },
  { name: "the keeper's end is nobody's", file: "src/warden/watch_linux.c", ...warden,
    from: `if (w->keeper < 0) return`, to: `if (w->keeper < -1) return` },
  { name: "QEMU waits for a keeper that stands still", file: "src/warden/watch_linux.c", ...warden,
    from: `return now_ms() >= w->keeper_by ?`, to: `return w->keeper_by == 0 ?` },
  { name: "the warden takes any keeper", file: "src/warden/watch_linux.c", ...warden,
    from: `open_process(policy->keeper, policy->keeper_start)`, to: `open_pidfd(policy->keeper)` },
  { name: "a lane without a keeper", file: "src/lane_start.c", test: "ts:keeper", only: "no lane without",
    from: `  al_lane_keep(lane, kept);`, to: `  kept(lane, 0, NULL);` },
];
