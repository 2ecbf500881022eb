/* SPDX-License-Identifier: Apache-2.0 */
/* Lima driver: finding the programs, the version check, and what all limactl children share (environment, spawn, error
 * text). */
#include "lima_int.h"
#include "teardown.h"

#include "mem.h"
#include "utf8.h"
#include "version.h"
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define VERSION_MS 5000u
#define CONSOLE_MAX (1u << 20) /* twice what the warden lets the file grow to */
#define LIMA_MAJOR 2u /* the oldest Lima that we drive */
#define LIMA_MINOR 2u

/* ---- operations ---- */

void *
al__lima_op_new(al_lima_t *l, size_t size, al_lima_cb cb, void *data) {
  al__lima_op_t *op = al_calloc(1, size);
  if (!op) {
    al_err_t err = {0};
    al_err_set(&err, -ENOMEM, "out of memory");
    cb(data, -ENOMEM, &err);
    return NULL;
  }
  op->l = l;
  op->cb = cb;
  op->data = data;
  return op;
}

void
al__lima_op_end(al__lima_op_t *op, int status) {
  if (status != 0 && op->err.code == 0) {
    al_err_set(&op->err, status, status == UV_ECANCELED ? "the engine is shutting down" : "%s", uv_strerror(status));
  }
  al_lima_cb cb = op->cb;
  void *data = op->data;
  al_err_t err = op->err;
  al_free(op);
  cb(data, status, status ? &err : NULL);
}

static int
carry_status(al_job_t *job) {
  (void) job;
  return 0;
}

static void
ended_soon(al_job_t *job, int status) {
  al__lima_op_t *op = (al__lima_op_t *) job;
  al__lima_op_end(op, status != 0 ? status : op->err.code);
}

void
al__lima_op_end_soon(al__lima_op_t *op, int status) {
  if (status != 0 && op->err.code == 0) al_err_set(&op->err, status, "%s", uv_strerror(status));
  al_worker_post(op->l->io, &op->job, carry_status, ended_soon);
}

/* ---- children ---- */

const char *
al_lima_user_home(char *buf, size_t cap) {
  struct passwd pw, *found = NULL;
  if (getpwuid_r(geteuid(), &pw, buf, cap, &found) == 0 && found && found->pw_dir && found->pw_dir[0] == '/')
    return found->pw_dir;
  const char *home = getenv("HOME");
  return home && home[0] == '/' ? home : "/";
}

void
al__lima_strv_free(char **v) {
  for (char **p = v; p && *p; p++) al_free(*p);
  al_free(v);
}

char **
al__lima_env(const al_lima_t *l, const al_lane_spec_t *spec) {
  char pw[4096];
  char **v = al_calloc(9, sizeof *v);
  if (!v) return NULL;
  size_t n = 0;
  v[n++] = al_asprintf("PATH=%s", l->path_env);
  v[n++] = al_asprintf("HOME=%s", al_lima_user_home(pw, sizeof pw));
  v[n++] = al_asprintf("LIMA_HOME=%s", l->home->lima);
  v[n++] = al_asprintf("TMPDIR=%s", l->home->run);
  v[n++] = al_strdup("LANG=C.UTF-8");
  /* `limactl start NAME` of a lane whose directory has just gone would make an instance of Lima's default template. */
  v[n++] = al_asprintf("LIMA_TEMPLATES_PATH=%s/none", l->home->run);
  if (spec && strcmp(l->vm_type, "qemu") == 0) {
    al_buf_t words;
    al_buf_init(&words, 16384);
    if (al__lima_qemu_words(l, spec, &words) == 0) {
      v[n++] = al_asprintf(
        "QEMU_SYSTEM_%s=%s", strcmp(l->arch, "aarch64") == 0 ? "AARCH64" : "X86_64", (const char *) words.data);
    } else {
      v[n++] = NULL;
    }
    al_buf_deinit(&words);
  }
  for (size_t i = 0; i < n; i++) {
    if (v[i]) continue;
    for (size_t k = 0; k < n; k++) al_free(v[k]);
    al_free(v);
    return NULL;
  }
  return v;
}

int
al__lima_spawn(al_lima_t *l, const al_lane_spec_t *spec, al_proc_t *p, const char *const *argv, uint64_t deadline_ms,
  size_t out_cap, al_proc_cb cb) {
  char **env = al__lima_env(l, spec);
  if (!env) return -ENOMEM;
  al_proc_opts_t o = {
    .file = argv[0],
    .argv = argv,
    .env = (const char *const *) env,
    .cwd = l->home->run,
    .in = AL_PROC_NULL,
    .out = out_cap ? AL_PROC_BUFFER : AL_PROC_NULL,
    .out_cap = out_cap,
    .stderr_fd = -1,
    .deadline_ms = deadline_ms,
  };
  int rc = al_proc_start(l->loop, p, &o, cb);
  al__lima_strv_free(env);
  return rc;
}

typedef enum { LINE_OTHER, LINE_DEBUG, LINE_INFO, LINE_BAD } line_t;

/* "msg" (and "error") of a logrus JSON line; LINE_OTHER, and out untouched, when the line is something else. */
static line_t
log_line(const char *line, size_t len, char *out, size_t cap) {
  if (len < 2 || line[0] != '{') return LINE_OTHER;
  al_val_t *v = NULL;
  if (al_json_parse(line, len, &v, NULL) != 0) return LINE_OTHER;
  line_t kind = LINE_OTHER;
  const char *msg = NULL, *level = NULL, *more = NULL;
  bool ok = v->kind == AL_MAP && al_val_get_text(v, "msg", NULL, &msg, NULL) == 0 && msg;
  if (ok) {
    if (al_val_get_text(v, "level", "", &level, NULL) != 0) level = "";
    if (al_val_get_text(v, "error", NULL, &more, NULL) != 0) more = NULL;
    kind = LINE_INFO;
    if (strcmp(level, "fatal") == 0 || strcmp(level, "error") == 0 || strcmp(level, "panic") == 0) kind = LINE_BAD;
    if (strcmp(level, "debug") == 0 || strcmp(level, "trace") == 0) kind = LINE_DEBUG;
    char joined[1024];
    int n = snprintf(joined, sizeof joined, "%s%s%s", msg, more ? ": " : "", more ? more : "");
    al_utf8_printable(out, cap, joined, n < 0 ? 0 : (size_t) n < sizeof joined ? (size_t) n : sizeof joined - 1, false);
  }
  al_val_free(v);
  return kind;
}

void
al__lima_last_message(const char *text, size_t len, char *out, size_t cap) {
  char first[400] = "";
  out[0] = 0;
  for (int lines = 0; len > 0 && lines < 64;) {
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r')) len--;
    size_t n = 0;
    while (n < len && text[len - n - 1] != '\n') n++;
    len -= n;
    const char *line = text + len;
    if (n == 0) continue;
    lines++;
    line_t kind = log_line(line, n, out, cap);
    if (kind == LINE_BAD) return;
    if (kind == LINE_OTHER) al_utf8_printable(out, cap, line, n, false);
    if (kind != LINE_DEBUG && !first[0]) snprintf(first, sizeof first, "%s", out);
  }
  snprintf(out, cap, "%s", first);
}

void
al__lima_log_message(const char *dir, const char *name, char *out, size_t cap) {
  char path[AL_HOME_MAX + 96];
  out[0] = 0;
  snprintf(path, sizeof path, "%s/%s", dir, name);
  AL_AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return;
  AL_AUTO_FREE char *tail = al_malloc(AL__LIMA_LOG_TAIL);
  if (!tail) return;
  off_t from = st.st_size > (off_t) AL__LIMA_LOG_TAIL ? st.st_size - (off_t) AL__LIMA_LOG_TAIL : 0;
  ssize_t n = pread(fd, tail, AL__LIMA_LOG_TAIL, from);
  if (n > 0) al__lima_last_message(tail, (size_t) n, out, cap);
}

void
al__lima_console_line(const char *dir, char *out, size_t cap) {
  AL_AUTO_FREE char *text = NULL;
  char path[AL_HOME_MAX + 96];
  size_t len = 0;
  out[0] = 0;
  snprintf(path, sizeof path, "%s/serial.log", dir);
  if (al_plat_read_file(-1, path, CONSOLE_MAX, &text, &len) != 0) return;
  const char *panic = strstr(text, "Kernel panic"); /* says more than the addresses that follow it */
  if (panic) len = (size_t) (panic - text) + strcspn(panic, "\n");
  while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r')) len--;
  size_t from = len;
  while (from > 0 && text[from - 1] != '\n') from--;
  al_utf8_printable(out, cap, text + from, len - from, false);
}

int
al__lima_child_result(al_proc_t *p, int status, int code, const char *what, al_err_t *err) {
  if (status == 0 && p->term_signal == 0 && p->exit_code == 0) return 0;
  char msg[400] = "";
  size_t len = 0;
  if (al_err_exhausted(status)) return al_err_set(err, status, "%s could not be run: %s", what, uv_strerror(status));
  AL_AUTO_FREE char *tail = al_tail_copy(&p->err_tail, &len);
  if (tail) al__lima_last_message(tail, len, msg, sizeof msg);
  const char *colon = msg[0] ? ": " : "";
  if (status == UV_ETIMEDOUT)
    return al_err_set(err, code, "%s did not end in time and was killed%s%s", what, colon, msg);
  if (status != 0) return al_err_set(err, code, "%s could not be run: %s", what, uv_strerror(status));
  if (p->term_signal) return al_err_set(err, code, "%s was killed by signal %d%s%s", what, p->term_signal, colon, msg);
  return al_err_set(err, code, "%s ended with exit code %d%s%s", what, (int) p->exit_code, colon, msg);
}

/* ---- open ---- */

static int
find(const char *name, char *out, size_t cap, int code, const char *cure, al_err_t *err) {
  int rc = al_plat_find_program(name, NULL, out, cap, err);
  if (rc == 0 || rc == AL_EPROGRAM_UNSAFE) return rc;
  al_err_set(err, code, "%s was not found%s", name,
    strchr(name, '/') ? "" : " on PATH (relative, group- or world-writable and node_modules entries are skipped)");
  if (cure) al_err_cure(err, "%s", cure);
  return code;
}

/* Adds the directory of `program` unless it is there. */
static int
add_dir(al_lima_t *l, const char *program) {
  const char *slash = strrchr(program, '/');
  if (!slash || slash == program) return 0;
  size_t n = (size_t) (slash - program), have = strlen(l->path_env);
  for (const char *p = l->path_env; *p;) {
    size_t k = strcspn(p, ":");
    if (k == n && memcmp(p, program, n) == 0) return 0;
    p += k + (p[k] == ':');
  }
  if (memchr(program, ':', n) || have + n + 2 > sizeof l->path_env) return -ENAMETOOLONG;
  snprintf(l->path_env + have, sizeof l->path_env - have, "%s%.*s", have ? ":" : "", (int) n, program);
  return 0;
}

static int
find_all(al_lima_t *l, const al_lima_opts_t *opts, al_err_t *err) {
  static const char ssh_cure[] = "Install the OpenSSH client (Debian: openssh-client).";
  const char *limactl = opts->limactl && opts->limactl[0] ? opts->limactl : getenv("AGENT_LANE_LIMACTL");
  if (!limactl || !limactl[0]) limactl = "limactl";
  char ssh[1024], emulator[64];
  snprintf(emulator, sizeof emulator, "qemu-system-%s", l->arch);
  int rc = find(limactl, l->limactl, sizeof l->limactl, AL_ELIMA_MISSING, NULL, err);
  if (rc == 0) rc = find("ssh", ssh, sizeof ssh, AL_ELIMA_FAILED, ssh_cure, err);
  if (rc == 0) rc = find("ssh-keygen", l->ssh_keygen, sizeof l->ssh_keygen, AL_ELIMA_FAILED, ssh_cure, err);
  if (rc == 0 && strcmp(l->vm_type, "qemu") == 0) {
    rc = find(emulator, l->qemu, sizeof l->qemu, AL_EQEMU_MISSING, NULL, err);
    if (rc == 0) rc = find("qemu-img", l->qemu_img, sizeof l->qemu_img, AL_EQEMU_MISSING, NULL, err);
    if (rc == 0) rc = add_dir(l, l->qemu);
    if (rc == 0) rc = add_dir(l, l->qemu_img);
  }
  if (rc == 0) rc = add_dir(l, ssh);
  if (rc == 0) rc = add_dir(l, "/usr/bin/x");
  if (rc == 0) rc = add_dir(l, "/bin/x");
  if (rc == -ENAMETOOLONG)
    return al_err_set(
      err, rc, "the directories of QEMU and ssh do not fit into a PATH of %zu bytes", sizeof l->path_env);
  return rc;
}

static int
install(const al_home_t *home, const char *from, char *out, size_t cap, al_err_t *err) {
  out[0] = 0;
  return from && from[0] ? al_home_install(home, from, out, cap, err) : 0;
}

int
al_lima_open(
  al_lima_t *l, uv_loop_t *loop, al_worker_t *io, const al_home_t *home, const al_lima_opts_t *opts, al_err_t *err) {
  memset(l, 0, sizeof *l);
  l->loop = loop;
  l->io = io;
  l->home = home;
  l->delete_ms = AL_TEARDOWN_DELETE_MS;
  if (geteuid() == 0 && !opts->allow_root_for_tests)
    return al_err_set(err, AL_ELIMA_ROOT, "this process runs as root and limactl refuses root");
  struct utsname u;
  if (uname(&u) != 0) return al_err_set(err, -errno, "uname: %s", strerror(errno));
  snprintf(l->vm_type, sizeof l->vm_type, "%s", strcmp(u.sysname, "Darwin") == 0 ? "vz" : "qemu");
  snprintf(l->arch, sizeof l->arch, "%s",
    strcmp(u.machine, "arm64") == 0 || strcmp(u.machine, "aarch64") == 0 ? "aarch64" : "x86_64");
  /* Lima puts the directory into QEMU's option strings, where a comma separates, and through Go templates, where {{
   * begins one. */
  if (strchr(home->lima, ',') || strstr(home->lima, "{{")) {
    return al_err_set(
      err, AL_EHOME_UNSAFE, "the home “%s” contains a comma or “{{”, which QEMU's options cannot carry", home->root);
  }
  int rc = find_all(l, opts, err);
  if (rc == 0 && strcmp(l->vm_type, "qemu") == 0) {
    rc = install(home, opts->warden, l->warden, sizeof l->warden, err);
    if (rc == 0 && !l->warden[0]) rc = al_err_set(err, AL_EINTERNAL, "the package has no warden for this machine");
  }
  if (rc == 0) rc = install(home, opts->agent_x86_64, l->agent[0], sizeof l->agent[0], err);
  if (rc == 0) rc = install(home, opts->agent_aarch64, l->agent[1], sizeof l->agent[1], err);
  return rc;
}

bool
al_lima_complete(const al_lima_t *l) {
  const char *const programs[] = {l->warden, l->agent[0], l->agent[1]};
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
    if (programs[i][0] && access(programs[i], X_OK)) return false;
  return true;
}

/* ---- version ---- */

typedef struct version_s {
  al__lima_op_t op;
  al_proc_t proc;
  bool allow_unknown;
  uint64_t key[4];
} version_t;

/* A suffix is one of `git describe` or a pre-release ("-…"), or ".m" (a modified tree). */
int
al_lima_judge_version(const char *line, bool allow_unknown, char *version, size_t cap) {
  static const char prefix[] = "limactl version ";
  al_version_t v;

  bool named = strncmp(line, prefix, sizeof prefix - 1) == 0;
  if (named) line += sizeof prefix - 1;
  al_utf8_printable(version, cap, line, strcspn(line, "\r\n"), false);
  bool known = named && al_version_parse(version[0] == 'v' ? version + 1 : version, &v) &&
    (!*v.rest || *v.rest == '-' || strcmp(v.rest, ".m") == 0);
  if (!known) return named && allow_unknown ? 0 : AL_ELIMA_UNKNOWN_VERSION;
  return al_version_older(&v, LIMA_MAJOR, LIMA_MINOR) ? AL_ELIMA_TOO_OLD : 0;
}

static int
judge(version_t *q) {
  al_lima_t *l = q->op.l;
  const char *out = q->proc.out.data ? (const char *) q->proc.out.data : "";
  char text[sizeof l->version];

  int rc = al_lima_judge_version(out, false, text, sizeof text);
  if (rc == AL_ELIMA_UNKNOWN_VERSION && q->allow_unknown) {
    rc = al_lima_judge_version(out, true, text, sizeof text);
    memset(q->key, 0, sizeof q->key); /* asked again next time: another caller may not allow it */
  }
  if (rc == AL_ELIMA_UNKNOWN_VERSION) {
    return al_err_set(&q->op.err, rc, "%s says “%s”, which is no version of Lima", l->limactl, text);
  }
  if (rc) return al_err_set(&q->op.err, rc, "%s is Lima %s; 2.2.0 or newer is needed", l->limactl, text);
  snprintf(l->version, sizeof l->version, "%s", text);
  memcpy(l->version_key, q->key, sizeof l->version_key);
  return 0;
}

static void
version_done(al_proc_t *p, int status) {
  version_t *q = p->data;
  int rc = al__lima_child_result(p, status, AL_ELIMA_FAILED, "limactl --version", &q->op.err);
  if (rc == 0) rc = judge(q);
  al_proc_deinit(p);
  al__lima_op_end(&q->op, rc);
}

void
al_lima_check_version(al_lima_t *l, bool allow_unknown, al_lima_cb cb, void *data) {
  version_t *q = al__lima_op_new(l, sizeof *q, cb, data);
  if (!q) return;
  q->allow_unknown = allow_unknown;
  struct stat st;
  if (stat(l->limactl, &st) != 0) {
    int rc = al_err_set(&q->op.err, AL_ELIMA_MISSING, "%s: %s", l->limactl, strerror(errno));
    al__lima_op_end_soon(&q->op, rc);
    return;
  }
  uint64_t key[4] = {(uint64_t) st.st_dev, (uint64_t) st.st_ino, (uint64_t) st.st_size, (uint64_t) st.st_mtime};
  memcpy(q->key, key, sizeof key);
  if (l->version[0] && memcmp(l->version_key, key, sizeof key) == 0) {
    al__lima_op_end_soon(&q->op, 0);
    return;
  }
  const char *const argv[] = {l->limactl, "--tty=false", "--version", NULL};
  q->proc.data = q;
  int rc = al__lima_spawn(l, NULL, &q->proc, argv, VERSION_MS, 4096, version_done);
  if (rc) al__lima_op_end_soon(&q->op, rc);
}
