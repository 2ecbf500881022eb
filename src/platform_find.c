/* SPDX-License-Identifier: Apache-2.0 */
/* Finding a program that nobody but root and ourselves can have put there. */
#include "platform_priv.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* NULL when only root and we can write it, else why not. */
static const char *
writable_by_others(const struct stat *st) {
  if (st->st_uid != 0 && st->st_uid != geteuid()) return "belongs to another user";
  if (st->st_mode & S_IWOTH) return "is world-writable";
  if ((st->st_mode & S_IWGRP) && !al__plat_group_trusted(st->st_gid)) return "is group-writable";
  return NULL;
}

/* Why a directory must not be searched, or NULL. */
static const char *
dir_fault(const char *dir) {
  struct stat st;

  for (const char *p = dir; (p = strstr(p, "node_modules")); p += 12)
    if ((p == dir || p[-1] == '/') && (p[12] == 0 || p[12] == '/')) return "is inside node_modules";
  if (stat(dir, &st)) return "does not exist";
  return S_ISDIR(st.st_mode) ? writable_by_others(&st) : "is not a directory";
}

static void
parent_of(char *path) {
  char *slash = strrchr(path, '/');

  slash[slash == path ? 1 : 0] = 0;
}

/* Checks the file, its directory, and for a link the target and its directory. 0, -ENOENT, AL_EPROGRAM_UNSAFE. */
static int
check(const char *path, al_err_t *err) {
  char dir[PATH_MAX], real[PATH_MAX];
  struct stat st;
  const char *fault;

  if (!realpath(path, real)) return errno == ENOENT || errno == ENOTDIR ? -ENOENT : -errno;
  if (stat(real, &st)) return -errno;
  if (!S_ISREG(st.st_mode) || access(real, X_OK)) return -ENOENT;
  snprintf(dir, sizeof dir, "%s", path);
  parent_of(dir);
  if ((fault = dir_fault(dir)))
    return al_err_set(err, AL_EPROGRAM_UNSAFE, "%s cannot be trusted: %s %s.", path, dir, fault);
  if ((fault = writable_by_others(&st)))
    return al_err_set(err, AL_EPROGRAM_UNSAFE, "%s cannot be trusted: %s %s.", path, real, fault);
  snprintf(dir, sizeof dir, "%s", real);
  parent_of(dir);
  if ((fault = dir_fault(dir)))
    return al_err_set(err, AL_EPROGRAM_UNSAFE, "%s cannot be trusted: %s %s.", path, dir, fault);
  return 0;
}

static int
check_one(const char *name, char *out, size_t cap, al_err_t *err) {
  if (name[0] != '/') return al_err_set(err, AL_EPROGRAM_UNSAFE, "%s is not an absolute path.", name);
  if (strlen(name) >= cap || strlen(name) >= PATH_MAX)
    return al_err_set(err, -ENAMETOOLONG, "The path of the program is too long.");
  int rc = check(name, err);
  if (rc == -ENOENT) return al_err_set(err, rc, "%s does not exist or is not an executable file.", name);
  if (rc < 0 && rc != AL_EPROGRAM_UNSAFE) return al_err_set(err, rc, "%s: %s.", name, strerror(-rc));
  if (rc == 0) snprintf(out, cap, "%s", name);
  return rc;
}

int
al_plat_find_program(const char *name, const char *path, char *out, size_t cap, al_err_t *err) {
  char file[PATH_MAX];
  al_err_t skipped = {0};

  if (cap) out[0] = 0;
  if (!name[0]) return al_err_set(err, -ENOENT, "The name of the program is empty.");
  if (strchr(name, '/')) return check_one(name, out, cap, err);
  if (!path) path = getenv("PATH");
  for (const char *p = path ? path : ""; *p;) {
    size_t n = strcspn(p, ":");
    int len = snprintf(file, sizeof file, "%.*s/%s", (int) (n < PATH_MAX ? n : PATH_MAX), p, name);
    bool usable = n > 0 && p[0] == '/' && len > 0 && (size_t) len < sizeof file && (size_t) len < cap;
    p += n + (p[n] == ':');
    if (!usable) continue;
    int rc = check(file, skipped.code ? NULL : &skipped);
    if (rc) continue;
    memcpy(out, file, (size_t) len + 1);
    return 0;
  }
  if (skipped.code) return al_err_set(err, -ENOENT, "%s was not found in PATH; one was skipped: %s", name, skipped.msg);
  return al_err_set(err, -ENOENT, "%s was not found in PATH.", name);
}
