/* SPDX-License-Identifier: Apache-2.0 */
/* Sweep: temporary files that nobody finishes, and processes of lanes that are no more. */
#include "sweep.h"
#include "image.h"
#include "mem.h"
#include "run_log.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Theory of operation. Only what the look found is touched: entries directly below directories of ours, under names of
 * ours, of our user, and no links. All of them live for seconds, so what is a minute old is nobody's; only limactl,
 * which may be slow, has a quarter of an hour, unless no lane is starting. A half-made instance directory is somebody's
 * as long as its lane has an open row or a process that says its name. */

#define YOUNG_S 60
#define SLOW_S 900

static bool
is_open(const al_sweep_open_t *open, const char *name) {
  for (size_t i = 0; i < open->count; i++)
    if (strcmp(open->rows[i].name, name) == 0) return true;
  return false;
}

static bool
has_process(const al_sweep_look_t *look, const char *name) {
  for (size_t i = 0; i < look->count; i++)
    if (strcmp(look->procs[i].name, name) == 0) return true;
  return false;
}

static int
note(al_val_t *removed, const char *what, const char *reason) {
  if (!removed) return 0;
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "what", al_val_text(what)) | al_val_set(v, "reason", al_val_text(reason));
  if (rc) al_val_free(v);
  return rc ? rc : al_val_add(removed, v);
}

/* Seconds since the entry was changed, or -1 when it is not to be touched. A time in the future is an old one. */
static int64_t
age(int dir, const char *name, bool *is_dir) {
  struct stat st;
  if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || st.st_uid != geteuid()) return -1;
  if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)) return -1;
  *is_dir = S_ISDIR(st.st_mode);
  int64_t s = (int64_t) time(NULL) - (int64_t) st.st_mtime;
  return s < 0 ? SLOW_S : s;
}

static int
open_at(const char *path) {
  return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int64_t
wanted_age(const char *name, const al_sweep_look_t *look, const al_sweep_open_t *open) {
  if (strncmp(name, "_tmp.", 5) == 0)
    return is_open(open, name + 5) || has_process(look, name + 5) ? INT64_MAX : YOUNG_S;
  if (strncmp(name, "diskfs_iso", 10) == 0) return open->booting ? SLOW_S : 0;
  return YOUNG_S;
}

static int
tidy_temp(const al_home_t *home, const char *path, const al_sweep_look_t *look, const al_sweep_open_t *open,
  al_val_t *removed) {
  char parent[2 * AL_HOME_MAX + 300];
  const char *name = strrchr(path, '/') + 1;
  bool is_dir = false;
  snprintf(parent, sizeof parent, "%s/%.*s", home->root, (int) (name - 1 - path), path);
  AL_AUTO_FD int dir = open_at(parent);
  if (dir < 0) return 0;
  int64_t old = age(dir, name, &is_dir);
  if (old < 0 || old < wanted_age(name, look, open)) return 0;
  int rc = is_dir ? al_plat_remove_tree(dir, name) : unlinkat(dir, name, 0) ? -errno : 0;
  return rc ? 0 : note(removed, path, "left over"); /* what cannot be removed is the next sweep's */
}

/* A process of a lane that has no row and no directory: an ssh master outlives Lima's own delete. */
static int
tidy_process(const al_home_t *home, const al_sweep_proc_t *p, const al_sweep_open_t *open, al_val_t *removed) {
  char dir[AL_HOME_MAX + AL_NAME_LEN + 2], what[AL_NAME_LEN + 64];
  struct stat st;
  snprintf(dir, sizeof dir, "%s/%s", home->lima, p->name);
  if (is_open(open, p->name) || lstat(dir, &st) == 0 || errno != ENOENT) return 0;
  if (al_plat_ident_kill(&p->id, SIGKILL)) return 0;
  snprintf(what, sizeof what, "%s %ld of %s", al__lima_kind_name(p->kind), (long) p->id.pid, p->name);
  return note(removed, what, "its lane is gone");
}

/* The manifest was seen before the rows were listed, and a row is open before there is a manifest: so one that has no
 * open row, no directory and no process is of a lane that is over. Its end was not written: the disk was full, or the
 * registry was lost. */
static int
tidy_run(const al_home_t *home, const char *name, const al_sweep_look_t *look, const al_sweep_open_t *open,
  al_val_t *removed) {
  char dir[AL_HOME_MAX + AL_NAME_LEN + 2], what[AL_NAME_LEN + 32];
  struct stat st;
  if (!look->whole || is_open(open, name) || al_sweep_said(look, name)) return 0;
  snprintf(dir, sizeof dir, "%s/%s", home->lima, name);
  if (lstat(dir, &st) == 0 || errno != ENOENT || !al_run_close_lost(home, name)) return 0;
  snprintf(what, sizeof what, "run manifest of %s", name);
  return note(removed, what, "closed: its lane is gone");
}

int
al_sweep_tidy(const al_home_t *home, const al_sweep_look_t *look, const al_sweep_open_t *open, al_val_t *removed) {
  int rc = 0;
  for (size_t i = 0; rc == 0 && i < look->count; i++) rc = tidy_process(home, &look->procs[i], open, removed);
  for (size_t i = 0; rc == 0 && i < look->temps->len; i++)
    rc = tidy_temp(home, look->temps->items[i]->text, look, open, removed);
  for (size_t i = 0; rc == 0 && i < look->runs->len; i++)
    rc = tidy_run(home, look->runs->items[i]->text, look, open, removed);
  al_run_prune(home);
  (void) al_image_sweep(home);
  return rc;
}
