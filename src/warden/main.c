/* SPDX-License-Identifier: Apache-2.0 */
/* Warden: stands in QEMU's place under Lima. Checks the arguments, adds the policy, starts QEMU and stays its
 * parent. */
#include "warden.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/*
 * Theory of operation. Lima runs what QEMU_SYSTEM_<ARCH> says with its own arguments behind our policy words:
 *
 *   warden --agent-lane-policy 1 --qemu PATH --network none|open --accel tcg|kvm|hvf --channel port|shell
 *     --owner PID:START --keeper PID:START --log FILE -- ...
 *
 * Before that Lima asks QEMU a few questions (version, accelerators) *without* our words; exactly those pass through,
 * to the QEMU that PATH names, since no guest runs in them. Everything else is the start of a VM: each argument must be
 * on the list in rules.c, and QEMU gets an argument list that we wrote. The warden never fails open: what it does not
 * know ends with status 1 and one sentence on stderr and in the log. For a VM nothing is taken from the environment and
 * nothing of it reaches QEMU.
 */

static al_warden_vm_t vm; /* large, and the heap is not used */

static int
refuse(int log_fd, const char *why) {
  al_warden_log(log_fd, "warden: refused: %s", why);
  return 1;
}

/* argv[0] is free for QEMU's name; a NULL ends the list. */
static int
probe(char *qemu, char **argv) {
  char *env[] = {"PATH=/usr/bin:/bin", "LC_ALL=C", NULL};
  char why[AL_WARDEN_PATH_MAX + 128];
  argv[0] = qemu;
  execve(qemu, argv, env);
  snprintf(why, sizeof why, "%s cannot be run: %s", qemu, strerror(errno));
  return refuse(-1, why);
}

int
main(int argc, char **argv) {
  al_warden_policy_t policy;
  char why[256], qemu[AL_WARDEN_PATH_MAX];
  (void) signal(SIGPIPE, SIG_IGN); /* stderr is the hostagent's pipe: its end must not be ours before QEMU's */
  al_warden_close_stray();
  if (argc > 1 && al_warden_is_probe(argc - 1, argv + 1)) {
    if (al_warden_probe_qemu(qemu, sizeof qemu) != 0) return refuse(-1, "no QEMU in PATH to ask");
    return probe(qemu, argv);
  }
  int first = al_warden_policy_parse(argc, argv, &policy, why, sizeof why);
  if (first < 0) return refuse(-1, why);
  argv += first - 1; /* the "--" is free for QEMU's name */
  argc -= first;
  if (al_warden_is_probe(argc, argv + 1)) return probe(policy.qemu, argv);
  int log_fd = al_warden_log_open(policy.log);
  if (log_fd < 0) {
    snprintf(why, sizeof why, "the log %.160s cannot be opened: %s", policy.log, strerror(errno));
    return refuse(-1, why);
  }
  if (al_warden_check(&policy, argc, argv + 1, &vm) != 0) return refuse(log_fd, vm.why);
  if (al_warden_extra(&vm) != 0) return refuse(log_fd, vm.why);
  return al_warden_run(&policy, &vm, log_fd);
}
