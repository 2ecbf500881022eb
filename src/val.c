/* SPDX-License-Identifier: Apache-2.0 */
/* Values: makers, maps and lists, typed reads. */
#include "val.h"
#include "mem.h"
#include <errno.h>
#include <math.h>
#include <string.h>

static al_val_t *
make(al_kind_t kind) {
  al_val_t *v = al_calloc(1, sizeof *v);

  if (v) v->kind = kind;
  return v;
}

al_val_t *
al_val_null(void) {
  return make(AL_NULL);
}

al_val_t *
al_val_bool(bool b) {
  al_val_t *v = make(AL_BOOL);

  if (v) v->b = b;
  return v;
}

al_val_t *
al_val_int(int64_t i) {
  al_val_t *v = make(AL_INT);

  if (v) v->i = i;
  return v;
}

al_val_t *
al_val_double(double d) {
  al_val_t *v = make(AL_DOUBLE);

  if (v) v->d = d;
  return v;
}

static al_val_t *
take(al_kind_t kind, char *p, size_t n) {
  if (!p) return NULL;
  al_val_t *v = make(kind);
  if (!v) {
    al_free(p);
    return NULL;
  }
  v->text = p;
  v->len = n;
  return v;
}

al_val_t *
al_val_text(const char *s) {
  return s ? al_val_textn(s, strlen(s)) : al_val_null();
}

al_val_t *
al_val_textn(const char *s, size_t n) {
  return take(AL_TEXT, al_memdup(s, n), n);
}

al_val_t *
al_val_bytes(const void *p, size_t n) {
  return take(AL_BYTES, al_memdup(p, n), n);
}

al_val_t *
al_val_bytes_take(void *p, size_t n) {
  if (!p) return NULL;
  ((char *) p)[n] = 0;
  return take(AL_BYTES, p, n);
}

al_val_t *
al_val_list(void) {
  return make(AL_LIST);
}

al_val_t *
al_val_map(void) {
  return make(AL_MAP);
}

/* Room for one more entry. The room is not stored: it is 4, 8, 16 …, so it is used up exactly when len is one of
 * these. */
static int
grow(al_val_t *v) {
  size_t len = v->len, room;

  if (len != 0 && (len < 4 || (len & (len - 1)) != 0)) return 0;
  if (len > SIZE_MAX / 4) return -ENOMEM;
  room = len ? len * 2 : 4;
  al_val_t **items = al_reallocarray(v->items, room, sizeof *items);
  if (!items) return -ENOMEM;
  v->items = items;
  if (v->kind == AL_LIST) return 0;
  char **keys = al_reallocarray(v->keys, room, sizeof *keys);
  if (!keys) return -ENOMEM;
  v->keys = keys;
  return 0;
}

static size_t
find(const al_val_t *map, const char *key) {
  size_t i = 0;

  while (i < map->len && strcmp(map->keys[i], key) != 0) i++;
  return i;
}

int
al_val_set(al_val_t *map, const char *key, al_val_t *v) {
  if (!map || !v) {
    al_val_free(v);
    return -ENOMEM;
  }
  AL_ASSERT(map->kind == AL_MAP);
  size_t at = find(map, key);
  if (at < map->len) {
    al_val_free(map->items[at]);
    map->items[at] = v;
    return 0;
  }
  char *copy = al_strdup(key);
  if (!copy || grow(map)) {
    al_free(copy);
    al_val_free(v);
    return -ENOMEM;
  }
  map->keys[map->len] = copy;
  map->items[map->len++] = v;
  return 0;
}

int
al_val_add(al_val_t *list, al_val_t *v) {
  if (!list || !v) {
    al_val_free(v);
    return -ENOMEM;
  }
  AL_ASSERT(list->kind == AL_LIST);
  if (grow(list)) {
    al_val_free(v);
    return -ENOMEM;
  }
  list->items[list->len++] = v;
  return 0;
}

/* Without recursion, so that no tree is too deep to free: a list or map does not use `text`, which therefore holds the
 * way back up while its entries are freed. */
void
al_val_free(al_val_t *v) {
  if (!v) return;
  bool inner = v->kind == AL_LIST || v->kind == AL_MAP;
  if (inner) v->text = NULL;
  while (v) {
    inner = v->kind == AL_LIST || v->kind == AL_MAP;
    if (inner && v->len > 0) {
      al_val_t *child = v->items[--v->len];
      if (v->kind == AL_MAP) al_free(v->keys[v->len]);
      if (child->kind == AL_LIST || child->kind == AL_MAP) {
        child->text = (char *) v;
        v = child;
      } else {
        al_free(child->text);
        al_free(child);
      }
      continue;
    }
    al_val_t *up = inner ? (al_val_t *) (void *) v->text : NULL;
    if (!inner) al_free(v->text);
    al_free(v->items);
    al_free(v->keys);
    al_free(v);
    v = up;
  }
}

al_val_t *
al_val_at(al_val_t *map, const char *key) {
  if (!map || map->kind != AL_MAP) return NULL;
  size_t at = find(map, key);
  return at == map->len || map->items[at]->kind == AL_NULL ? NULL : map->items[at];
}

const al_val_t *
al_val_get(const al_val_t *map, const char *key) {
  return al_val_at((al_val_t *) (uintptr_t) map, key);
}

char *
al_val_take_text(al_val_t *v, size_t *len) {
  char *text = v->text;
  *len = v->len;
  v->text = NULL;
  v->len = 0;
  return text;
}

int
al_val_get_text(const al_val_t *map, const char *key, const char *dflt, const char **out, al_err_t *err) {
  const al_val_t *v = al_val_get(map, key);

  *out = dflt;
  if (!v) return 0;
  if (v->kind != AL_TEXT) return al_err_set(err, AL_EBAD_OPTION, "%s must be a string.", key);
  if (memchr(v->text, 0, v->len)) return al_err_set(err, AL_EBAD_OPTION, "%s must not contain a zero byte.", key);
  *out = v->text;
  return 0;
}

int
al_val_copy_text(const al_val_t *map, const char *key, char **out, al_err_t *err) {
  const char *text;
  int rc = al_val_get_text(map, key, NULL, &text, err);

  *out = NULL;
  if (rc || !text) return rc;
  *out = al_strdup(text);
  return *out ? 0 : al_err_set(err, -ENOMEM, "out of memory");
}

int
al_val_get_int(
  const al_val_t *map, const char *key, int64_t dflt, int64_t min, int64_t max, int64_t *out, al_err_t *err) {
  const al_val_t *v = al_val_get(map, key);
  int64_t i;

  *out = dflt;
  if (!v) return 0;
  /* JavaScript has one kind of number, so a whole double is an integer too; beyond 2^53 it would be a rounded one. */
  if (v->kind == AL_INT) i = v->i;
  else if (v->kind == AL_DOUBLE && fabs(v->d) <= 9007199254740992.0 && (double) (int64_t) v->d == v->d)
    i = (int64_t) v->d;
  else return al_err_set(err, AL_EBAD_OPTION, "%s must be a whole number.", key);
  if (i < min || i > max)
    return al_err_set(err, AL_EBAD_OPTION, "%s must be from %lld to %lld, not %lld.", key, (long long) min,
      (long long) max, (long long) i);
  *out = i;
  return 0;
}

int
al_val_get_double(
  const al_val_t *map, const char *key, double dflt, double min, double max, double *out, al_err_t *err) {
  const al_val_t *v = al_val_get(map, key);

  *out = dflt;
  if (!v) return 0;
  if (v->kind != AL_INT && v->kind != AL_DOUBLE) return al_err_set(err, AL_EBAD_OPTION, "%s must be a number.", key);
  double d = v->kind == AL_INT ? (double) v->i : v->d;
  /* Written so that NaN is refused. */
  if (!(d >= min && d <= max))
    return al_err_set(err, AL_EBAD_OPTION, "%s must be from %g to %g, not %g.", key, min, max, d);
  *out = d;
  return 0;
}

int
al_val_get_bool(const al_val_t *map, const char *key, bool dflt, bool *out, al_err_t *err) {
  const al_val_t *v = al_val_get(map, key);

  *out = dflt;
  if (!v) return 0;
  if (v->kind != AL_BOOL) return al_err_set(err, AL_EBAD_OPTION, "%s must be true or false.", key);
  *out = v->b;
  return 0;
}
