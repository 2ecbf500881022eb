/* SPDX-License-Identifier: Apache-2.0 */
/* TREE: walks a directory with the user's rights, following no link, and makes records of what is in it. */
#include "agent.h"
#include "tmp_name.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DENTS 3072u /* bytes of each level's part of its directory */
#define TRIES 8     /* to find out what an entry is that changes its kind all the time */
#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define FILE_FLAGS (O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY)

typedef struct dent_s { /* the kernel's linux_dirent64 */
  uint64_t ino;
  int64_t off;
  uint16_t reclen;
  uint8_t type;
  char name[];
} dent_t;

typedef struct level_s {
  int fd;           /* level 0's is the slot's */
  uint32_t at, len; /* of its dents */
  char name[AL_TREE_NAME_MAX + 1];
} level_t;

typedef struct walk_s {
  bool root;         /* whose rights */
  uint32_t depth;    /* the open level */
  uint64_t entries;
  uint32_t changed;
  int file;          /* the file at hand; -1 = none */
  uint64_t size, left;
  bool shrunk, ended;
  uint32_t rec_at, rec_len; /* of what is said next */
  uint8_t rec[AL_TREE_HEADER + AL_TREE_NAME_MAX + AL_TREE_TARGET_MAX + 1];
  level_t levels[AL_TREE_DEPTH_MAX + 1];
  uint64_t dents[AL_TREE_DEPTH_MAX + 1][DENTS / 8];
} walk_t;

_Static_assert(sizeof(walk_t) <= AL_OPEN_MAX, "a walk lives in its stream's area");

static walk_t *
walk_of(const al_slot_t *s) {
  return (walk_t *) (void *) al_stream_area(s);
}

void
al_tree_close(al_slot_t *s) {
  walk_t *w = walk_of(s);
  if (w->file >= 0) close(w->file);
  w->file = -1;
  for (; w->depth > 0; w->depth--) close(w->levels[w->depth].fd);
}

/* "PATH: why", the path below the tree's top; of a long one the end. What the host takes for an error of the top itself is
 * not said of an entry. */
static ssize_t
fail(al_slot_t *s, const char *name, int error, const char *why) {
  walk_t *w = walk_of(s);
  char path[AL_FAIL_TEXT], text[AL_FAIL_TEXT];
  size_t at = sizeof(path) - 1;
  path[at] = 0;
  for (uint32_t i = w->depth + 1; i > 0; i--) {
    const char *part = i == w->depth + 1 ? name : w->levels[i].name;
    size_t n = strlen(part), slash = path[at] != 0;
    if (n + slash > at) break;
    if (slash) path[--at] = '/';
    at -= n;
    memcpy(path + at, part, n);
  }
  const char *shown = path + at;
  size_t cut = strlen(shown) > 160 ? strlen(shown) - 160 : 0;
  snprintf(text, sizeof(text), "%s%s: %s", cut > 0 ? "..." : "", *shown ? shown + cut : ".", why != NULL ? why : strerror(error));
  bool of_top = error == ENOENT || error == ENOTDIR || error == ELOOP;
  al_tree_close(s);
  al_stream_finish(s, AL_EXIT_ERROR, (uint32_t) (of_top ? EIO : error), text);
  return -1;
}

/* Puts a record's header and name; the target of a link is in its place already. */
static void
record(walk_t *w, uint8_t type, const char *name, const struct stat *st, uint64_t size) {
  size_t n = strlen(name);
  uint8_t *p = w->rec;
  memset(p, 0, AL_TREE_HEADER);
  p[0] = type;
  al_put16(p + 2, (uint16_t) n);
  if (st != NULL) {
    al_put32(p + 4, S_ISLNK(st->st_mode) ? 0 : st->st_mode & 07777);
    al_put64(p + 8, (uint64_t) st->st_mtim.tv_sec);
    al_put32(p + 16, (uint32_t) st->st_mtim.tv_nsec);
  }
  al_put64(p + 24, size);
  memcpy(p + AL_TREE_HEADER, name, n);
  w->rec_at = 0;
  w->rec_len = (uint32_t) (AL_TREE_HEADER + n);
}

/* Of the three below: 1 = there is a record, 0 = it is gone or became something else, -errno. */
static int
enter(walk_t *w, int dir, const char *name) {
  struct stat st;
  int fd = openat(dir, name, DIR_FLAGS);
  if (fd < 0) return errno == ELOOP || errno == ENOTDIR || errno == ENOENT ? 0 : -errno;
  if (fstat(fd, &st) != 0) {
    int err = -errno;
    close(fd);
    return err;
  }
  record(w, AL_TREE_ENTER, name, &st, 0);
  level_t *l = &w->levels[++w->depth];
  l->fd = fd;
  l->at = l->len = 0;
  memcpy(l->name, name, strlen(name) + 1);
  return 1;
}

static int
begin_file(walk_t *w, int dir, const char *name) {
  struct stat st;
  int fd = openat(dir, name, FILE_FLAGS);
  if (fd < 0) return errno == ELOOP || errno == ENXIO || errno == ENOENT ? 0 : -errno;
  int err = fstat(fd, &st) != 0 ? -errno : 0;
  if (err != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return err;
  }
  w->file = fd;
  w->size = w->left = (uint64_t) st.st_size;
  w->shrunk = false;
  record(w, AL_TREE_FILE, name, &st, w->size);
  w->rec[w->rec_len] = 0; /* the name, should reading fail */
  return 1;
}

static int
put_link(walk_t *w, int dir, const char *name, const struct stat *st) {
  uint8_t *target = w->rec + AL_TREE_HEADER + strlen(name);
  ssize_t n = readlinkat(dir, name, (char *) target, AL_TREE_TARGET_MAX + 1);
  if (n < 0) return errno == EINVAL || errno == ENOENT ? 0 : -errno;
  if (n > AL_TREE_TARGET_MAX) return -ENAMETOOLONG;
  record(w, AL_TREE_LINK, name, st, (uint64_t) n);
  w->rec_len += (uint32_t) n;
  return 1;
}

/* An entry that is gone since its directory was read is as one that never was. */
static ssize_t
visit(al_slot_t *s, const char *name) {
  walk_t *w = walk_of(s);
  int dir = w->levels[w->depth].fd;
  struct stat st;
  if (strlen(name) > AL_TREE_NAME_MAX) return fail(s, name, ENAMETOOLONG, NULL);
  for (int i = 0; i < TRIES; i++) {
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) return 0;
      return fail(s, name, errno, NULL);
    }
    if (S_ISDIR(st.st_mode) && w->depth == AL_TREE_DEPTH_MAX) return fail(s, name, E2BIG, "too many levels");
    int r;
    if (S_ISDIR(st.st_mode)) r = enter(w, dir, name);
    else if (S_ISREG(st.st_mode)) r = begin_file(w, dir, name);
    else if (S_ISLNK(st.st_mode)) r = put_link(w, dir, name, &st);
    else return fail(s, name, EINVAL, "neither a file nor a directory nor a link");
    if (r < 0) return fail(s, name, -r, NULL);
    w->entries += (unsigned) r;
    if (r > 0) return 0;
  }
  return fail(s, name, EBUSY, "it changes all the time");
}

/* The next entry of the directory that is open, or its end. */
static ssize_t
advance(al_slot_t *s) {
  walk_t *w = walk_of(s);
  level_t *l = &w->levels[w->depth];
  if (l->at == l->len) {
    long n = syscall(SYS_getdents64, l->fd, w->dents[w->depth], DENTS);
    if (n < 0 && errno != ENOENT) return fail(s, "", errno, NULL); /* ENOENT: it was removed while it was read */
    if (n <= 0 && w->depth == 0) {
      record(w, AL_TREE_END, "", NULL, w->entries);
      al_put32(w->rec + 4, w->changed);
      w->ended = true;
    } else if (n <= 0) {
      close(l->fd);
      w->depth--;
      record(w, AL_TREE_LEAVE, "", NULL, 0);
    }
    l->at = 0;
    l->len = n > 0 ? (uint32_t) n : 0;
    return 0;
  }
  const dent_t *d = (const dent_t *) (const void *) ((const uint8_t *) w->dents[w->depth] + l->at);
  l->at += d->reclen;
  if (strcmp(d->name, ".") == 0 || strcmp(d->name, "..") == 0) return 0;
  if (al_tmp_name_is(d->name)) return 0; /* what a copy in has not put in place; the host would refuse it */
  return visit(s, d->name);
}

/* A file that grows is cut where it ended, one that shrinks is filled up with zeros: its size has been said. */
static ssize_t
file_bytes(al_slot_t *s, uint8_t *p, size_t n) {
  walk_t *w = walk_of(s);
  ssize_t got = 0;
  if (n > w->left) n = (size_t) w->left;
  while (n > 0 && !w->shrunk && (got = read(w->file, p, n)) < 0 && errno == EINTR) continue;
  if (got < 0) return fail(s, (const char *) w->rec + AL_TREE_HEADER, errno, NULL);
  if (n > 0 && got == 0) {
    w->changed += !w->shrunk;
    w->shrunk = true;
    memset(p, 0, n);
    got = (ssize_t) n;
  }
  w->left -= (uint64_t) got;
  if (w->left > 0) return got;
  struct stat st;
  if (!w->shrunk && fstat(w->file, &st) == 0 && (uint64_t) st.st_size != w->size) w->changed++;
  close(w->file);
  w->file = -1;
  return got;
}

static size_t
copy_record(walk_t *w, uint8_t *p, size_t n) {
  if (n > w->rec_len - w->rec_at) n = w->rec_len - w->rec_at;
  memcpy(p, w->rec + w->rec_at, n);
  w->rec_at += (uint32_t) n;
  return n;
}

static ssize_t
fill(al_slot_t *s, uint8_t *p, size_t n) {
  walk_t *w = walk_of(s);
  size_t len = 0;
  while (len < n) {
    ssize_t r = 0;
    if (w->rec_at < w->rec_len) r = (ssize_t) copy_record(w, p + len, n - len);
    else if (w->file >= 0) r = file_bytes(s, p + len, n - len);
    else if (!w->ended) r = advance(s);
    else break;
    if (r < 0) return r;
    len += (size_t) r;
  }
  if (w->ended && w->rec_at == w->rec_len) s->size = s->sent + len;
  return (ssize_t) len;
}

ssize_t
al_tree_fill(al_slot_t *s, uint8_t *p, size_t n) {
  const al_user_t *u = NULL;
  int err = al_agent.local ? 0 : al_users_find(walk_of(s)->root ? "root" : al_agent.user_name, &u);
  if (err == 0 && u != NULL) err = al_users_become(u);
  if (err != 0) return fail(s, "", -err, "the user is gone");
  ssize_t r = fill(s, p, n);
  if (u != NULL) al_users_restore();
  return r;
}

void
al_tree_open(al_slot_t *s, const uint8_t *tlvs, uint32_t len) {
  struct stat st;
  al_stream_dirty(s);
  walk_t *w = walk_of(s);
  w->depth = w->changed = 0;
  w->entries = 0;
  w->file = -1;
  w->ended = false;
  w->levels[0].at = w->levels[0].len = 0;
  int fd = al_read_request(s, tlvs, len, DIR_FLAGS, &w->root);
  if (fd < 0) return;
  if (fstat(fd, &st) != 0) {
    int err = errno;
    close(fd);
    al_stream_finish(s, AL_EXIT_ERROR, (uint32_t) err, strerror(err));
    return;
  }
  w->levels[0].fd = fd;
  record(w, AL_TREE_ROOT, "", &st, 0);
  s->state = AL_SLOT_TREE;
  s->size = UINT64_MAX; /* until the last record has been made */
  s->fd[AL_SUB_STDOUT] = fd;
  s->credit[AL_SUB_STDOUT] = AL_WINDOW_DEFAULT;
  s->started_ns = al_main_now();
}
