/* SPDX-License-Identifier: Apache-2.0 */
/* Run manifests: making one, adding to it, sealing it. */
#include "run_int.h"

#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Theory of operation. Several processes may add to one manifest: its owner, one that is attached, and whoever ends the
 * lane. So nothing of the chain is kept in memory: each addition takes the file's lock, which ends with its process, reads
 * the last line, and writes behind it what follows from that. Lines are written whole, with one write; whatever stands
 * behind the last newline is of a writer that was killed, and is cut off. The end seals the file: its mode 0400 says to
 * later sweeps that there is nothing to do, without a look into it. */

#define LOCK_MS 2000
#define LOCK_PAUSE_US 2000

typedef struct session_s {
  int fd;
  off_t size;          /* of whole lines */
  al__run_line_t last; /* hash "": there is no line yet */
} session_t;

void
al__run_file(const char *name, char out[AL__RUN_FILE]) {
  snprintf(out, AL__RUN_FILE, "%.*s" AL__RUN_SUFFIX, AL_NAME_LEN, name);
}

void
al_run_path(const al_home_t *home, const char *name, char out[AL_RUN_PATH_MAX]) {
  snprintf(out, AL_RUN_PATH_MAX, "%s/%.*s" AL__RUN_SUFFIX, home->runs, AL_NAME_LEN, name);
}

int
al__run_dir(const al_home_t *home) {
  int dir = open(home->runs, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  return dir < 0 ? -errno : dir;
}

static int
failed(const char *name, int rc, al_err_t *err) {
  if (rc == -ETIMEDOUT)
    return al_err_set(err, rc, "the run manifest of %s is held by another process", name);
  if (rc == -EMSGSIZE || rc == -EFBIG)
    return al_err_set(err, rc, "the run manifest of %s takes no more: %s", name, strerror(-rc));
  bool full = rc == -ENOSPC || rc == -EDQUOT;
  return al_err_set(err, full ? AL_EHOST_DISK_FULL : rc, "the run manifest of %s cannot be written: %s", name,
    strerror(-rc));
}

static int
lock(int fd) {
  for (uint64_t end = al_plat_mono_ms() + LOCK_MS;;) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return 0;
    if (errno != EWOULDBLOCK && errno != EINTR) return -errno;
    if (al_plat_mono_ms() >= end) return -ETIMEDOUT;
    usleep(LOCK_PAUSE_US);
  }
}

/* Where the line that ends before `at` begins, within `text`. */
static size_t
line_start(const char *text, size_t at) {
  while (at > 0 && text[at - 1] != '\n') at--;
  return at;
}

static int
read_at(int fd, char *text, size_t len, off_t from) {
  for (size_t have = 0; have < len;) {
    ssize_t n = pread(fd, text + have, len - have, from + (off_t) have);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? -errno : -EIO;
    have += (size_t) n;
  }
  return 0;
}

/* Looks for the last whole line in the last `want` bytes. -EAGAIN: it begins before them. */
static int
read_last_in(session_t *s, off_t size, size_t want) {
  AL_AUTO_FREE char *text = al_malloc(want + 1);
  const char *why;
  off_t from = size - (off_t) want;
  int rc = text ? read_at(s->fd, text, want, from) : -ENOMEM;
  if (rc) return rc;
  size_t end = line_start(text, want); /* behind the last newline */
  s->size = from + (off_t) end;
  if (end == 0) return from == 0 ? 0 : -EAGAIN;
  size_t begin = line_start(text, end - 1);
  if (begin == 0 && from > 0) return -EAGAIN;
  return al__run_frame(text + begin, end - 1 - begin, &s->last, &why) ? 0 : AL_EMANIFEST_BROKEN;
}

/* The last whole line, and where it ends. Most are short. */
static int
read_last(session_t *s, off_t size) {
  static const size_t windows[] = {8192, 2 * AL_RUN_LINE_MAX};
  int rc = -EAGAIN;
  for (size_t i = 0; rc == -EAGAIN && i < sizeof windows / sizeof *windows; i++)
    rc = read_last_in(s, size, size < (off_t) windows[i] ? (size_t) size : windows[i]);
  return rc == -EAGAIN ? AL_EMANIFEST_BROKEN : rc;
}

/* 0 with the lock; 1: it is sealed; -ENOENT. */
static int
session_open(session_t *s, int dir, const char *file) {
  struct stat st;
  *s = (session_t) {.fd = openat(dir, file, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  if (s->fd < 0 && errno == EACCES && fstatat(dir, file, &st, AT_SYMLINK_NOFOLLOW) == 0 && !(st.st_mode & 0200)) return 1;
  if (s->fd < 0) return -errno;
  int rc = lock(s->fd);
  if (!rc && fstat(s->fd, &st)) rc = -errno;
  if (!rc && (!S_ISREG(st.st_mode) || st.st_uid != geteuid())) rc = -EPERM;
  if (!rc && st.st_nlink == 0) rc = -ENOENT;
  if (!rc && !(st.st_mode & 0200)) return 1;
  if (!rc) rc = read_last(s, st.st_size);
  if (!rc && s->size < st.st_size && ftruncate(s->fd, s->size)) rc = -errno;
  return rc;
}

/* All of it or nothing. */
static int
write_whole(session_t *s, const al_buf_t *text) {
  ssize_t n;
  do n = pwrite(s->fd, text->data, text->len, s->size);
  while (n < 0 && errno == EINTR);
  if (n == (ssize_t) text->len) return 0;
  int rc = n < 0 ? -errno : -ENOSPC;
  if (n > 0 && ftruncate(s->fd, s->size)) return -errno; /* the next writer cuts it off */
  return rc;
}

static int
seal(int fd) {
  int rc = al_plat_fsync(fd);
  return rc ? rc : fchmod(fd, 0400) ? -errno : 0;
}

static int
add_lines(session_t *s, const al_val_t *const *events, size_t count, bool last) {
  al_buf_t text;
  int rc = 0;
  if (s->last.hash[0] == 0) return -ENOENT; /* its first event never came to be */
  if (strcmp(s->last.event, "end") == 0) {
    rc = last ? seal(s->fd) : 0; /* who wrote it was killed before this */
    return rc ? rc : 1;
  }
  al_buf_init(&text, 0);
  for (size_t i = 0; !rc && i < count; i++) rc = al__run_put(&text, events[i], &s->last);
  if (!rc && !last && (uint64_t) s->size + text.len > AL_RUN_BYTES_MAX) rc = -EFBIG;
  if (!rc) rc = write_whole(s, &text);
  al_buf_deinit(&text);
  return rc || !last ? rc : seal(s->fd);
}

static int
add(const al_home_t *home, const char *name, const al_val_t *const *events, size_t count, bool last, al_err_t *err) {
  char file[AL__RUN_FILE];
  session_t s = {.fd = -1};
  if (!al_name_valid(name)) return al_err_set(err, AL_EBAD_NAME, "\"%.40s\" is not the name of a lane", name);
  al__run_file(name, file);
  AL_AUTO_FD int dir = al__run_dir(home);
  int rc = dir < 0 ? dir : session_open(&s, dir, file);
  if (rc == 0) rc = add_lines(&s, events, count, last);
  if (s.fd >= 0) close(s.fd); /* with its lock */
  if (rc == AL_EMANIFEST_BROKEN)
    return al_err_set(err, rc, "the run manifest of %s does not hold, so nothing is added to it", name);
  return rc >= 0 || rc == -ENOENT ? rc : failed(name, rc, err);
}

int
al_run_add(const al_home_t *home, const char *name, const al_val_t *const *events, size_t count, al_err_t *err) {
  return add(home, name, events, count, false, err);
}

int
al_run_end(const al_home_t *home, const char *name, const al_val_t *event, al_err_t *err) {
  if (!event) return al_err_set(err, -ENOMEM, "out of memory for the run manifest of %s", name);
  return add(home, name, &event, 1, true, err);
}

static int
sync_dir(int dir) {
  int rc = al_plat_fsync(dir);
  return rc == -EINVAL || rc == -ENOTSUP ? 0 : rc; /* some file systems cannot; the file is safe all the same */
}

static int
begin(int dir, const char *file, const al_val_t *event) {
  session_t s = {0};
  al_buf_t text;
  AL_AUTO_FD int fd = openat(dir, file, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return -errno;
  s.fd = fd;
  al_buf_init(&text, 0);
  int rc = lock(fd);
  if (!rc && fchmod(fd, 0600)) rc = -errno; /* whatever the umask is */
  if (!rc) rc = al__run_put(&text, event, &s.last);
  if (!rc) rc = write_whole(&s, &text);
  if (!rc) rc = al_plat_fsync(fd);
  if (!rc) rc = sync_dir(dir);
  if (rc) unlinkat(dir, file, 0);
  al_buf_deinit(&text);
  return rc;
}

int
al_run_begin(const al_home_t *home, const char *name, const al_val_t *event, al_err_t *err) {
  char file[AL__RUN_FILE];
  if (!al_name_valid(name)) return al_err_set(err, AL_EBAD_NAME, "\"%.40s\" is not the name of a lane", name);
  al__run_file(name, file);
  AL_AUTO_FD int dir = al__run_dir(home);
  int rc = dir < 0 ? dir : begin(dir, file, event);
  return rc ? failed(name, rc, err) : 0;
}

al_val_t *
al_run_end_event(const char *by, int64_t process, const char *code, const char *reason) {
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "event", al_val_text("end")); /* before the others */
  rc |= al_val_set(v, "by", al_val_text(by)) | al_val_set(v, "process", al_val_int(process)) | al_val_set(v, "code", al_val_text(code)) |
    al_val_set(v, "reason", al_val_text(reason));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}
