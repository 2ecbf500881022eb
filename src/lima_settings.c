/* SPDX-License-Identifier: Apache-2.0 */
/* How a lane was started, from what stands in its directory: our lima.yaml, and QEMU's arguments in the warden's log. */
#include "lima_look.h"
#include "lima_int.h"

#include "db.h"
#include "mem.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define YAML_MAX 65536u
#define WARDEN_LOG_MAX (1u << 20)
#define DEPTH_MAX 8
#define PATH_ROOM 256

/* Theory of operation. lima.yaml is the text that lima_yaml.c has rendered: one key a line, two blanks a level, a list's
 * item begun by "- ", every text in double quotes. So no YAML reader is needed to name its values; a line of another form
 * is left out. The lane's secret stands in it, as the content of its provisioned file, and is never given to anybody. */

typedef struct level_s {
  int indent;
  char key[64];
} level_t;

typedef struct reader_s {
  level_t levels[DEPTH_MAX];
  int depth;
  al_val_t *out;
} reader_t;

/* "images.kernel.location" of the line's key and those above it. */
static void
join(const reader_t *r, char path[PATH_ROOM]) {
  size_t n = 0;
  for (int i = 0; i < r->depth && n < PATH_ROOM; i++)
    n += (size_t) snprintf(path + n, PATH_ROOM - n, "%s%s", i ? "." : "", r->levels[i].key);
}

/* A value as text: a quoted one without its quotes. NULL when out of memory. */
static al_val_t *
value_of(const char *text, size_t len) {
  al_val_t *v = NULL;
  int rc = len > 1 && text[0] == '"' ? al_json_parse(text, len, &v, NULL) : -EINVAL;
  if (rc == -ENOMEM || (rc == 0 && v->kind == AL_TEXT)) return v;
  al_val_free(v);
  return al_val_textn(text, len);
}

static int
read_line(reader_t *r, const char *line, size_t len) {
  char path[PATH_ROOM];
  int indent = 0;
  while (len > 0 && (*line == ' ' || (*line == '-' && len > 1 && line[1] == ' '))) line++, len--, indent++;
  while (r->depth > 0 && r->levels[r->depth - 1].indent >= indent) r->depth--;
  if (len > 0 && *line == '{' && r->depth > 0) { /* an item that is a map in one line */
    join(r, path);
    return al_val_set(r->out, path, al_val_textn(line, len));
  }
  const char *colon = len > 0 && *line != '#' ? memchr(line, ':', len) : NULL;
  if (!colon || colon == line || (size_t) (colon - line) >= sizeof r->levels[0].key || r->depth == DEPTH_MAX) return 0;
  level_t *level = &r->levels[r->depth++];
  level->indent = indent;
  snprintf(level->key, sizeof level->key, "%.*s", (int) (colon - line), line);
  const char *text = colon + 1;
  size_t rest = len - (size_t) (text - line);
  while (rest > 0 && *text == ' ') text++, rest--;
  if (rest == 0) return 0; /* what it is about stands in the next lines */
  join(r, path);
  if (strcmp(path, "provision.content") == 0) return 0;
  return al_val_set(r->out, path, value_of(text, rest));
}

int
al_lima_settings(const al_home_t *home, const char *name, al_val_t **out, al_err_t *err) {
  AL_AUTO_FREE char *text = NULL;
  size_t len = 0;
  *out = NULL;
  AL_AUTO_FD int dir = al__lima_lane_dir(home, name);
  int rc = dir < 0 ? dir : al_plat_read_file(dir, "lima.yaml", YAML_MAX, &text, &len);
  if (rc == -ENOENT) return 0;
  if (rc) return al_err_set(err, rc, "lima.yaml of %s cannot be read: %s", name, strerror(-rc));
  reader_t r = {.out = al_val_map()};
  rc = r.out ? 0 : -ENOMEM;
  for (size_t at = 0; rc == 0 && at < len;) {
    const char *end = memchr(text + at, '\n', len - at);
    size_t n = end ? (size_t) (end - text) - at : len - at;
    rc = read_line(&r, text + at, n);
    at += n + 1;
  }
  al_wipe(text, len);
  if (rc) {
    al_val_free(r.out);
    return al_err_set(err, -ENOMEM, "out of memory");
  }
  *out = r.out;
  return 0;
}

/* The last record in the log: a lane boots once, but the log may hold a refusal before it. */
static const char *
last_record(const char *text, size_t len, size_t *n) {
  static const char head[] = "{\"warden\":";
  const char *found = NULL;
  for (size_t at = 0; at < len;) {
    const char *end = memchr(text + at, '\n', len - at);
    if (!end) break; /* it is just being written */
    size_t line = (size_t) (end - text) - at;
    if (line > sizeof head && memcmp(text + at, head, sizeof head - 1) == 0) {
      found = text + at;
      *n = line;
    }
    at += line + 1;
  }
  return found;
}

int
al_lima_argv(const al_home_t *home, const char *name, al_val_t **out, al_err_t *err) {
  AL_AUTO_FREE char *text = NULL;
  size_t len = 0, n = 0;
  al_val_t *record = NULL;
  *out = NULL;
  AL_AUTO_FD int dir = al__lima_lane_dir(home, name);
  int rc = dir < 0 ? dir : al_plat_read_file(dir, "warden.log", WARDEN_LOG_MAX, &text, &len);
  if (rc == -ENOENT) return 0;
  if (rc) return al_err_set(err, rc, "the warden's log of %s cannot be read: %s", name, strerror(-rc));
  const char *line = last_record(text, len, &n);
  rc = line ? al_json_parse(line, n, &record, NULL) : -EINVAL;
  if (rc == -ENOMEM) return al_err_set(err, rc, "out of memory");
  if (rc) return 0;
  al_val_t *argv = record->kind == AL_MAP ? al_val_at(record, "argv") : NULL;
  if (argv && argv->kind == AL_LIST) {
    *out = al_val_list();
    if (!*out) rc = -ENOMEM;
    for (size_t i = 0; rc == 0 && i < argv->len; i++)
      if (argv->items[i]->kind == AL_TEXT) rc = al_val_add(*out, al_val_textn(argv->items[i]->text, argv->items[i]->len));
  }
  al_val_free(record);
  if (rc == 0) return 0;
  al_val_free(*out);
  *out = NULL;
  return al_err_set(err, -ENOMEM, "out of memory");
}
