/* SPDX-License-Identifier: Apache-2.0 */
/* Ending a command's whole tree: SIGTERM, a grace whose clock runs here, SIGKILL; and when such a command has ended. */
#include "agent.h"
#include <signal.h>

#define LOOK_NS 10000000ull    /* how often we look whether the tree is gone */
#define DYING_NS 2000000000ull /* how long killed processes may take to die before EXIT is said without them */

static bool
has_tree(const al_slot_t *s) {
  return s->cgroup.dir >= 0 ? !al_cgroup_empty(&s->cgroup) : !s->reaped;
}

void
al_cancel_signal(al_slot_t *s, int signo, bool tree) {
  if (s->state != AL_SLOT_RUN) return;
  /* The group only while its leader is not reaped: afterwards the number may belong to somebody else. */
  if (tree && s->cgroup.dir >= 0) al_cgroup_signal(&s->cgroup, signo);
  else if (!s->reaped && kill(-s->pid, signo) != 0)
    kill(s->pid, signo); /* no group yet: only where vfork is emulated */
}

void
al_cancel_begin(al_slot_t *s, uint32_t grace_ms, uint64_t now) {
  uint64_t due = now + (uint64_t) grace_ms * 1000000u;
  if (s->state != AL_SLOT_RUN || s->kill_sent) return;
  if (s->kill_ns != 0) { /* the first one counts, but a later one may hurry it */
    if (due < s->kill_ns) s->kill_ns = due;
    return;
  }
  s->kill_ns = due;
  if (grace_ms == 0) return; /* killed by the tick of this same turn */
  al_cancel_signal(s, SIGTERM, true);
  al_cancel_signal(s, SIGCONT, true); /* a stopped process would not see it */
}

void
al_cancel_reaped(al_slot_t *s, uint64_t now) {
  if (s->end_tree) al_cancel_begin(s, s->kill_ms, now);
}

void
al_cancel_tick(uint64_t now) {
  for (size_t i = 0; i < al_agent.slots_high; i++) {
    al_slot_t *s = &al_agent.slots[i];
    if (s->state != AL_SLOT_RUN || s->kill_ns == 0 || now < s->kill_ns) continue;
    if (s->kill_sent) s->given_up = true;
    else if (has_tree(s)) al_cancel_signal(s, SIGKILL, true);
    s->kill_sent = true;
    s->kill_ns = now + DYING_NS;
  }
}

uint64_t
al_cancel_wait(const al_slot_t *s, uint64_t now) {
  if (s->kill_ns == 0 || s->given_up) return UINT64_MAX;
  uint64_t left = s->kill_ns > now ? s->kill_ns - now : 0;
  return s->reaped && left > LOOK_NS ? LOOK_NS : left;
}

bool
al_cancel_over(const al_slot_t *s) {
  return s->kill_ns == 0 || s->given_up || !has_tree(s);
}
