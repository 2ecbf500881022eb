/* SPDX-License-Identifier: Apache-2.0 */
/* Image store: which image is meant, whether it may be used, and what there is. */
#include "image.h"
#include "image_int.h"
#include "mem.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Calls cb for every image directory's name; non-zero from it stops and is returned. */
static int
each_image(const al_home_t *home, int (*cb)(void *data, const char *id), void *data, al_err_t *err) {
  DIR *dir = opendir(home->images);
  struct dirent *e;
  int rc = 0;

  if (!dir) return al_err_set(err, -errno, "%s cannot be read: %s.", home->images, strerror(errno));
  while (rc == 0 && (e = readdir(dir))) {
    if (e->d_name[0] == '.' || strlen(e->d_name) >= sizeof ((al_image_t *) 0)->id) continue;
    rc = cb(data, e->d_name);
  }
  closedir(dir);
  return rc;
}

typedef struct choice_s {
  const al_home_t *home;
  const char *want, *arch;
  al__manifest_t *m, *best; /* best->name "" while there is none */
  char best_id[72], bad_id[72];
  al_err_t bad;        /* of an image that was asked for and cannot be read */
  char seen[200];      /* what there is, for the message */
} choice_t;

/* True when `a` is to be preferred: "base" first, then the later creation, then the id, so that the choice never
 * varies. */
static bool
better(const al__manifest_t *a, const char *a_id, const al__manifest_t *b, const char *b_id) {
  bool a_base = strcmp(a->name, "base") == 0, b_base = strcmp(b->name, "base") == 0;

  if (a_base != b_base) return a_base;
  int order = strcmp(a->created, b->created);
  return order != 0 ? order > 0 : strcmp(a_id, b_id) > 0;
}

static int
consider(void *data, const char *id) {
  choice_t *c = data;
  al_err_t why = {0};
  size_t n = strlen(c->seen);

  int rc = al__image_load(c->home, id, c->m, &why);
  if (rc == -ENOMEM) return rc;
  if (rc) {
    if (c->want && strcmp(c->want, id) == 0) {
      c->bad = why;
      snprintf(c->bad_id, sizeof c->bad_id, "%s", id);
    }
    return 0;
  }
  snprintf(c->seen + n, sizeof c->seen - n, "%s%s (%s)", n ? ", " : "", id, c->m->arch);
  if (c->want && strcmp(c->want, id) && strcmp(c->want, c->m->name)) return 0;
  if (strcmp(c->arch, c->m->arch)) return 0;
  if (c->best->name[0] && !better(c->m, id, c->best, c->best_id)) return 0;
  *c->best = *c->m;
  snprintf(c->best_id, sizeof c->best_id, "%s", id);
  return 0;
}

static int
none(const choice_t *c, al_err_t *err) {
  if (c->bad.code) {
    if (err) *err = c->bad;
    return c->bad.code;
  }
  if (!c->seen[0]) return al_err_set(err, AL_EIMAGE_MISSING, "No image has been imported into %s.", c->home->images);
  if (!c->want) {
    return al_err_set(err, AL_EIMAGE_MISSING, "No image for %s has been imported. There is: %s.", c->arch, c->seen);
  }
  return al_err_set(err, AL_EIMAGE_MISSING, "No image %.80s for %s has been imported. There is: %s.", c->want, c->arch,
    c->seen);
}

int
al_image_open(const al_home_t *home, const char *want, const char *vm_type, const char *arch, al_image_t *out,
  al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_calloc(2, sizeof *m);
  choice_t c = {.home = home, .want = want && want[0] ? want : NULL, .arch = arch, .m = m, .best = m ? m + 1 : NULL};
  al_image_t imported;

  if (!m) return al_err_set(err, -ENOMEM, "Out of memory.");
  if (c.want && c.want[0] == '/') {
    int rc = al_image_import(home, c.want, NULL, NULL, &imported, err);
    if (rc) return rc;
    c.want = imported.id;
  }
  int rc = each_image(home, consider, &c, err);
  if (rc) return rc;
  if (!c.best->name[0]) return none(&c, err);
  if ((rc = al__manifest_image(c.best, home, vm_type, out, err))) return rc;
  rc = al__image_verify(home, c.best_id, c.best, err);
  return rc == -ENOENT ? al_err_set(err, AL_EIMAGE_MISSING, "Image %s was removed a moment ago.", c.best_id) : rc;
}

typedef struct listing_s {
  const al_home_t *home;
  al_val_t *list;
  al__manifest_t *m;
} listing_t;

static int
add_row(void *data, const char *id) {
  listing_t *l = data;
  char dir[AL_HOME_MAX + 80];
  al_err_t why = {0};
  al_val_t *row = al_val_map();

  snprintf(dir, sizeof dir, "%s/%s", l->home->images, id);
  int rc = al__image_load(l->home, id, l->m, &why), bad = rc;
  if (rc == -ENOMEM || !row) {
    al_val_free(row);
    return -ENOMEM;
  }
  if (rc == -ENOENT || rc == -ENOTDIR) { /* gone, or a stray file: not an image */
    al_val_free(row);
    return 0;
  }
  rc = al_val_set(row, "id", al_val_text(id));
  if (!rc) rc = al_val_set(row, "name", al_val_text(bad ? NULL : l->m->name));
  if (!rc) rc = al_val_set(row, "flavour", al_val_text(bad ? NULL : l->m->flavour));
  if (!rc) rc = al_val_set(row, "version", al_val_text(bad ? NULL : l->m->version));
  if (!rc) rc = al_val_set(row, "arch", al_val_text(bad ? NULL : l->m->arch));
  if (!rc) rc = al_val_set(row, "bytes", bad ? al_val_null() : al_val_int((int64_t) l->m->bytes));
  if (!rc) rc = al_val_set(row, "created", al_val_text(bad ? NULL : l->m->created));
  if (!rc) rc = al_val_set(row, "dir", al_val_text(dir));
  if (!rc && bad) rc = al_val_set(row, "problem", al_val_text(why.msg));
  if (rc) {
    al_val_free(row);
    return rc;
  }
  return al_val_add(l->list, row);
}

int
al_image_list(const al_home_t *home, al_val_t **out, al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_calloc(1, sizeof *m);
  listing_t l = {.home = home, .list = al_val_list(), .m = m};

  int rc = m && l.list ? each_image(home, add_row, &l, err) : -ENOMEM;
  if (rc == -ENOMEM) al_err_set(err, rc, "Out of memory.");
  if (rc) al_val_free(l.list);
  else *out = l.list;
  return rc;
}
