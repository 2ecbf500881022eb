/* SPDX-License-Identifier: Apache-2.0 */
/* The home: finds, makes and checks the one directory that everything of ours lives in, and installs our programs
 * there. */
#include "home.h"
#include "mem.h"
#include "platform.h"
#include "sha256.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PROGRAM_MAX ((size_t) 64 << 20)
#define SOCKET_TAIL 26 /* "/ssh.sock." and the 16 digits that ssh adds while it makes its control socket */

/* The user's directory: HOME when it is absolute, else what the system has on record. */
static int
user_home(char *out, size_t cap, al_err_t *err) {
  struct passwd record, *found = NULL;
  char text[4096];
  const char *home = getenv("HOME");

  if (!home || home[0] != '/') {
    home = getpwuid_r(geteuid(), &record, text, sizeof text, &found) == 0 && found ? record.pw_dir : NULL;
  }
  if (!home || home[0] != '/' || strlen(home) >= cap) {
    return al_err_set(err, AL_EHOME_UNSAFE, "Your home directory cannot be told: HOME is not set to an absolute path.");
  }
  snprintf(out, cap, "%s", home);
  return 0;
}

static int
choose(const char *path, char out[PATH_MAX], al_err_t *err) {
  char home[PATH_MAX];
  size_t n;

  if (!path) path = getenv("AGENT_LANE_HOME");
  if (!path || !path[0]) path = "~/.agent-lane";
  if (path[0] == '~' && (!path[1] || path[1] == '/')) {
    int rc = user_home(home, sizeof home, err);
    if (rc) return rc;
    n = (size_t) snprintf(out, PATH_MAX, "%s%s", home, path + 1);
  } else {
    n = (size_t) snprintf(out, PATH_MAX, "%s", path);
  }
  if (n >= PATH_MAX) {
    return al_err_set(err, AL_EHOME_TOO_LONG, "The home has %zu bytes, which is more than any path may have.", n);
  }
  if (out[0] != '/') return al_err_set(err, AL_EHOME_UNSAFE, "The home %.200s is not an absolute path.", path);
  return 0;
}

/* QEMU, ssh and Lima read these out of their arguments and files as something else than a path. */
static int
check_bytes(const char *path, al_err_t *err) {
  for (const char *p = path; *p; p++) {
    unsigned char c = (unsigned char) *p;
    if (c < 0x20 || c == 0x7f) {
      return al_err_set(err, AL_EHOME_UNSAFE, "The path of the home contains a control character.");
    }
    if (strchr(",:{}\"'\\%$`", c)) {
      return al_err_set(err, AL_EHOME_UNSAFE, "The home %.200s contains '%c', which QEMU, ssh or Lima would misread.",
        path, c);
    }
  }
  return 0;
}

static int
check_component(const char *path, const struct stat *st, al_err_t *err) {
  bool ours = st->st_uid == geteuid();

  if (S_ISLNK(st->st_mode)) {
    if (ours || st->st_uid == 0) return 0;
    return al_err_set(err, AL_EHOME_UNSAFE, "%s is a link that another user (uid %u) made.", path,
      (unsigned) st->st_uid);
  }
  if (!S_ISDIR(st->st_mode)) return al_err_set(err, AL_EHOME_UNSAFE, "%s is not a directory.", path);
  if (!ours && st->st_uid != 0) {
    return al_err_set(err, AL_EHOME_UNSAFE, "%s belongs to another user (uid %u).", path, (unsigned) st->st_uid);
  }
  if (st->st_mode & S_ISVTX) return 0; /* as /tmp: nobody can rename what is ours */
  if ((st->st_mode & S_IWOTH) || (!ours && (st->st_mode & S_IWGRP))) {
    return al_err_set(err, AL_EHOME_UNSAFE, "%s may be changed by other users (mode %04o).", path,
      (unsigned) st->st_mode & 07777);
  }
  return 0;
}

/* Every component that exists, by lstat: whoever could replace one could put his own directory in the home's place. */
static int
check_components(const char *path, al_err_t *err) {
  char part[PATH_MAX];
  struct stat st;

  snprintf(part, sizeof part, "%s", path);
  for (char *p = part;; p++) {
    if (*p && *p != '/') continue;
    char kept = *p;
    if (p != part) *p = 0;
    if (lstat(p == part ? "/" : part, &st)) {
      return errno == ENOENT ? 0 : al_err_set(err, AL_EHOME_UNSAFE, "%s: %s.", part, strerror(errno));
    }
    int rc = check_component(p == part ? "/" : part, &st, err);
    if (rc) return rc;
    *p = kept;
    if (!kept) return 0;
  }
}

static int
check_length(const char *lima, al_err_t *err) {
  size_t room = sizeof ((struct sockaddr_un *) 0)->sun_path - 1;
  size_t need = strlen(lima) + 1 + AL_NAME_LEN + SOCKET_TAIL;

  if (need <= room) return 0;
  return al_err_set(err, AL_EHOME_TOO_LONG,
    "The home is %zu bytes too long: the longest socket name below %s would have %zu bytes, and this system allows %zu.",
    need - room, lima, need, room);
}

/* One of our directories below the home: made when absent, never a link, never anybody else's. */
static int
make_dir(const char *path, al_err_t *err) {
  struct stat st;

  int rc = al_plat_mkdir(path, 0700);
  if (rc && rc != -EEXIST) return al_err_set(err, rc, "%s cannot be made: %s.", path, strerror(-rc));
  AL_AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st)) {
    return al_err_set(err, AL_EHOME_UNSAFE, "%s is not a directory that we can read.", path);
  }
  if (st.st_uid != geteuid()) {
    return al_err_set(err, AL_EHOME_UNSAFE, "%s belongs to uid %u, not to you.", path, (unsigned) st.st_uid);
  }
  /* Ours are made 0700. Another mode means that somebody else made it: a home that is not only ours, such as ~ itself
   * with its ~/bin, is not changed but refused. */
  if (st.st_mode & 077) {
    return al_err_set(err, AL_EHOME_UNSAFE, "%s is open to other users (mode %04o), so it was not made by Agent Lane.",
      path, (unsigned) st.st_mode & 07777);
  }
  return 0;
}

static int
check_root(const char *root, al_err_t *err) {
  struct stat st;

  AL_AUTO_FD int fd = open(root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st)) {
    return al_err_set(err, AL_EHOME_UNSAFE, "%s cannot be opened: %s.", root, strerror(errno));
  }
  if (st.st_uid != geteuid()) {
    return al_err_set(err, AL_EHOME_UNSAFE, "%s belongs to uid %u, not to you.", root, (unsigned) st.st_uid);
  }
  if (st.st_mode & 022) {
    return al_err_set(err, AL_EHOME_UNSAFE, "%s may be changed by other users (mode %04o).", root,
      (unsigned) st.st_mode & 07777);
  }
  int network = al_plat_is_network_fs(fd);
  if (network < 0) {
    return al_err_set(err, network, "The file system of %s cannot be told: %s.", root, strerror(-network));
  }
  if (network) {
    return al_err_set(err, AL_EHOME_UNSAFE, "%s is on a network file system, where locks and sockets do not hold.",
      root);
  }
  return 0;
}

int
al_home_open(const char *path, al_home_t *out, al_err_t *err) {
  char asked[PATH_MAX], real[PATH_MAX], lima[PATH_MAX + 8], config[AL_HOME_MAX + 16];

  memset(out, 0, sizeof *out);
  int rc = choose(path, asked, err);
  if (rc || (rc = check_bytes(asked, err)) || (rc = check_components(asked, err))) return rc;
  rc = al_plat_mkdirs(asked, 0700);
  if (rc) return al_err_set(err, rc, "The home %.200s cannot be made: %s.", asked, strerror(-rc));
  if (!realpath(asked, real)) {
    return al_err_set(err, -errno, "The home %.200s cannot be resolved: %s.", asked, strerror(errno));
  }
  if ((rc = check_bytes(real, err)) || (rc = check_components(real, err)) || (rc = check_root(real, err))) return rc;
  snprintf(lima, sizeof lima, "%s/lima", real);
  if ((rc = check_length(lima, err))) return rc;
  AL_ASSERT(strlen(lima) + 16 < AL_HOME_MAX);

  snprintf(out->root, sizeof out->root, "%.*s", AL_HOME_MAX - 16, real);
  snprintf(out->lima, sizeof out->lima, "%.*s/lima", AL_HOME_MAX - 16, real);
  snprintf(out->images, sizeof out->images, "%.*s/images", AL_HOME_MAX - 16, real);
  snprintf(out->bin, sizeof out->bin, "%.*s/bin", AL_HOME_MAX - 16, real);
  snprintf(out->run, sizeof out->run, "%.*s/run", AL_HOME_MAX - 16, real);
  snprintf(out->runs, sizeof out->runs, "%.*s/runs", AL_HOME_MAX - 16, real);
  snprintf(out->registry, sizeof out->registry, "%.*s/registry.db", AL_HOME_MAX - 16, real);
  snprintf(config, sizeof config, "%s/_config", out->lima);
  const char *const dirs[] = {out->lima, config, out->images, out->bin, out->run, out->runs};
  for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
    if ((rc = make_dir(dirs[i], err))) return rc;
  }
  return 0;
}

static int
digest_of(const char *path, char hex[AL_SHA256_HEX], char **data, size_t *len) {
  int rc = al_plat_read_file(AT_FDCWD, path, PROGRAM_MAX, data, len);
  if (rc == 0) al_sha256_text(*data, *len, hex);
  return rc;
}

/* 1 for a copy of ours that is whole; anything else in its place is replaced. Negative when it cannot be looked at. */
static int
is_installed(const char *path, const char *want) {
  char hex[AL_SHA256_HEX];
  AL_AUTO_FREE char *data = NULL;
  struct stat st;
  size_t len;

  if (lstat(path, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 07777) != 0700) return 0;
  int rc = digest_of(path, hex, &data, &len);
  if (rc) return al_err_exhausted(rc) ? rc : 0;
  return strcmp(hex, want) == 0;
}

int
al_home_install(const al_home_t *home, const char *from, char *out, size_t cap, al_err_t *err) {
  char hex[AL_SHA256_HEX], dir[AL_HOME_MAX + AL_SHA256_HEX + 8];
  AL_AUTO_FREE char *data = NULL;
  const char *slash = strrchr(from, '/'), *name = slash ? slash + 1 : from;
  size_t len;

  if (!name[0] || name[0] == '.') return al_err_set(err, -EINVAL, "%.200s does not name a program.", from);
  int rc = digest_of(from, hex, &data, &len);
  if (rc == -ENOENT) return al_err_set(err, rc, "%.300s is missing: the package is not complete.", from);
  if (rc) return al_err_set(err, rc, "%.300s cannot be read: %s.", from, strerror(-rc));
  snprintf(dir, sizeof dir, "%s/%s", home->bin, hex);
  int n = snprintf(out, cap, "%s/%s", dir, name);
  if (n < 0 || (size_t) n >= cap) {
    return al_err_set(err, -ENAMETOOLONG, "The path of the installed %.100s is too long.", name);
  }
  if ((rc = make_dir(dir, err))) return rc;
  if ((rc = is_installed(out, hex)) == 0) {
    rc = al_plat_write_replace(AT_FDCWD, out, data, len, 0700);
    if (rc) return al_err_set(err, rc, "%.300s cannot be written: %s.", out, strerror(-rc));
    rc = is_installed(out, hex);
  }
  if (rc < 0) return al_err_set(err, rc, "%.300s cannot be read: %s.", out, strerror(-rc));
  if (rc > 0) return 0;
  return al_err_set(err, AL_EPROGRAM_UNSAFE, "%.300s changed while it was installed.", out);
}
