/* SPDX-License-Identifier: Apache-2.0 */
/* Database: a damaged file is set aside, never lost, and made anew; and each process goes over to the new one. */
#include "db_int.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* Theory of operation. Every opener holds <path>.lock shared while it opens and checks the file. Who finds it damaged
 * takes that lock for itself and looks again: of two that find it at once, one sets it aside and the other finds it
 * whole. The log and the shared memory go first, then the file, so that a crash in between leaves a damaged file, which
 * is set aside in its turn, never a log without its file or an empty registry over a full one. What is made anew is
 * filled in the transaction that makes it (schema->fill).
 *
 * A process that has the old file open is not disturbed: its next job sees that the path names another file and goes
 * over. SQLite itself leaves the files at the path alone when it closes a file that has been moved. */

#define ASIDE_MAX 999

static int
lock_file(const char *real, int flags) {
  char path[PATH_MAX + 8];

  snprintf(path, sizeof path, "%s.lock", real);
  int fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
  return fd < 0 ? -errno : fd;
}

static int
take(int fd, int how, const char *real, al_err_t *err) {
  uint64_t end = al_plat_mono_ms() + AL__DB_BUSY_MS;

  for (;;) {
    if (flock(fd, how | LOCK_NB) == 0) return 0;
    if (errno != EWOULDBLOCK && errno != EINTR)
      return al_err_set(err, -errno, "%s.lock cannot be locked: %s.", real, strerror(errno));
    if (al_plat_mono_ms() >= end)
      return al_err_set(err, AL_EREGISTRY_LOCKED, "%s is being opened or repaired by another process.", real);
    sqlite3_sleep(AL__DB_RETRY_MS);
  }
}

int
al__db_lock_shared(const char *real) {
  int fd = lock_file(real, O_RDONLY);

  if (fd >= 0 && take(fd, LOCK_SH, real, NULL)) {
    close(fd);
    return -1;
  }
  return fd < 0 ? -1 : fd;
}

static bool
there(const char *path, const char *tail) {
  char full[PATH_MAX + 48];
  struct stat st;

  snprintf(full, sizeof full, "%s%s", path, tail);
  return lstat(full, &st) == 0;
}

static const char *const tails[] = {"-wal", "-shm", ""}; /* in the order in which they go */

/* A name that takes nothing's place. */
static int
aside_name(const char *real, char out[PATH_MAX + 32]) {
  time_t now = time(NULL);
  struct tm day;
  char date[9];

  if (!gmtime_r(&now, &day) || !strftime(date, sizeof date, "%Y%m%d", &day)) return -EINVAL;
  for (int n = 1; n <= ASIDE_MAX; n++) {
    bool taken = false;
    snprintf(out, PATH_MAX + 32, "%s.damaged-%s-%d", real, date, n);
    for (size_t i = 0; i < 3; i++) taken |= there(out, tails[i]) && (!tails[i][0] || there(real, tails[i]));
    if (!taken) return 0;
  }
  return -EEXIST;
}

static int
set_aside(const char *real, char out[PATH_MAX + 32], al_err_t *err) {
  char from[PATH_MAX + 8], to[PATH_MAX + 48];

  int rc = aside_name(real, out);
  for (size_t i = 0; rc == 0 && i < 3; i++) {
    snprintf(from, sizeof from, "%s%s", real, tails[i]);
    snprintf(to, sizeof to, "%s%s", out, tails[i]);
    if (rename(from, to) && errno != ENOENT) rc = -errno;
  }
  return rc ? al_err_set(err, rc, "The damaged registry %s cannot be set aside: %s.", real, strerror(-rc)) : 0;
}

static int
recover(al_db_t *db, const char *why, al_err_t *err) {
  char aside[PATH_MAX + 32];

  int rc = set_aside(db->real, aside, err);
  if (!rc) rc = al__db_open_file(db, err);
  if (rc) return rc;
  const char *name = strrchr(aside, '/') + 1;
  uv_mutex_lock(&db->lock);
  int n = snprintf(db->notice, sizeof db->notice,
    "the registry was damaged and is kept as %s; a new one was made, into which the directories of lanes gave %d."
    " %.300s", name, db->filled, why);
  uv_mutex_unlock(&db->lock);
  return n < 0 ? -EINVAL : 0;
}

int
al__db_open(al_db_t *db, al_err_t *err) {
  al_err_t why = {0};
  int rc = al__db_real_path(db->path, db->real, err);
  if (rc) return rc;
  AL_AUTO_FD int fd = lock_file(db->real, O_RDWR | O_CREAT);
  if (fd < 0) return al_err_set(err, fd, "%s.lock cannot be opened: %s.", db->real, strerror(-fd));
  if ((rc = take(fd, LOCK_SH, db->real, err))) return rc;
  rc = al__db_open_file(db, &why);
  if (rc && db->damaged) {
    if ((rc = take(fd, LOCK_EX, db->real, err))) return rc;
    rc = al__db_open_file(db, &why);
    if (rc && db->damaged) return recover(db, why.msg, err);
  }
  if (rc && err) *err = why;
  return rc;
}

int
al__db_follow(al_db_t *db, al_err_t *err) {
  struct stat st;

  bool same = db->sql && lstat(db->real, &st) == 0 && (uint64_t) st.st_dev == db->dev &&
    (uint64_t) st.st_ino == db->ino;
  if (same) return 0;
  al__db_close_sql(db);
  return al__db_open(db, err);
}
