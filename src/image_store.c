/* SPDX-License-Identifier: Apache-2.0 */
/* The store as a directory: which images there are, locks on them, directories aside, and removal. */
#include "image_int.h"
#include "mem.h"
#include "platform.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/*
 * Theory of operation. Processes that use the store at the same time agree by two things that the kernel does at once:
 * rename, which gives an image its name or takes it, and flock on an image's directory, which ends with its holder.
 * Who is about to use an image has a shared lock on it until a row of the registry names the image; who removes one has
 * the exclusive lock, then looks at the rows. A directory aside is locked by its maker, so that whoever gets its lock
 * knows that the maker is gone and what is in it is left over.
 */

#define POLL_MS 20
#define ASIDE_TRIES 16

int
al__image_store(const al_home_t *home, al_err_t *err) {
  int fd = open(home->images, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  return fd >= 0 ? fd : al_err_set(err, -errno, "%s cannot be opened: %s.", home->images, strerror(errno));
}

int
al__image_each(const al_home_t *home, int (*cb)(void *data, const char *id), void *data, al_err_t *err) {
  DIR *dir = opendir(home->images);
  struct dirent *e;
  int rc = 0;

  if (!dir) return al_err_set(err, -errno, "%s cannot be read: %s.", home->images, strerror(errno));
  while (rc == 0 && (e = readdir(dir))) {
    if (al__image_id_valid(e->d_name)) rc = cb(data, e->d_name);
  }
  closedir(dir);
  return rc;
}

/* ---- locks ---- */

/* Whether `name` in `dir` is still the directory that is open as `fd`. */
static bool
is_still(int dir, const char *name, int fd) {
  struct stat a, b;
  return fstat(fd, &a) == 0 && fstatat(dir, name, &b, AT_SYMLINK_NOFOLLOW) == 0 && a.st_ino == b.st_ino &&
    a.st_dev == b.st_dev;
}

static int
in_use(const char *id, al_err_t *err) {
  return al_err_set(err, AL_EIMAGE_IN_USE,
    "Image %s is in use: another process makes a lane of it, checks or replaces it.", id);
}

int
al__image_lock(const al_home_t *home, const char *id, bool shared, unsigned wait_ms, al_err_t *err) {
  uint64_t until = al_plat_mono_ms() + wait_ms;

  AL_AUTO_FD int images = al__image_store(home, err);
  if (images < 0) return images;
  int fd = openat(images, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return -ENOENT;
  if (fd < 0) return al_err_set(err, -errno, "Image %s cannot be opened: %s.", id, strerror(errno));
  while (flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB)) {
    int rc = errno == EWOULDBLOCK ? 0 : errno == EINTR ? 1 : -errno;
    if (rc == 0 && al_plat_mono_ms() >= until) rc = in_use(id, err);
    if (rc < 0) {
      close(fd);
      return rc == AL_EIMAGE_IN_USE ? rc : al_err_set(err, rc, "Image %s cannot be locked: %s.", id, strerror(-rc));
    }
    nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000l}, NULL);
  }
  if (is_still(images, id, fd)) return fd;
  close(fd);
  return -ENOENT;
}

void
al_image_release(int *hold) {
  if (*hold > 0) close(*hold - 1);
  *hold = 0;
}

/* ---- aside ---- */

static int
aside_name(char name[AL_IMAGE_ASIDE_MAX]) {
  uint64_t r;
  int rc = al_plat_random(&r, sizeof r);
  if (!rc) snprintf(name, AL_IMAGE_ASIDE_MAX, AL_IMAGE_ASIDE "%016llx", (unsigned long long) r);
  return rc;
}

/* Between making and locking a sweep may take it for left over; then it is made again. */
int
al__image_aside(int images, char name[AL_IMAGE_ASIDE_MAX], int *fd, al_err_t *err) {
  for (int i = 0; i < ASIDE_TRIES; i++) {
    int rc = aside_name(name);
    if (rc) return al_err_set(err, rc, "There are no random numbers to be had.");
    if (mkdirat(images, name, 0700)) {
      return al_err_set(err, -errno, "No directory can be made in the store of images: %s.", strerror(errno));
    }
    *fd = openat(images, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0 && errno == ENOENT) continue;
    if (*fd < 0) rc = -errno;
    else if (flock(*fd, LOCK_EX | LOCK_NB) == 0 && is_still(images, name, *fd)) return 0;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    if (rc) return al_err_set(err, rc, "%s: %s.", name, strerror(-rc));
  }
  return al_err_set(err, -EAGAIN, "A directory aside was removed again and again by other processes.");
}

int
al__image_publish(int images, const char *aside, const char *id, al_err_t *err) {
  int rc = 0;
  if (renameat(images, aside, images, id) == 0) {
    rc = al_plat_fsync(images);
    return rc == -EINVAL || rc == -ENOTSUP ? 0 : rc;
  }
  if (errno == EEXIST || errno == ENOTEMPTY) return al_plat_remove_tree(images, aside);
  return al_err_set(err, -errno, "Image %s cannot be put into the store: %s.", id, strerror(errno));
}

int
al__image_retire(int images, const char *id, al_err_t *err) {
  char name[AL_IMAGE_ASIDE_MAX];

  int rc = aside_name(name);
  if (rc) return al_err_set(err, rc, "There are no random numbers to be had.");
  if (renameat(images, id, images, name))
    return al_err_set(err, -errno, "Image %s cannot be removed: %s.", id, strerror(errno));
  (void) al_plat_fsync(images);
  /* What is left of it has no name any more, so the rest may be a sweep's. */
  (void) al_plat_remove_tree(images, name);
  return 0;
}

size_t
al_image_sweep(const al_home_t *home) {
  struct dirent *e;
  size_t count = 0;

  AL_AUTO_FD int images = al__image_store(home, NULL);
  DIR *dir = images >= 0 ? opendir(home->images) : NULL;
  if (!dir) return 0;
  while ((e = readdir(dir))) {
    if (strncmp(e->d_name, AL_IMAGE_ASIDE, sizeof AL_IMAGE_ASIDE - 1)) continue;
    if (strlen(e->d_name) != AL_IMAGE_ASIDE_MAX - 1) continue;
    AL_AUTO_FD int fd = openat(images, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB)) continue;
    count += al_plat_remove_tree(images, e->d_name) == 0;
  }
  closedir(dir);
  return count;
}

/* ---- removal ---- */

typedef struct children_s {
  const al_home_t *home;
  const char *id;
  const al_val_t *gone;
  char child[AL_IMAGE_ID_MAX];
} children_t;

static bool
is_gone(const al_val_t *gone, const char *id) {
  for (size_t i = 0; gone && i < gone->len; i++) {
    const al_val_t *v = al_val_get(gone->items[i], "id");
    if (v && v->kind == AL_TEXT && strcmp(v->text, id) == 0) return true;
  }
  return false;
}

static int
find_child(void *data, const char *id) {
  children_t *c = data;
  if (is_gone(c->gone, id)) return 0;
  AL_AUTO_FREE al__manifest_t *m = al_malloc(sizeof *m);
  if (!m) return -ENOMEM;
  int rc = al__image_load(c->home, id, m, NULL, NULL, NULL);
  if (rc == -ENOMEM) return rc;
  /* One that cannot be read is nobody's child: nothing starts from it. */
  if (rc || strcmp(m->parent.id, c->id)) return 0;
  snprintf(c->child, sizeof c->child, "%s", id);
  return 1;
}

#define LOCK_WAIT_MS 2000u /* not for a lane that waits for a place, and holds its image until it has one */

int
al_image_lock(const al_home_t *home, const char *id, int *hold, al_err_t *err) {
  *hold = 0;
  if (!al__image_id_valid(id)) return al_err_set(err, AL_EIMAGE_MISSING, "There is no image %.80s.", id);
  int fd = al__image_lock(home, id, false, LOCK_WAIT_MS, err);
  if (fd == -ENOENT) return al_err_set(err, AL_EIMAGE_MISSING, "There is no image %s.", id);
  if (fd < 0) return fd;
  *hold = fd + 1; /* 0 is none, and a descriptor may be 0 */
  return 0;
}

int
al_image_removable(const al_home_t *home, const char *id, const al_val_t *gone, al_err_t *err) {
  children_t c = {.home = home, .id = id, .gone = gone};

  int rc = al__image_each(home, find_child, &c, err);
  if (rc == -ENOMEM) return al_err_set(err, rc, "Out of memory.");
  if (rc < 0) return rc;
  if (!c.child[0]) return 0;
  return al_err_set(err, AL_EIMAGE_IN_USE, "Image %s is what image %s was derived from.", id, c.child);
}

int
al_image_remove(const al_home_t *home, const char *id, const int *hold, al_err_t *err) {
  if (*hold <= 0) return al_err_set(err, AL_EINTERNAL, "Image %s is to be removed without its lock.", id);
  int rc = al_image_removable(home, id, NULL, err);
  if (rc) return rc;
  AL_AUTO_FD int images = al__image_store(home, err);
  return images < 0 ? images : al__image_retire(images, id, err);
}
