/* SPDX-License-Identifier: Apache-2.0 */
/* Database: whether the file is one that we may use, looked at before SQLite sees it. */
#include "db_int.h"
#include "mem.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int
al__db_judge_file(const char *path, const struct stat *st, al_err_t *err) {
  if (S_ISLNK(st->st_mode)) return al_err_set(err, -ELOOP, "The registry %s is a symbolic link.", path);
  if (!S_ISREG(st->st_mode)) return al_err_set(err, -EINVAL, "The registry %s is not a regular file.", path);
  if (st->st_uid != geteuid()) return al_err_set(err, -EPERM, "The registry %s belongs to another user.", path);
  if (st->st_mode & 077)
    return al_err_set(
      err, -EPERM, "The registry %s is open to others (mode %o instead of 600).", path, (unsigned) st->st_mode & 07777);
  /* Asked here since SQLite would name the shared-memory file that it could not make as missing. */
  if (faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS)) {
    int e = errno;
    return al_err_set(err, -e, "The registry %s cannot be written: %s.", path, strerror(e));
  }
  return 0;
}

/* Looked at in this order, since who makes a registry now makes the log after the file. */
int
al__db_check_log(const char *path, al_err_t *err) {
  char log[PATH_MAX + 8];
  struct stat st;

  snprintf(log, sizeof log, "%s-wal", path);
  if (lstat(log, &st) || st.st_size == 0) return 0;
  if (lstat(path, &st) ? errno != ENOENT : st.st_size > 0) return 0;
  al_err_set(err, AL_EREGISTRY_DAMAGED, "%s is there, and the registry %s that it belongs to is not.", log, path);
  al_err_cure(err, "End the programs that use this home, then put registry.db back, or move it aside, too.");
  return AL_EREGISTRY_DAMAGED;
}

/* An existing file is not opened here: closing a descriptor of it would drop the locks another connection of this
 * process holds. */
int
al__db_check_file(const char *path, al_err_t *err) {
  struct stat st;

  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd >= 0) {
    int rc = fchmod(fd, 0600) ? -errno : 0; /* whatever the umask */
    close(fd);
    return rc ? al_err_set(err, rc, "The registry %s cannot be created: %s.", path, strerror(-rc)) : 0;
  }
  if (errno != EEXIST || lstat(path, &st)) {
    int e = errno;
    return al_err_set(err, -e, "The registry %s cannot be created: %s.", path, strerror(e));
  }
  return al__db_judge_file(path, &st, err);
}

/* SQLite refuses links anywhere in the path; those of the directory were the owner's choice, so they are resolved. */
int
al__db_real_path(const char *path, char out[PATH_MAX], al_err_t *err) {
  char dir[PATH_MAX], real[PATH_MAX];

  const char *slash = strrchr(path, '/');
  int n = slash ? (slash == path ? 1 : (int) (slash - path)) : 1;
  int len = snprintf(dir, sizeof dir, "%.*s", n, slash ? path : ".");
  if (len < 0 || (size_t) len >= sizeof dir)
    return al_err_set(err, -ENAMETOOLONG, "The path of the registry is too long.");
  if (!realpath(dir, real)) {
    int e = errno;
    return al_err_set(err, -e, "The directory of the registry %s: %s.", path, strerror(e));
  }
  len = snprintf(out, PATH_MAX, "%s/%s", strcmp(real, "/") == 0 ? "" : real, slash ? slash + 1 : path);
  return len > 0 && len < PATH_MAX ? 0 : al_err_set(err, -ENAMETOOLONG, "The path of the registry is too long.");
}
