/* SPDX-License-Identifier: Apache-2.0 */
/* Which processes belong to a lane: told by their command lines, which name the lane's own directory or its unique
 * name. */
#include "lima_procs.h"

#include <stdio.h>
#include <string.h>

static const char *const kind_names[] = {"none", "hostagent", "warden", "qemu", "ssh-master", "shell", "start"};
_Static_assert(sizeof kind_names / sizeof kind_names[0] == AL__PROC_START + 1, "one name for each kind");

const char *
al__lima_kind_name(al__lima_kind_t kind) {
  return kind_names[kind];
}

/* The argument after *pos, or NULL at the end. A command line may lack its last NUL (setproctitle), so every length is
 * checked. */
static const char *
next_arg(const char *cmdline, size_t len, size_t *pos, size_t *arg_len) {
  if (*pos >= len) return NULL;
  const char *arg = cmdline + *pos;
  const char *end = memchr(arg, 0, len - *pos);
  *arg_len = end ? (size_t) (end - arg) : len - *pos;
  *pos += *arg_len + 1;
  return arg;
}

static bool
is(const char *arg, size_t len, const char *want) {
  return strlen(want) == len && memcmp(arg, want, len) == 0;
}

static bool
has(const char *arg, size_t len, const char *want) {
  return memmem(arg, len, want, strlen(want)) != NULL;
}

static bool
basename_is(const char *arg, size_t len, const char *want) {
  size_t n = strlen(want);
  return len >= n && memcmp(arg + len - n, want, n) == 0 && (len == n || arg[len - n - 1] == '/');
}

typedef struct facts_s {
  bool limactl, ssh, hostagent, shell, start, policy, named, ha_pid, qemu_pid, ssh_sock;
} facts_t;

static void
gather(facts_t *f, const char *dir, const char *name, const char *cmdline, size_t len) {
  char ha_pid[AL_HOME_MAX + 64], qemu_pid[AL_HOME_MAX + 64], ssh_sock[AL_HOME_MAX + 64], ssh_config[AL_HOME_MAX + 64],
    title[AL_HOME_MAX + 80];
  snprintf(ha_pid, sizeof ha_pid, "%s/ha.pid", dir);
  snprintf(qemu_pid, sizeof qemu_pid, "%s/qemu.pid", dir);
  snprintf(ssh_sock, sizeof ssh_sock, "%s/ssh.sock", dir);
  snprintf(ssh_config, sizeof ssh_config, "%s/ssh.config", dir);
  snprintf(title, sizeof title, "ssh: %s [mux]", ssh_sock);
  size_t pos = 0, n = 0, before_len = 0;
  const char *before = "";
  for (int i = 0;; i++) {
    const char *arg = next_arg(cmdline, len, &pos, &n);
    if (!arg) return;
    if (i == 0) {
      f->limactl = basename_is(arg, n, "limactl");
      f->ssh = basename_is(arg, n, "ssh");
      if (n >= strlen(title) && memcmp(arg, title, strlen(title)) == 0) f->ssh = f->ssh_sock = true;
    } else {
      f->hostagent |= is(arg, n, "hostagent");
      f->shell |= is(arg, n, "shell");
      f->start |= is(arg, n, "start");
      f->policy |= i == 1 && is(arg, n, "--agent-lane-policy");
      f->named |= is(arg, n, name);
      f->ha_pid |= is(before, before_len, "--pidfile") && is(arg, n, ha_pid);
      f->qemu_pid |= is(before, before_len, "-pidfile") && is(arg, n, qemu_pid);
      f->ssh_sock |= has(arg, n, ssh_sock) || is(arg, n, ssh_config);
    }
    before = arg;
    before_len = n;
  }
}

al__lima_kind_t
al__lima_classify(const char *dir, const char *name, const char *cmdline, size_t len) {
  facts_t f = {0};
  gather(&f, dir, name, cmdline, len);
  if (f.qemu_pid) return f.policy ? AL__PROC_WARDEN : AL__PROC_QEMU;
  if (f.hostagent && f.ha_pid) return AL__PROC_HOSTAGENT;
  if (f.ssh && f.ssh_sock) return AL__PROC_SSH_MASTER;
  if (f.limactl && f.named && f.shell) return AL__PROC_SHELL;
  if (f.limactl && f.named && f.start) return AL__PROC_START;
  return AL__PROC_NONE;
}

typedef struct scan_s {
  const char *dir, *name;
  al__lima_procs_t *procs;
} scan_t;

static int
on_process(void *data, const al_ident_t *id, const char *cmdline, size_t len) {
  scan_t *s = data;
  /* While exec puts the new program in place, the command line is empty for a moment. */
  if (len == 0 && id->exe[0]) s->procs->nameless++;
  al__lima_kind_t kind = al__lima_classify(s->dir, s->name, cmdline, len);
  if (kind == AL__PROC_NONE || s->procs->count == AL__LIMA_PROCS_MAX) return 0;
  s->procs->list[s->procs->count++] = (al__lima_proc_t) {.id = *id, .kind = kind};
  return 0;
}

int
al__lima_scan(const char *dir, const char *name, al__lima_procs_t *out) {
  out->count = out->nameless = 0;
  scan_t s = {.dir = dir, .name = name, .procs = out};
  return al_plat_each_process(on_process, &s);
}
