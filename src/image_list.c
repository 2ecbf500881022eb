/* SPDX-License-Identifier: Apache-2.0 */
/* Image store, told to people: what there is, all of one image, what is signed, and what is outdated. */
#include "image_int.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int
no_memory(al_err_t *err) {
  return al_err_set(err, -ENOMEM, "Out of memory.");
}

/* ---- rows ---- */

static bool
has_signature(const al_home_t *home, const char *id) {
  AL_AUTO_FD int dir = al__image_dir(home, id, NULL);
  return dir >= 0 && faccessat(dir, AL_IMAGE_SIGNATURE, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static int
fill_row(al_val_t *row, const al_home_t *home, const char *id, const al__manifest_t *m) {
  int rc = al_val_set(row, "name", al_val_text(m->name)) | al_val_set(row, "flavour", al_val_text(m->flavour)) |
    al_val_set(row, "version", al_val_text(m->version)) | al_val_set(row, "arch", al_val_text(m->arch)) |
    al_val_set(row, "bytes", al_val_int((int64_t) m->bytes)) | al_val_set(row, "created", al_val_text(m->created)) |
    al_val_set(row, "manifestSha256", al_val_text(m->sha256)) |
    al_val_set(row, "signed", al_val_bool(has_signature(home, id))) |
    al_val_set(row, "untrustedSetup", al_val_bool(m->untrusted_setup));
  return m->parent.id[0] ? rc | al_val_set(row, "parent", al_val_text(m->parent.id)) : rc;
}

/* A row of the image `id`, NULL and 0 when there is none of that name after all. `m` is filled in, but not when the row
 * has a problem. */
static int
make_row(const al_home_t *home, const char *id, al__manifest_t *m, char **text, size_t *len, al_val_t **out) {
  char dir[AL_HOME_MAX + 80];
  al_err_t why = {0};

  *out = NULL;
  snprintf(dir, sizeof dir, "%s/%s", home->images, id);
  int rc = al__image_load(home, id, m, text, len, &why), bad = rc;
  if (rc == -ENOMEM) return rc;
  if (rc == -ENOENT || rc == -ENOTDIR) return 0; /* gone, or a stray file: not an image */
  al_val_t *row = al_val_map();
  if (!row) return -ENOMEM;
  rc = al_val_set(row, "id", al_val_text(id)) | al_val_set(row, "dir", al_val_text(dir));
  if (bad) rc |= al_val_set(row, "problem", al_val_text(why.msg));
  else rc |= fill_row(row, home, id, m);
  if (rc) {
    al_val_free(row);
    return -ENOMEM;
  }
  *out = row;
  return 0;
}

typedef struct listing_s {
  const al_home_t *home;
  al_val_t *list;
  al__manifest_t *m;
} listing_t;

static int
add_row(void *data, const char *id) {
  listing_t *l = data;
  al_val_t *row;

  int rc = make_row(l->home, id, l->m, NULL, NULL, &row);
  return rc || !row ? rc : al_val_add(l->list, row);
}

static int
each_into(const al_home_t *home, int (*add)(void *data, const char *id), al_val_t **out, al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_calloc(1, sizeof *m);
  listing_t l = {.home = home, .list = al_val_list(), .m = m};

  int rc = m && l.list ? al__image_each(home, add, &l, err) : -ENOMEM;
  if (rc == -ENOMEM) no_memory(err);
  if (rc) al_val_free(l.list);
  else *out = l.list;
  return rc;
}

int
al_image_list(const al_home_t *home, al_val_t **out, al_err_t *err) {
  return each_into(home, add_row, out, err);
}

/* ---- one ---- */

typedef struct search_s {
  const al_home_t *home;
  const char *want;
  al__manifest_t *m;
  char id[AL_IMAGE_ID_MAX];
  size_t count;
} search_t;

static int
match(void *data, const char *id) {
  search_t *s = data;
  if (!al__image_is_named(id, s->want)) return 0;
  int rc = al__image_load(s->home, id, s->m, NULL, NULL, NULL);
  if (rc == -ENOMEM) return rc;
  if (rc || strcmp(s->m->name, s->want)) return 0;
  s->count++;
  snprintf(s->id, sizeof s->id, "%s", id);
  return 0;
}

int
al_image_id(const al_home_t *home, const char *want, char id[AL_IMAGE_ID_MAX], al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_malloc(sizeof *m);
  search_t s = {.home = home, .want = want, .m = m};

  if (!m) return no_memory(err);
  if (al__image_id_valid(want)) {
    snprintf(id, AL_IMAGE_ID_MAX, "%s", want);
    return 0;
  }
  int rc = al__image_each(home, match, &s, err);
  if (rc) return rc == -ENOMEM ? no_memory(err) : rc;
  if (s.count == 0) return al_err_set(err, AL_EIMAGE_MISSING, "There is no image %.80s.", want);
  if (s.count > 1) {
    return al_err_set(err, AL_EBAD_OPTION, "%zu images are called %.80s: an id is needed here.", s.count, want);
  }
  memcpy(id, s.id, sizeof s.id);
  return 0;
}

int
al_image_inspect(const al_home_t *home, const char *want, al_val_t **out, al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_calloc(1, sizeof *m);
  AL_AUTO_FREE char *text = NULL;
  char id[AL_IMAGE_ID_MAX];
  al_val_t *row = NULL;
  size_t len = 0;

  if (!m) return no_memory(err);
  int rc = al_image_id(home, want, id, err);
  if (rc) return rc;
  rc = make_row(home, id, m, &text, &len, &row);
  if (rc) return no_memory(err);
  if (!row) return al_err_set(err, AL_EIMAGE_MISSING, "There is no image %s.", id);
  if (text && al_val_set(row, "manifest", al_val_textn(text, len))) {
    al_val_free(row);
    return no_memory(err);
  }
  *out = row;
  return 0;
}

/* ---- signatures ---- */

/* `signature` as it is kept or was found; nothing is added when there is none. */
static int
add_signed(al_val_t *list, const char *id, const char *sha256, const char *text, size_t len, const char *signature) {
  if (!signature) return 0;
  al_val_t *row = al_val_map();
  int rc = al_val_set(row, "id", al_val_text(id)) | al_val_set(row, "sha256", al_val_text(sha256)) |
    al_val_set(row, "manifest", al_val_bytes(text, len)) |
    al_val_set(row, "signature", al_val_bytes(signature, strlen(signature)));
  if (rc) {
    al_val_free(row);
    return -ENOMEM;
  }
  return al_val_add(list, row);
}

static int
add_stored(void *data, const char *id) {
  listing_t *l = data;
  AL_AUTO_FREE char *text = NULL;
  AL_AUTO_FREE char *signature = NULL;
  size_t len;

  AL_AUTO_FD int dir = al__image_dir(l->home, id, NULL);
  if (dir < 0) return 0;
  int rc = al__signature_load(dir, id, &signature, NULL, NULL);
  if (rc == -ENOMEM) return rc;
  if (rc || !signature) return 0; /* a damaged one signs nothing */
  rc = al__image_load(l->home, id, l->m, &text, &len, NULL);
  if (rc == -ENOMEM) return rc;
  return rc ? 0 : add_signed(l->list, id, l->m->sha256, text, len, signature);
}

int
al_image_signed(const al_home_t *home, const char *from, al_val_t **out, al_err_t *err) {
  if (!from) return each_into(home, add_stored, out, err);
  AL_AUTO_FREE al__manifest_t *m = al_calloc(1, sizeof *m);
  al__import_t im = {.home = home, .from = from, .m = m, .to = -1};
  al_val_t *list = m ? al_val_list() : NULL;

  int rc = list ? al__import_head(&im, NULL, err) : no_memory(err);
  if (!rc && add_signed(list, im.id, m->sha256, im.text, im.len, im.signature)) rc = no_memory(err);
  al__import_end(&im);
  if (rc) al_val_free(list);
  else *out = list;
  return rc;
}

/* ---- outdated ---- */

static const char *
text_of(const al_val_t *row, const char *key) {
  const al_val_t *v = al_val_get(row, key);
  return v && v->kind == AL_TEXT ? v->text : "";
}

/* Whether `b` is what has taken the place of `a`. */
static bool
replaces(const al_val_t *b, const al_val_t *a) {
  if (al_val_get(b, "problem") || strcmp(text_of(a, "name"), text_of(b, "name"))) return false;
  if (strcmp(text_of(a, "arch"), text_of(b, "arch"))) return false;
  int order = strcmp(text_of(b, "created"), text_of(a, "created"));
  return order != 0 ? order > 0 : strcmp(text_of(b, "id"), text_of(a, "id")) > 0;
}

static int
add_outdated(al_val_t *list, const al_val_t *all, const al_val_t *a, bool derived) {
  for (size_t i = 0; i < all->len; i++) {
    const al_val_t *b = all->items[i];
    if (!replaces(b, a) || (al_val_get(a, "parent") != NULL) != derived) continue;
    char why[AL_IMAGE_ID_MAX + 40];
    snprintf(why, sizeof why, "image %s is newer", text_of(b, "id"));
    al_val_t *row = al_val_map();
    int rc = al_val_set(row, "id", al_val_text(text_of(a, "id"))) |
      al_val_set(row, "bytes", al_val_int(al_val_get(a, "bytes")->i)) | al_val_set(row, "reason", al_val_text(why));
    if (!rc) return al_val_add(list, row);
    al_val_free(row);
    return -ENOMEM;
  }
  return 0;
}

int
al_image_outdated(const al_home_t *home, al_val_t **out, al_err_t *err) {
  al_val_t *all = NULL, *list = NULL;

  int rc = al_image_list(home, &all, err);
  if (rc) return rc;
  if (!(list = al_val_list())) rc = -ENOMEM;
  for (int derived = 1; derived >= 0; derived--) {
    for (size_t i = 0; rc == 0 && i < all->len; i++) {
      if (!al_val_get(all->items[i], "problem")) rc = add_outdated(list, all, all->items[i], derived);
    }
  }
  al_val_free(all);
  if (rc) {
    al_val_free(list);
    return no_memory(err);
  }
  *out = list;
  return 0;
}
