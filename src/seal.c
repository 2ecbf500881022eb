/* SPDX-License-Identifier: Apache-2.0 */
/* The sealed record: one line of JSON, read back only in exactly the form in which we write it. */
#include "seal.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define RECORD_MAX 400

typedef struct record_s {
  al_seal_t seal;
  uintmax_t dev, ino;
} record_t;

static int
render(const record_t *r, char text[RECORD_MAX]) {
  return snprintf(text, RECORD_MAX, "{\"name\":\"%s\",\"row\":%" PRId64 ",\"dev\":%ju,\"ino\":%ju,\"created\":%" PRId64 "}\n",
    r->seal.name, r->seal.row, r->dev, r->ino, r->seal.created_s);
}

int
al_seal_write(int dir, const al_seal_t *seal) {
  struct stat st;
  char text[RECORD_MAX];
  if (fstat(dir, &st) != 0) return -errno;
  record_t r = {.seal = *seal, .dev = (uintmax_t) st.st_dev, .ino = (uintmax_t) st.st_ino};
  int n = render(&r, text);
  return al_plat_write_new(dir, AL_SEAL_FILE, text, (size_t) n, 0600);
}

/* No JSON parser: the keeper has none, and who wrote this was us. What does not render to the same text again is not. */
static bool
parse(const char *text, record_t *r) {
  char again[RECORD_MAX];
  memset(r, 0, sizeof *r);
  int n = sscanf(text,
    "{\"name\":\"%28[a-z0-9-]\",\"row\":%" SCNd64 ",\"dev\":%ju,\"ino\":%ju,\"created\":%" SCNd64 "}", r->seal.name,
    &r->seal.row, &r->dev, &r->ino, &r->seal.created_s);
  if (n != 5 || !al_name_valid(r->seal.name)) return false;
  (void) render(r, again);
  return strcmp(text, again) == 0;
}

int
al_seal_read(int dir, al_seal_t *out) {
  AL_AUTO_FREE char *text = NULL;
  record_t r;
  struct stat st;
  size_t len = 0;
  if (fstat(dir, &st) != 0) return -errno;
  int rc = al_plat_read_file(dir, AL_SEAL_FILE, RECORD_MAX, &text, &len);
  if (rc) return al_err_exhausted(rc) ? rc : 0;
  if (strlen(text) != len || !parse(text, &r)) return 0;
  if (r.dev != (uintmax_t) st.st_dev || r.ino != (uintmax_t) st.st_ino) return 0;
  *out = r.seal;
  return 1;
}
