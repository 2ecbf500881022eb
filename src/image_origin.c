/* SPDX-License-Identifier: Apache-2.0 */
/* Reading where an image comes from: its inputs by their digests, and what a derived one was derived from. */
#include "image_int.h"
#include <string.h>

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define DIGIT "0123456789"
#define BASE64 LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ" DIGIT "+/"

/* Whether `text` is `prefix`, then exactly n characters out of `allowed`, then `tail`. */
static bool
shaped(const char *text, const char *prefix, const char *allowed, size_t n, const char *tail) {
  size_t begin = strlen(prefix);
  return strncmp(text, prefix, begin) == 0 && strspn(text + begin, allowed) == n && strcmp(text + begin + n, tail) == 0;
}

/* As Debian's indexes, npm's lock files and go.sum write them, so that they can be compared by eye. */
static bool
is_digest(const char *text) {
  return shaped(text, "sha256:", DIGIT "abcdef", 64, "") || shaped(text, "sha512-", BASE64, 86, "==") ||
    shaped(text, "h1:", BASE64, 43, "=");
}

static int
check_input(const al_val_t *v, al_err_t *err) {
  static const char *const kinds[] = {"deb", "npm", "go", "file", "image"};
  char kind[8], text[257], digest[112];
  bool known = false;

  if (v->kind != AL_MAP) return al__manifest_bad(err, "inputs", "has an entry that is not an object");
  int rc = al__manifest_text(v, "kind", LOWER, LOWER, kind, sizeof kind, err);
  if (!rc) rc = al__manifest_text(v, "name", NULL, NULL, text, sizeof text, err);
  if (!rc) rc = al__manifest_text(v, "version", NULL, NULL, text, 129, err);
  if (!rc) rc = al__manifest_text(v, "digest", LOWER, NULL, digest, sizeof digest, err);
  if (rc) {
    al_err_wrap(err, "One of its inputs is wrong");
    return rc;
  }
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) known |= strcmp(kind, kinds[i]) == 0;
  if (!known) return al__manifest_bad(err, "inputs", "has an entry of an unknown kind");
  return is_digest(digest) ? 0 : al__manifest_bad(err, "inputs", "has an entry without a digest of a known form");
}

static int
check_inputs(const al_val_t *map, al_err_t *err) {
  const al_val_t *list = al_val_get(map, "inputs");
  int rc = 0;

  if (!list) return 0;
  if (list->kind != AL_LIST || list->len > AL_IMAGE_INPUTS_MAX)
    return al__manifest_bad(err, "inputs", "is not a list, or a very long one");
  for (size_t i = 0; rc == 0 && i < list->len; i++) rc = check_input(list->items[i], err);
  return rc;
}

static int
take_parent(const al_val_t *map, al__manifest_t *m, al_err_t *err) {
  const al_val_t *parent = al_val_get(map, "parent");

  if (parent->kind != AL_MAP) return al__manifest_bad(err, "parent", "is not an object");
  int rc = al__manifest_text(parent, "id", NULL, NULL, m->parent.id, sizeof m->parent.id, err);
  if (!rc) rc = al__manifest_sha256(parent, "manifest_sha256", m->parent.manifest_sha256, err);
  if (!rc) rc = al__manifest_sha256(map, "project", m->project, err);
  if (!rc) rc = al__manifest_sha256(map, "inputs_key", m->inputs_key, err);
  if (rc) return rc;
  if (!al__image_id_valid(m->parent.id)) return al__manifest_bad(err, "parent", "is no image");
  return strncmp(m->parent.id + strlen(m->parent.id) - 12, m->parent.manifest_sha256, 12) == 0
    ? 0 : al__manifest_bad(err, "parent", "has an id that its digest contradicts");
}

int
al__manifest_origin(const al_val_t *map, al__manifest_t *m, al_err_t *err) {
  const al_val_t *untrusted = al_val_get(map, "untrusted_setup");
  bool derived = al_val_get(map, "parent") != NULL;
  bool named = strncmp(m->name, AL_IMAGE_DERIVED_PREFIX, sizeof AL_IMAGE_DERIVED_PREFIX - 1) == 0;

  int rc = check_inputs(map, err);
  if (rc) return rc;
  if (untrusted && untrusted->kind != AL_BOOL) return al__manifest_bad(err, "untrusted_setup", "is not true or false");
  m->untrusted_setup = untrusted && untrusted->b;
  if (named != derived)
    return al__manifest_bad(err, "name", derived ? "is not that of a derived image" : "is one of derived images only");
  if (derived) {
    if (!untrusted) return al__manifest_bad(err, "untrusted_setup", "is missing, and the image is a derived one");
    return take_parent(map, m, err);
  }
  if (m->untrusted_setup || al_val_get(map, "project") || al_val_get(map, "inputs_key"))
    return al__manifest_bad(err, "parent", "is missing, and the image says that it is a derived one");
  return 0;
}
