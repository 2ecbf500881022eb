/* SPDX-License-Identifier: Apache-2.0 */
/* What a configuration enforces, said before anything of it is there: the request explain. */
#include "enforced.h"

#include <errno.h>
#include <inttypes.h>

/* Theory of operation. al_enforced reads the same rows off what runs; here they are what the steps of a create will do,
 * or refuse to do. A row is "no" where nothing will hold it, also when somebody would like it to. */

static int
plan_network(const al_enforced_plan_t *p, al_val_t *out) {
  if (!p->network_none)
    return al__enforced_say(out, AL_PROMISE_NETWORK, AL_HELD_NO, "network: \"open\": the guest reaches what this machine "
      "reaches: its loopback (also a Docker that listens on TCP), the local network, the internet");
  if (p->vz)
    return al__enforced_say(out, AL_PROMISE_NETWORK, AL_HELD_NO, "network: \"none\" cannot be enforced on vz: such a lane is "
      "refused (NETWORK_UNENFORCEABLE)");
  return al__enforced_say(out, AL_PROMISE_NETWORK, AL_HELD_YES, "the warden puts restrict=on,ipv6=off on QEMU's only network "
    "device");
}

static int
plan_size(const al_enforced_plan_t *p, al_val_t *out) {
  const char *by = p->vz ? "the VM is" : "QEMU is";
  return al__enforced_say(out, AL_PROMISE_MEMORY, AL_HELD_YES, "%s started with %" PRId64 " MiB", by, p->memory_mib) |
    al__enforced_say(out, AL_PROMISE_CPUS, AL_HELD_YES, "%s started with %d CPU%s", by, p->cpus, p->cpus == 1 ? "" : "s");
}

static int
plan_end(const al_enforced_plan_t *p, al_val_t *out) {
  int rc = p->vz
    ? al__enforced_say(out, AL_PROMISE_SYSCALLS, AL_HELD_UNKNOWN, "there is no QEMU: Virtualization.framework runs the VM") |
      al__enforced_say(out, AL_PROMISE_END, AL_HELD_YES, "its keeper ends it; with owner and keeper killed at once, only the next "
        "sweep does") |
      al__enforced_say(out, AL_PROMISE_CONSOLE, AL_HELD_NO, "Lima writes the console's log, which has no bound but the space that "
        "a lane may take")
    : al__enforced_say(out, AL_PROMISE_SYSCALLS, AL_HELD_YES, "seccomp: the warden starts QEMU with -sandbox on, without a way to "
        "start programs or gain rights") |
      al__enforced_say(out, AL_PROMISE_END, AL_HELD_YES, "its keeper ends it; with owner and keeper killed at once, the warden "
        "kills QEMU") |
      al__enforced_say(out, AL_PROMISE_CONSOLE, AL_HELD_YES, "the warden keeps the last 1 MiB at most of each");
  return rc | al__enforced_say(out, AL_PROMISE_LIFETIME, AL_HELD_YES, "owner and keeper end it after %d minute%s, each without "
    "the other", p->timeout_minutes, p->timeout_minutes == 1 ? "" : "s");
}

int
al_enforced_plan(const al_enforced_plan_t *p, al_val_t **out) {
  al_val_t *list = al_val_list();
  if (!list) return -ENOMEM;
  int rc = plan_network(p, list) |
    al__enforced_say(list, AL_PROMISE_FILES, AL_HELD_YES, "Lima's configuration has no mounts, and is read back before the start%s",
      p->vz ? "" : "; the warden refuses every argument of QEMU's that is not on its list") |
    al__enforced_say(list, AL_PROMISE_SOCKETS, AL_HELD_YES, "Lima forwards no agent and takes no key of ~/.ssh; nothing of the "
      "environment is handed on");
  rc |= plan_size(p, list) | plan_end(p, list) | al__enforced_always(list);
  if (rc) al_val_free(list);
  else *out = list;
  return rc ? -ENOMEM : 0;
}
