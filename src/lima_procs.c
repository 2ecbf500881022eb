/* SPDX-License-Identifier: Apache-2.0 */
/* Which processes belong to a lane: told by their command lines, which name the lane's own directory or its unique name. */
#include "lima_int.h"

#include "mem.h"
#include "utf8.h"
#include <stdio.h>
#include <string.h>

#define COMMAND_MAX 400u

static const char *const kind_names[] = {"none", "hostagent", "warden", "qemu", "ssh-master", "shell", "start"};
_Static_assert(sizeof kind_names / sizeof kind_names[0] == AL__PROC_START + 1, "one name for each kind");

const char *
al__lima_kind_name(al__lima_kind_t kind) {
  return kind_names[kind];
}

/* The argument after *pos, or NULL at the end. A command line may lack its last NUL (setproctitle), so every length is checked. */
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
  char ha_pid[AL_HOME_MAX + 64], qemu_pid[AL_HOME_MAX + 64], ssh_sock[AL_HOME_MAX + 64], ssh_config[AL_HOME_MAX + 64], title[AL_HOME_MAX + 80];
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
  al_val_t *list;
  int rc;
} scan_t;

static int
on_process(void *data, const al_ident_t *id, const char *cmdline, size_t len) {
  scan_t *s = data;
  al__lima_kind_t kind = al__lima_classify(s->dir, s->name, cmdline, len);
  if (kind == AL__PROC_NONE) return 0;
  if (s->procs && s->procs->count < AL__LIMA_PROCS_MAX) {
    s->procs->list[s->procs->count].id = *id;
    s->procs->list[s->procs->count++].kind = kind;
  }
  if (!s->list) return 0;
  char text[COMMAND_MAX];
  size_t n = len < sizeof text - 1 ? len : sizeof text - 1;
  char raw[COMMAND_MAX];
  for (size_t i = 0; i < n; i++) raw[i] = cmdline[i] ? cmdline[i] : ' ';
  al_utf8_printable(text, sizeof text, raw, n, false);
  al_val_t *m = al_val_map();
  s->rc = m ? al_val_set(m, "pid", al_val_int(id->pid)) : -ENOMEM;
  if (s->rc == 0) s->rc = al_val_set(m, "kind", al_val_text(kind_names[kind]));
  if (s->rc == 0) s->rc = al_val_set(m, "command", al_val_text(text));
  if (s->rc == 0) s->rc = al_val_add(s->list, m);
  else al_val_free(m);
  return s->rc;
}

int
al__lima_scan(const char *dir, const char *name, al__lima_procs_t *out) {
  out->count = 0;
  scan_t s = {.dir = dir, .name = name, .procs = out};
  return al_plat_each_process(on_process, &s);
}

int
al_lima_processes(const al_home_t *home, const char *name, al_val_t **out, al_err_t *err) {
  if (!al_name_valid(name)) return al_err_set(err, AL_EBAD_NAME, "“%.64s” is not the name of a lane", name);
  char dir[AL_HOME_MAX + AL_NAME_LEN + 2];
  snprintf(dir, sizeof dir, "%s/%s", home->lima, name);
  scan_t s = {.dir = dir, .name = name, .list = al_val_list()};
  if (!s.list) return al_err_set(err, -ENOMEM, "out of memory");
  int rc = al_plat_each_process(on_process, &s);
  if (s.rc) rc = s.rc;
  if (rc < 0) {
    al_val_free(s.list);
    return al_err_set(err, rc, "the processes of this user could not be listed");
  }
  *out = s.list;
  return 0;
}
