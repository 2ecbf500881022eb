/* SPDX-License-Identifier: Apache-2.0 */
/* JSON by SQLite: text into values with json_tree(), values into text by hand. */
#include "buf.h"
#include "db.h"
#include "mem.h"
#include "utf8.h"
#include <errno.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (4u << 20)
#define DEPTH_MAX 64        /* of objects and arrays */
#define KEYS_MAX 16384u     /* of one object: setting a key looks at those before it */
#define RENDER_DEPTH_MAX 512

static int
bad(al_err_t *err, const char *why) {
  return al_err_set(err, -EINVAL, "Not usable as JSON: %s.", why);
}

/* What SQLite would let pass or change silently: too deep, and a zero byte, where it ends the string. */
static int
scan(const char *p, size_t n, al_err_t *err) {
  bool in_string = false;
  int depth = 0;

  if (n > TEXT_MAX) return bad(err, "it is longer than 4 MiB");
  if (memchr(p, 0, n)) return bad(err, "it contains a zero byte");
  if (!al_utf8_valid((const uint8_t *) p, n)) return bad(err, "it is not UTF-8");
  for (size_t i = 0; i < n; i++) {
    if (in_string && p[i] == '\\') {
      if (n - i > 5 && memcmp(p + i, "\\u0000", 6) == 0) return bad(err, "a string contains a zero byte");
      i++;
    } else if (p[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && (p[i] == '{' || p[i] == '[')) {
      if (++depth > DEPTH_MAX) return bad(err, "it is nested deeper than 64");
    } else if (!in_string && (p[i] == '}' || p[i] == ']')) {
      depth--;
    }
  }
  return 0;
}

/* The value of one row of json_tree; NULL when out of memory or, with err set, when it cannot be represented. */
static al_val_t *
make(sqlite3_stmt *row, al_err_t *err) {
  const char *type = (const char *) sqlite3_column_text(row, 3);

  if (!type) return NULL;
  if (strcmp(type, "object") == 0) return al_val_map();
  if (strcmp(type, "array") == 0) return al_val_list();
  if (strcmp(type, "true") == 0) return al_val_bool(true);
  if (strcmp(type, "false") == 0) return al_val_bool(false);
  if (strcmp(type, "null") == 0) return al_val_null();
  if (strcmp(type, "text") == 0) {
    const void *text = sqlite3_column_text(row, 4);
    size_t n = (size_t) sqlite3_column_bytes(row, 4);
    if (!text) return NULL;
    /* A lone surrogate escape comes out of SQLite as bytes that are no UTF-8. */
    if (al_utf8_valid(text, n)) return al_val_textn(text, n);
    bad(err, "a string contains half a surrogate pair");
    return NULL;
  }
  /* An integer that does not fit 64 bits arrives as a float, like one with a fraction or an exponent. */
  if (sqlite3_column_type(row, 4) == SQLITE_INTEGER) return al_val_int(sqlite3_column_int64(row, 4));
  double d = sqlite3_column_double(row, 4);
  if (isfinite(d)) return al_val_double(d);
  bad(err, "a number is too large");
  return NULL;
}

typedef struct tree_s {
  al_val_t *root;
  al_val_t *open[DEPTH_MAX + 1]; /* containers from the root down to the current one */
  sqlite3_int64 ids[DEPTH_MAX + 1];
  int depth;
} tree_t;

/* Rows come in document order, each with the id of its parent: the parent is one of the open containers. */
static int
place(tree_t *t, sqlite3_stmt *row, al_err_t *err) {
  al_val_t *v = make(row, err);
  int rc = 0;

  if (!v) return err->code ? err->code : -ENOMEM;
  bool container = v->kind == AL_MAP || v->kind == AL_LIST;
  if (!t->root) {
    t->root = v;
  } else {
    sqlite3_int64 parent = sqlite3_column_int64(row, 1);
    while (t->depth > 0 && t->ids[t->depth - 1] != parent) t->depth--;
    al_val_t *to = t->depth > 0 ? t->open[t->depth - 1] : NULL;
    const char *key = (const char *) sqlite3_column_text(row, 2);
    if (!to || !key ||
      (to->kind == AL_MAP && (to->len == KEYS_MAX || !al_utf8_valid((const uint8_t *) key, strlen(key))))) {
      al_val_free(v);
      return bad(err, "an object has too many or unusable keys");
    }
    rc = to->kind == AL_MAP ? al_val_set(to, key, v) : al_val_add(to, v);
  }
  if (rc || !container) return rc;
  if (t->depth > DEPTH_MAX) return bad(err, "it is nested deeper than 64");
  t->open[t->depth] = v;
  t->ids[t->depth++] = sqlite3_column_int64(row, 0);
  return 0;
}

static int
build(sqlite3 *sql, const char *text, size_t len, tree_t *t, al_err_t *err) {
  sqlite3_stmt *row = NULL;
  int rc = 0;

  /* json_valid first: newer versions of json_tree also read JSON5, which we do not want to depend on. */
  int sql_rc = sqlite3_prepare_v2(
    sql, "SELECT id, parent, key, type, atom FROM json_tree(?1) WHERE json_valid(?1)", -1, &row, NULL);
  if (sql_rc == SQLITE_OK) sql_rc = sqlite3_bind_text(row, 1, text, (int) len, SQLITE_STATIC);
  if (sql_rc == SQLITE_OK)
    while (!rc && (sql_rc = sqlite3_step(row)) == SQLITE_ROW) rc = place(t, row, err);
  if (!rc && sql_rc == SQLITE_NOMEM) rc = -ENOMEM;
  else if (!rc && (sql_rc != SQLITE_DONE || !t->root))
    rc = bad(err, sql_rc == SQLITE_DONE ? "malformed JSON" : sqlite3_errmsg(sql));
  sqlite3_finalize(row);
  return rc;
}

int
al_json_parse(const char *text, size_t len, al_val_t **out, al_err_t *err) {
  al_err_t why = {0};
  sqlite3 *sql = NULL;
  tree_t t = {0};

  *out = NULL;
  int rc = scan(text, len, &why);
  if (!rc &&
    sqlite3_open_v2(
      ":memory:", &sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MEMORY | SQLITE_OPEN_NOMUTEX, NULL))
    rc = -ENOMEM;
  if (!rc) rc = build(sql, text, len, &t, &why);
  sqlite3_close(sql);
  if (rc) {
    al_val_free(t.root);
    if (!why.code) al_err_set(&why, rc, "Out of memory while reading JSON.");
    if (err) *err = why;
    return rc;
  }
  *out = t.root;
  return 0;
}

/* Length of the valid sequence at p, 0 when there is none. */
static size_t
sequence(const uint8_t *p, size_t n) {
  for (size_t len = 1; len <= 4 && len <= n; len++)
    if (al_utf8_valid(p, len)) return len;
  return 0;
}

static int
put_string(al_buf_t *b, const char *s, size_t n) {
  const uint8_t *p = (const uint8_t *) s;

  int rc = al_buf_append(b, "\"", 1);
  for (size_t i = 0; !rc && i < n;) {
    size_t plain = i;
    while (plain < n && p[plain] >= 0x20 && p[plain] < 0x80 && p[plain] != '"' && p[plain] != '\\') plain++;
    if (plain > i) {
      rc = al_buf_append(b, p + i, plain - i);
      i = plain;
      continue;
    }
    size_t len = sequence(p + i, n - i);
    if (len == 0) rc = al_buf_append(b, "\xef\xbf\xbd", 3);
    else if (len > 1) rc = al_buf_append(b, p + i, len);
    else if (p[i] == '"' || p[i] == '\\') rc = al_buf_printf(b, "\\%c", p[i]);
    else if (p[i] == '\n') rc = al_buf_append(b, "\\n", 2);
    else rc = al_buf_printf(b, "\\u%04x", p[i]);
    i += len ? len : 1;
  }
  return rc ? rc : al_buf_append(b, "\"", 1);
}

/* The shortest of the usual precisions that reads back as the same number. JSON has no infinities. */
static int
put_double(al_buf_t *b, double d) {
  char text[64];

  if (!isfinite(d)) return al_buf_append(b, "null", 4);
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, d);
    if (strtod(text, NULL) == d) break; /* exactly the same: that is the point */
  }
  /* The host program may have set a locale whose decimal point is another character. */
  char *point = text + strspn(text, "-0123456789");
  if (*point && *point != 'e' && *point != '.') {
    size_t n = strcspn(point, "0123456789e");
    *point = '.';
    memmove(point + 1, point + n, strlen(point + n) + 1);
  }
  return al_buf_append(b, text, strlen(text));
}

static int
put(al_buf_t *b, const al_val_t *v, int depth) {
  bool map = v->kind == AL_MAP;

  switch (v->kind) {
    case AL_NULL: return al_buf_append(b, "null", 4);
    case AL_BOOL: return v->b ? al_buf_append(b, "true", 4) : al_buf_append(b, "false", 5);
    case AL_INT: return al_buf_printf(b, "%lld", (long long) v->i);
    case AL_DOUBLE: return put_double(b, v->d);
    case AL_TEXT:
    case AL_BYTES: return put_string(b, v->text, v->len);
    case AL_LIST:
    case AL_MAP: break;
  }
  if (depth == RENDER_DEPTH_MAX) return -EINVAL;
  int rc = al_buf_append(b, map ? "{" : "[", 1);
  for (size_t i = 0; !rc && i < v->len; i++) {
    if (i) rc = al_buf_append(b, ",", 1);
    if (!rc && map) rc = put_string(b, v->keys[i], strlen(v->keys[i]));
    if (!rc && map) rc = al_buf_append(b, ":", 1);
    if (!rc) rc = put(b, v->items[i], depth + 1);
  }
  return rc ? rc : al_buf_append(b, map ? "}" : "]", 1);
}

char *
al_json_text(const al_val_t *v) {
  al_buf_t b;

  al_buf_init(&b, 0);
  int rc = put(&b, v, 0);
  if (rc) al_buf_deinit(&b);
  return (char *) b.data;
}
