/* SPDX-License-Identifier: Apache-2.0 */
/* Values: the small tree (null, bool, int, double, text, bytes, list, map) in which requests and results cross the
 * border to JavaScript, and which the command prints as JSON. Maps keep insertion order. */
#ifndef AL_VAL_H
#define AL_VAL_H

#include "err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { AL_NULL, AL_BOOL, AL_INT, AL_DOUBLE, AL_TEXT, AL_BYTES, AL_LIST, AL_MAP } al_kind_t;

typedef struct al_val_s al_val_t;
struct al_val_s {
  al_kind_t kind;
  bool b;
  int64_t i;
  double d;
  char *text; /* AL_TEXT, AL_BYTES: owned, a zero byte follows */
  size_t len; /* bytes of text; entries of a list or map */
  al_val_t **items;
  char **keys; /* AL_MAP */
};

/* All makers return NULL when out of memory. al_val_set/al_val_add take `v` always (freed on failure; a NULL v is
 * -ENOMEM), so makers can be nested without checks: al_val_set(m, "cpus", al_val_int(4)). */
al_val_t *
al_val_null(void);
al_val_t *
al_val_bool(bool b);
al_val_t *
al_val_int(int64_t i);
al_val_t *
al_val_double(double d);
al_val_t *
al_val_text(const char *s); /* NULL gives AL_NULL */
al_val_t *
al_val_textn(const char *s, size_t n);
al_val_t *
al_val_bytes(const void *p, size_t n);
al_val_t *
al_val_bytes_take(void *p, size_t n); /* p (al_malloc, n + 1 bytes) is taken, also on failure */
al_val_t *
al_val_list(void);
al_val_t *
al_val_map(void);
int
al_val_set(al_val_t *map, const char *key, al_val_t *v); /* replaces */
int
al_val_add(al_val_t *list, al_val_t *v);
void
al_val_free(al_val_t *v);

al_val_t *
al_val_at(al_val_t *map, const char *key); /* the same as al_val_get, for who takes something out of it */
char *
al_val_take_text(al_val_t *v, size_t *len); /* of AL_TEXT or AL_BYTES: now the caller's (al_free); v has none then */

const al_val_t *
al_val_get(const al_val_t *map, const char *key); /* NULL when absent or AL_NULL */

/* Typed reads with a default for an absent key. A wrong kind or a value out of bounds is AL_EBAD_OPTION naming the
 * key. */
int
al_val_get_text(const al_val_t *map, const char *key, const char *dflt, const char **out, al_err_t *err);
/* ... as a copy, which is the caller's; NULL when it is absent. */
int
al_val_copy_text(const al_val_t *map, const char *key, char **out, al_err_t *err);
int
al_val_get_int(
  const al_val_t *map, const char *key, int64_t dflt, int64_t min, int64_t max, int64_t *out, al_err_t *err);
int
al_val_get_double(
  const al_val_t *map, const char *key, double dflt, double min, double max, double *out, al_err_t *err);
int
al_val_get_bool(const al_val_t *map, const char *key, bool dflt, bool *out, al_err_t *err);

#endif
