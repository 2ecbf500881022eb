/* SPDX-License-Identifier: Apache-2.0 */
/* Run manifests: which there are, those whose lane was lost, and how long they are kept. */
#include "run_int.h"

#include "db.h"
#include "mem.h"
#include "platform.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DAY_S 86400
#define PRUNE_S 3600      /* between two looks at what has been kept for long enough */
#define STAMP ".pruned"   /* its time is that of the last look */

/* ---- which there are ---- */

typedef struct names_s {
  char (*list)[AL_NAME_LEN + 1];
  size_t count, room;
} names_t;

static bool
is_manifest(const char *file, char name[AL_NAME_LEN + 1]) {
  if (strlen(file) != AL__RUN_FILE - 1 || strcmp(file + AL_NAME_LEN, AL__RUN_SUFFIX)) return false;
  snprintf(name, AL_NAME_LEN + 1, "%.*s", AL_NAME_LEN, file);
  return al_name_valid(name);
}

static int
add_name(names_t *names, const char *name) {
  if (names->count == names->room) {
    size_t room = names->room ? 2 * names->room : 64;
    void *more = al_reallocarray(names->list, room, sizeof *names->list);
    if (!more) return -ENOMEM;
    names->list = more;
    names->room = room;
  }
  memcpy(names->list[names->count++], name, sizeof *names->list);
  return 0;
}

/* A name begins with the time at which it was made. */
static int
newest_first(const void *a, const void *b) {
  return strcmp(b, a);
}

/* 0, -ENOMEM, or what opendir says. */
static int
list_names(int dir, names_t *names) {
  char name[AL_NAME_LEN + 1];
  int rc = 0, copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *d = copy < 0 ? NULL : fdopendir(copy);
  if (!d) {
    rc = -errno;
    if (copy >= 0) close(copy);
    return rc;
  }
  for (struct dirent *e; rc == 0 && (e = readdir(d));)
    if (is_manifest(e->d_name, name)) rc = add_name(names, name);
  closedir(d);
  if (rc == 0 && names->count) qsort(names->list, names->count, sizeof *names->list, newest_first);
  return rc;
}

/* Its state as the file system has it: false when there is none of ours. */
static bool
look(int dir, const char *name, struct stat *st) {
  char file[AL__RUN_FILE];
  al__run_file(name, file);
  return fstatat(dir, file, st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st->st_mode) && st->st_uid == geteuid();
}

int
al_run_open_names(const al_home_t *home, al_val_t *out) {
  names_t names = {0};
  struct stat st;
  AL_AUTO_FD int dir = al__run_dir(home);
  int rc = dir < 0 ? 0 : list_names(dir, &names);
  for (size_t i = 0; rc == 0 && i < names.count; i++)
    if (look(dir, names.list[i], &st) && (st.st_mode & 0200)) rc = al_val_add(out, al_val_text(names.list[i]));
  al_free(names.list);
  return rc == -ENOMEM ? rc : 0;
}

/* ---- what they say ---- */

static const char *
last_newline(const char *text, size_t len) {
  while (len > 0 && text[len - 1] != '\n') len--;
  return len ? text + len - 1 : NULL;
}

/* The first or the last whole line of a file, parsed; NULL when there is none that can be. */
static al_val_t *
line_of(const char *text, size_t len, bool last) {
  al_val_t *v = NULL;
  const char *end = last ? last_newline(text, len) : memchr(text, '\n', len);
  if (!end) return NULL;
  const char *before = last ? last_newline(text, (size_t) (end - text)) : NULL;
  const char *begin = before ? before + 1 : text;
  return al_json_parse(begin, (size_t) (end - begin), &v, NULL) == 0 ? v : NULL;
}

static int
set_copy(al_val_t *to, const char *key, const al_val_t *from, const char *from_key) {
  const al_val_t *v = from && from->kind == AL_MAP ? al_val_get(from, from_key) : NULL;
  if (v && v->kind == AL_INT) return al_val_set(to, key, al_val_int(v->i));
  return al_val_set(to, key, v && v->kind == AL_TEXT ? al_val_text(v->text) : al_val_null());
}

static al_val_t *
image_of(const al_val_t *first) {
  const al_val_t *own = first && first->kind == AL_MAP ? al_val_get(first, "image") : NULL;
  const al_val_t *id = own && own->kind == AL_MAP ? al_val_get(own, "id") : NULL;
  return id && id->kind == AL_TEXT ? al_val_text(id->text) : al_val_null();
}

/* NULL when out of memory. */
static al_val_t *
summary(int dir, const char *name, const struct stat *st) {
  char file[AL__RUN_FILE];
  AL_AUTO_FREE char *text = NULL;
  size_t len = 0;
  al__run_file(name, file);
  if (al_plat_read_file(dir, file, AL__RUN_READ_MAX, &text, &len)) len = 0;
  al_val_t *first = len ? line_of(text, len, false) : NULL, *last = len ? line_of(text, len, true) : NULL, *v = al_val_map();
  const al_val_t *event = last && last->kind == AL_MAP ? al_val_get(last, "event") : NULL;
  bool ended = event && event->kind == AL_TEXT && strcmp(event->text, "end") == 0;
  const al_val_t *end = ended ? last : NULL;
  int rc = al_val_set(v, "name", al_val_text(name)) | al_val_set(v, "state", al_val_text(ended ? "ended" : "open")) |
    set_copy(v, "readyMs", first, "atMs") | set_copy(v, "endedMs", end, "atMs") | set_copy(v, "by", end, "by") |
    set_copy(v, "reason", end, "reason") | al_val_set(v, "image", image_of(first)) |
    al_val_set(v, "bytes", al_val_int((int64_t) st->st_size));
  al_val_free(first);
  al_val_free(last);
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

int
al_run_list(const al_home_t *home, size_t max, al_val_t **out, al_err_t *err) {
  names_t names = {0};
  struct stat st;
  AL_AUTO_FD int dir = al__run_dir(home);
  al_val_t *list = al_val_list();
  int rc = !list ? -ENOMEM : dir < 0 ? dir : list_names(dir, &names);
  for (size_t i = 0; rc == 0 && i < names.count && list->len < max; i++)
    if (look(dir, names.list[i], &st)) rc = al_val_add(list, summary(dir, names.list[i], &st));
  al_free(names.list);
  if (rc) {
    al_val_free(list);
    return al_err_set(err, rc, "the run manifests cannot be listed: %s", strerror(-rc));
  }
  *out = list;
  return 0;
}

/* ---- those whose lane is gone ---- */

bool
al_run_close_lost(const al_home_t *home, const char *name) {
  char file[AL__RUN_FILE];
  if (!al_name_valid(name)) return false;
  al_val_t *event = al_run_end_event("sweep", (int64_t) getpid(), NULL, "its lane is gone, and its end had not been written");
  int rc = al_run_end(home, name, event, NULL);
  al_val_free(event);
  if (rc != -ENOENT) return rc == 0;
  /* Whoever made it was killed before its first line was whole: nobody was told of that lane. */
  al__run_file(name, file);
  AL_AUTO_FD int dir = al__run_dir(home);
  return dir >= 0 && unlinkat(dir, file, 0) == 0;
}

/* ---- how long they are kept ---- */

/* Days that its lane asked for; the default when that cannot be read. */
static int64_t
days_of(int dir, const char *name) {
  char file[AL__RUN_FILE], *text = NULL;
  size_t len = 0;
  int64_t days = AL_RUN_DAYS;
  al__run_file(name, file);
  if (al_plat_read_file(dir, file, AL__RUN_READ_MAX, &text, &len)) return days;
  al_val_t *first = line_of(text, len, false);
  const al_val_t *options = first && first->kind == AL_MAP ? al_val_get(first, "options") : NULL;
  if (options && options->kind == AL_MAP)
    (void) al_val_get_int(options, "keepManifestDays", AL_RUN_DAYS, 0, AL_RUN_DAYS_MOST, &days, NULL);
  al_val_free(first);
  al_free(text);
  return days;
}

static bool
is_over(int dir, const char *name, const struct stat *st, int64_t now) {
  int64_t age = now - (int64_t) st->st_mtime;
  return !(st->st_mode & 0200) && age >= 0 && age >= days_of(dir, name) * DAY_S;
}

static bool
pruned_lately(int dir, int64_t now) {
  struct stat st;
  if (fstatat(dir, STAMP, &st, AT_SYMLINK_NOFOLLOW)) return false;
  int64_t age = now - (int64_t) st.st_mtime;
  return age >= 0 && age < PRUNE_S;
}

void
al_run_prune(const al_home_t *home) {
  names_t names = {0};
  char file[AL__RUN_FILE];
  struct stat st;
  int64_t now = (int64_t) time(NULL);
  AL_AUTO_FD int dir = al__run_dir(home);
  if (dir < 0 || pruned_lately(dir, now)) return;
  int rc = list_names(dir, &names);
  for (size_t i = 0; rc == 0 && i < names.count; i++) {
    if (!look(dir, names.list[i], &st)) continue;
    bool surplus = i >= AL_RUN_KEEP_MAX && !(st.st_mode & 0200);
    if (!surplus && !is_over(dir, names.list[i], &st, now)) continue;
    al__run_file(names.list[i], file);
    (void) unlinkat(dir, file, 0); /* what cannot be removed is the next sweep's */
  }
  al_free(names.list);
  AL_AUTO_FD int stamp = openat(dir, STAMP, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (stamp >= 0) (void) futimens(stamp, NULL);
}
