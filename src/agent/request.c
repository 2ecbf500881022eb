/* SPDX-License-Identifier: Apache-2.0 */
/* A whole EXEC request: its TLVs become argv, environment, directory and user in place, then a child. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TLV_HEADER 6
#define STRINGS_MAX (AL_OPEN_MAX / TLV_HEADER + 16)
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define DEFAULTS 5 /* HOME USER LOGNAME SHELL PATH */

typedef struct request_s {
  char **argv, **envp;
  size_t argc, envc;
  const char *cwd, *user, *path;
  uint32_t flags, hold_ms, kill_ms;
  al_limits_t limits;
  uint32_t size; /* rows and columns as in RESIZE, 0 = none */
} request_t;

/* argv from the front (behind the spare place), the environment from the back: together they cannot meet. */
static char *strings[STRINGS_MAX + DEFAULTS + 4];
static char *env_list[STRINGS_MAX + DEFAULTS + 1];
static char defaults[DEFAULTS][4096];

static int
text_value(const uint8_t *value, uint32_t len) {
  return memchr(value, 0, len) == NULL ? 0 : -EINVAL;
}

/* The byte behind each value is the next TLV's first, so the ends are written only when all of them are known. */
static int
parse(uint8_t *p, size_t n, request_t *r) {
  static uint32_t ends[STRINGS_MAX];
  size_t pos = 0, ends_len = 0;
  uint16_t tag;
  const uint8_t *value;
  uint32_t len;
  int more;
  while ((more = al_tlv_next(p, n, &pos, &tag, &value, &len)) == 1) {
    char *text = (char *) p + (value - p);
    switch (tag) {
    case AL_TLV_ARG: r->argv[r->argc++] = text; break;
    case AL_TLV_ENV: r->envp[r->envc++] = text; break;
    case AL_TLV_CWD: r->cwd = text; break;
    case AL_TLV_USER: r->user = text; break;
    case AL_TLV_FLAGS:
      if (len != 4) return -EINVAL;
      r->flags = al_get32(value);
      continue;
    case AL_TLV_GRACE:
      if (len != 8) return -EINVAL;
      r->hold_ms = al_get32(value);
      r->kill_ms = al_get32(value + 4);
      continue;
    case AL_TLV_LIMITS:
      if (len != 16) return -EINVAL;
      r->limits = (al_limits_t) {al_get32(value), al_get32(value + 4), al_get64(value + 8)};
      continue;
    case AL_TLV_SIZE:
      if (len != 4) return -EINVAL;
      r->size = al_get32(value);
      continue;
    default: return -EINVAL;
    }
    if (text_value(value, len) != 0) return -EINVAL;
    ends[ends_len++] = (uint32_t) (value - p) + len;
  }
  if (more < 0 || r->argc == 0) return -EINVAL;
  for (size_t i = 0; i < ends_len; i++) p[ends[i]] = 0;
  r->argv[r->argc] = NULL;
  return 0;
}

static bool
is_named(const char *entry, const char *name) {
  size_t n = strlen(name);
  return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

static char *
find_env(const request_t *r, const char *name) {
  for (size_t i = r->envc; i-- > 0;)
    if (is_named(r->envp[i], name)) return r->envp[i] + strlen(name) + 1;
  return NULL;
}

static void
drop_env(request_t *r, const char *name) {
  size_t kept = 0;
  for (size_t i = 0; i < r->envc; i++)
    if (!is_named(r->envp[i], name)) r->envp[kept++] = r->envp[i];
  r->envc = kept;
}

static void
default_env(request_t *r, size_t i, const char *name, const char *value) {
  if (value == NULL || find_env(r, name) != NULL) return;
  int n = snprintf(defaults[i], sizeof(defaults[i]), "%s=%s", name, value);
  if (n > 0 && (size_t) n < sizeof(defaults[i])) r->envp[r->envc++] = defaults[i];
}

static void
fill_env(request_t *r, const al_user_t *u, bool root) {
  if (root) {
    drop_env(r, "HOME");
    drop_env(r, "USER");
    drop_env(r, "LOGNAME");
  }
  const char *home = root ? "/root" : al_agent.home != NULL ? al_agent.home : u != NULL ? u->home : getenv("HOME");
  const char *name = root ? "root" : u != NULL ? u->name : getenv("USER");
  const char *path = u != NULL ? DEFAULT_PATH : getenv("PATH");
  default_env(r, 0, "HOME", home);
  default_env(r, 1, "USER", name);
  default_env(r, 2, "LOGNAME", name);
  default_env(r, 3, "SHELL", u != NULL ? u->shell : getenv("SHELL"));
  default_env(r, 4, "PATH", path != NULL ? path : DEFAULT_PATH);
  r->envp[r->envc] = NULL;
  r->path = find_env(r, "PATH");
  if (r->path == NULL) r->path = DEFAULT_PATH;
  if (r->cwd == NULL && al_agent.attached && al_agent.worktree[0] != 0) r->cwd = al_agent.worktree;
  if (r->cwd == NULL) r->cwd = find_env(r, "HOME");
  if (r->cwd == NULL || *r->cwd == 0) r->cwd = "/";
}

static void
refuse(al_slot_t *s, int err, const char *what) {
  char text[AL_FAIL_TEXT];
  snprintf(text, sizeof(text), "%s: %s", what, strerror(err));
  for (int i = 0; i < AL_SUBS; i++) al_stream_close_fd(s, i);
  al_stream_finish(s, AL_EXIT_ERROR, (uint32_t) err, text);
}

/* argv is what and where: our own program unpacks. It begins as we are, since nobody else may read it, and then becomes
 * the user by itself. */
static bool
make_unpack(request_t *r, const al_user_t **u) {
  static char *argv[7]; /* with the spare place */
  if (r->argc != 2 || r->flags & AL_EXEC_TTY) return false;
  argv[1] = (char *) (uintptr_t) "/proc/self/exe";
  argv[2] = (char *) (uintptr_t) "--unpack";
  argv[3] = (char *) (uintptr_t) (*u != NULL ? (*u)->name : "");
  argv[4] = r->argv[0];
  argv[5] = r->argv[1];
  argv[6] = NULL;
  r->argv = argv + 1;
  r->cwd = "/";
  *u = NULL;
  return true;
}

static void
start(al_slot_t *s, size_t index, request_t *r, const al_user_t *u) {
  if (r->flags & AL_EXEC_UNPACK && !make_unpack(r, &u)) {
    refuse(s, EINVAL, "request");
    return;
  }
  al_spawn_t sp = {.argv = r->argv, .envp = r->envp, .path = r->path, .cwd = r->cwd, .user = u, .fd = {-1, -1, -1},
                   .cgroup = &s->cgroup, .fail = al_spawn_fail(index)};
  bool tty = r->flags & AL_EXEC_TTY, with_stdin = tty || r->flags & AL_EXEC_STDIN;
  const char *what = tty ? "terminal" : "pipe";
  if (r->size != 0 && s->rows == 0) al_pty_resize(s, (uint16_t) r->size, (uint16_t) (r->size >> 16));
  int err = tty ? al_pty_open(s, &sp) : al_pipes_make(s, &sp, with_stdin);
  if (err == 0) {
    what = "cgroup";
    err = al_cgroup_take(&s->cgroup);
  }
  if (err == 0) {
    s->cgroup.spent = al_limits_any(&r->limits);
    err = al_limits_set(&s->cgroup, &r->limits, &what);
  }
  if (err == 0) {
    if (!with_stdin) sp.fd[AL_SUB_STDIN] = al_main_null();
    what = "clone";
    s->pid = al_spawn_start(&sp);
    if (s->pid < 0) err = s->pid;
    if (!with_stdin) sp.fd[AL_SUB_STDIN] = -1;
  }
  for (int i = 0; i < AL_SUBS && !tty; i++)
    if (sp.fd[i] >= 0) close(sp.fd[i]);
  if (err != 0) {
    al_cgroup_give(&s->cgroup);
    refuse(s, -err, what);
    return;
  }
  s->state = AL_SLOT_RUN;
  s->area_off = s->area_len = 0;
  s->hold_ms = r->hold_ms;
  s->kill_ms = r->kill_ms;
  s->end_tree = r->flags & AL_EXEC_END_TREE;
  s->unpack = r->flags & AL_EXEC_UNPACK;
  s->host_ended = !with_stdin;
  s->credit[AL_SUB_STDIN] = with_stdin ? AL_WINDOW_DEFAULT : 0;
  s->credit[AL_SUB_STDOUT] = s->credit[AL_SUB_STDERR] = AL_WINDOW_DEFAULT;
}

void
al_request_exec(al_slot_t *s, size_t index) {
  request_t r = {.argv = strings + 1, .envp = env_list, .user = "agent",
                 .hold_ms = AL_GRACE_DEFAULT_MS, .kill_ms = AL_GRACE_DEFAULT_MS};
  s->started_ns = al_main_now();
  if (s->too_big) {
    refuse(s, E2BIG, "request");
    return;
  }
  if (parse(al_stream_area(s), s->area_len, &r) != 0) {
    refuse(s, EINVAL, "request");
    return;
  }
  bool root = strcmp(r.user, "root") == 0;
  if (!root && strcmp(r.user, "agent") != 0) {
    al_stream_finish(s, AL_EXIT_ERROR, EINVAL, "user: must be agent or root");
    return;
  }
  const al_user_t *u = NULL;
  if (!al_agent.local) {
    int err = al_users_find(root ? "root" : al_agent.user_name, &u);
    if (err != 0) {
      refuse(s, -err, root ? "user root" : "user agent");
      return;
    }
  }
  fill_env(&r, u, root && !al_agent.local);
  start(s, index, &r, u);
}
