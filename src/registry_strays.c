/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: the lane directories that it does not know. */
#include "registry_int.h"
#include "val.h"
#include <dirent.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Theory of operation. A row is written before its directory is made, and closed after the directory is gone. So the
 * directories are listed first, then those with a row are taken off, and of the others only what is still there counts:
 * a lane that begins or ends meanwhile is never taken for a stray. */

int
al__reg_directories(const char *lima, al_val_t *names, al_err_t *err) {
  DIR *dir = opendir(lima);
  int rc = 0;
  if (!dir) return al_err_set(err, -errno, "%s cannot be read: %s.", lima, strerror(errno));
  for (struct dirent *e; rc == 0 && (e = readdir(dir));)
    if (al_name_valid(e->d_name)) rc = al_val_add(names, al_val_text(e->d_name));
  closedir(dir);
  return rc ? al_err_set(err, rc, "out of memory") : 0;
}

static void
drop(al_val_t *names, size_t i) {
  al_val_free(names->items[i]);
  memmove(names->items + i, names->items + i + 1, (--names->len - i) * sizeof *names->items);
}

static int
drop_known(void *data, sqlite3 *sql, al_err_t *err) {
  al_val_t *names = data;
  sqlite3_stmt *st;
  int rc = sqlite3_prepare_v2(sql, "SELECT name FROM lanes WHERE state <> 'closed'", -1, &st, NULL);
  if (rc != SQLITE_OK) return al_db_error(sql, rc, "list lanes", err);
  while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
    const char *name = (const char *) sqlite3_column_text(st, 0);
    for (size_t i = names->len; name && i-- > 0;)
      if (strcmp(names->items[i]->text, name) == 0) drop(names, i);
  }
  sqlite3_finalize(st);
  return rc == SQLITE_DONE ? 0 : al_db_error(sql, rc, "list lanes", err);
}

static void
drop_gone(const al_home_t *home, al_val_t *names) {
  char path[AL_HOME_MAX + AL_NAME_LEN + 2];
  struct stat st;
  for (size_t i = names->len; i-- > 0;) {
    snprintf(path, sizeof path, "%s/%s", home->lima, names->items[i]->text);
    if (lstat(path, &st) != 0 && errno == ENOENT) drop(names, i);
  }
}

int
al_registry_strays(const al_home_t *home, al_val_t **out, al_err_t *err) {
  al_val_t *names = al_val_list();
  int rc = names ? al__reg_directories(home->lima, names, err) : al_err_set(err, -ENOMEM, "out of memory");
  if (!rc && (rc = al_db_look(home->registry, &al__registry_schema, drop_known, names, err)) == -ENOENT) rc = 0;
  if (rc) {
    al_val_free(names);
    return rc;
  }
  drop_gone(home, names);
  *out = names;
  return 0;
}
