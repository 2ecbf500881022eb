/* SPDX-License-Identifier: Apache-2.0 */
/* Run manifests: reading one, and whether its chain and each of its events hold. */
#include "run_int.h"

#include "db.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static int
broken(al_run_check_t *out, const char *why) {
  out->line = out->events + 1;
  snprintf(out->why, sizeof out->why, "%.290s", why);
  return 1;
}

/* Whether the frame follows from the lines before it. */
static const char *
misplaced(const al_run_check_t *out, const al__run_line_t *line) {
  static const char first[] = "0000000000000000000000000000000000000000000000000000000000000000";
  if (line->n != out->events) return "its number is not the next one: a line is missing, or out of order";
  if (strcmp(line->prev, out->events ? out->head : first)) return "it does not follow from the line before it";
  if (out->ended) return "it comes after the end";
  if ((out->events == 0) != (strcmp(line->event, "ready") == 0)) return "`ready` must be the first event, once";
  return NULL;
}

/* What is written is one way to write it: two spellings of one content would be two hashes of it. */
static int
check_content(const char *text, size_t len, al_run_check_t *out, al_val_t **event) {
  char why[160];
  al_err_t err = {0};
  int rc = al_json_parse(text, len, event, &err);
  if (rc == -ENOMEM) return rc;
  if (rc) return broken(out, err.msg);
  AL_AUTO_FREE char *again = al_json_text(*event);
  if (!again) return -ENOMEM;
  if (strlen(again) != len || memcmp(again, text, len)) return broken(out, "it is not in the canonical form");
  const al_val_t *schema = (*event)->kind == AL_MAP ? al_val_get(*event, "schema") : NULL;
  if (schema && schema->kind == AL_INT && (schema->i < 1 || schema->i > AL_RUN_SCHEMA)) {
    snprintf(why, sizeof why, "it is of schema %lld, which this version does not know", (long long) schema->i);
    return broken(out, why);
  }
  return al__run_schema(*event, why, sizeof why) ? 0 : broken(out, why);
}

/* 0, 1 (it does not hold, and `out` says so), -ENOMEM. */
static int
check_line(const char *text, size_t len, al_run_check_t *out, al_val_t *list) {
  al__run_line_t line;
  const char *why;
  al_val_t *event = NULL;
  if (!al__run_frame(text, len, &line, &why)) return broken(out, why);
  if ((why = misplaced(out, &line))) return broken(out, why);
  int rc = check_content(text, len, out, &event);
  if (rc) {
    al_val_free(event);
    return rc;
  }
  out->events++;
  out->ended = strcmp(line.event, "end") == 0;
  memcpy(out->head, line.hash, sizeof out->head);
  if (list) return al_val_add(list, event);
  al_val_free(event);
  return 0;
}

int
al_run_check(const char *text, size_t len, al_run_check_t *out, al_val_t **events) {
  al_val_t *list = events ? al_val_list() : NULL;
  int rc = events && !list ? -ENOMEM : 0;
  *out = (al_run_check_t) {0};
  for (size_t at = 0; rc == 0 && at < len;) {
    const char *end = memchr(text + at, '\n', len - at);
    if (!end) {
      out->interrupted = len - at;
      if (out->ended) rc = broken(out, "there is something behind the end");
      break;
    }
    size_t n = (size_t) (end - text) - at;
    rc = check_line(text + at, n, out, list);
    at += n + 1;
  }
  if (rc == 0 && out->events == 0) rc = broken(out, "there is no whole line");
  if (rc < 0) al_val_free(list);
  else if (events) *events = list;
  return rc < 0 ? rc : 0;
}

int
al_run_read(const al_home_t *home, const char *name, const char *path, char **text, size_t *len, al_err_t *err) {
  char file[AL__RUN_FILE];
  if (path) {
    int rc = al_plat_read_file(AT_FDCWD, path, AL__RUN_READ_MAX, text, len);
    if (rc == -ENOENT) return al_err_set(err, AL_ENO_MANIFEST, "there is no file %.400s", path);
    return rc ? al_err_set(err, rc, "%.400s cannot be read: %s", path, strerror(-rc)) : 0;
  }
  if (!al_name_valid(name)) return al_err_set(err, AL_EBAD_NAME, "\"%.40s\" is not the name of a lane", name);
  al__run_file(name, file);
  AL_AUTO_FD int dir = al__run_dir(home);
  int rc = dir < 0 ? dir : al_plat_read_file(dir, file, AL__RUN_READ_MAX, text, len);
  if (rc == -ENOENT)
    return al_err_set(err, AL_ENO_MANIFEST, "there is no run manifest of %s: it never became ready, or was kept for its days",
      name);
  return rc ? al_err_set(err, rc, "the run manifest of %s cannot be read: %s", name, strerror(-rc)) : 0;
}
