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

#define RECORD_MAX 2600
#define PLAIN "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 ._/+:@,=~()-"

typedef struct record_s {
  al_seal_t seal;
  uintmax_t dev, ino;
} record_t;

/* What needs no quoting in JSON and no care in reading; everything else is "-", which stands for nothing. */
static const char *
plain(const char *text) {
  return text[0] && text[strspn(text, PLAIN)] == 0 ? text : "-";
}

static int
render(const record_t *r, char text[RECORD_MAX]) {
  const al_seal_t *s = &r->seal;
  int n = snprintf(text, RECORD_MAX,
    "{\"name\":\"%s\",\"row\":%" PRId64 ",\"dev\":%ju,\"ino\":%ju,\"created\":%" PRId64, s->name, s->row, r->dev,
    r->ino, s->created_s);
  if (s->owner.pid > 0)
    n += snprintf(text + n, RECORD_MAX - (size_t) n,
      ",\"expires\":%" PRId64 ",\"expiresBootMs\":%" PRId64 ",\"pid\":%d,\"start\":%" PRIu64 ",\"boot\":\"%s\","
      "\"exe\":\"%s\",\"env\":\"%s\",\"cpus\":%d,\"memoryMiB\":%" PRId64 ",\"diskGiB\":%" PRId64 ",\"image\":\"%s\","
      "\"network\":\"%s\",\"accel\":\"%s\"",
      s->expires_s, s->expires_boot_ms, (int) s->owner.pid, s->owner.start, plain(s->owner.boot), plain(s->owner.exe),
      plain(s->owner_env), s->cpus, s->memory_mib, s->disk_gib, plain(s->image), plain(s->network), plain(s->accel));
  return n + snprintf(text + n, RECORD_MAX - (size_t) n, "}\n");
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

static void
unplain(char *text) {
  if (strcmp(text, "-") == 0) text[0] = 0;
}

/* The part about the owner and the row, which records of before it lack. */
static bool
parse_rest(const char *text, al_seal_t *s) {
  int pid, n = sscanf(text,
    ",\"expires\":%" SCNd64 ",\"expiresBootMs\":%" SCNd64 ",\"pid\":%d,\"start\":%" SCNu64 ",\"boot\":\"%63[^\"]\","
    "\"exe\":\"%1023[^\"]\",\"env\":\"%32[^\"]\",\"cpus\":%d,\"memoryMiB\":%" SCNd64 ",\"diskGiB\":%" SCNd64
    ",\"image\":\"%71[^\"]\",\"network\":\"%7[^\"]\",\"accel\":\"%7[^\"]\"}",
    &s->expires_s, &s->expires_boot_ms, &pid, &s->owner.start, s->owner.boot, s->owner.exe, s->owner_env, &s->cpus,
    &s->memory_mib, &s->disk_gib, s->image, s->network, s->accel);
  if (n != 13 || pid <= 0) return false;
  s->owner.pid = (pid_t) pid;
  char *const texts[] = {s->owner.boot, s->owner.exe, s->owner_env, s->image, s->network, s->accel};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) unplain(texts[i]);
  return true;
}

/* No JSON parser: the keeper has none, and who wrote this was us. What does not render to the same text is not. */
static bool
parse(const char *text, record_t *r) {
  char again[RECORD_MAX];
  int at = 0;
  memset(r, 0, sizeof *r);
  int n = sscanf(text,
    "{\"name\":\"%28[a-z0-9-]\",\"row\":%" SCNd64 ",\"dev\":%ju,\"ino\":%ju,\"created\":%" SCNd64 "%n", r->seal.name,
    &r->seal.row, &r->dev, &r->ino, &r->seal.created_s, &at);
  if (n != 5 || !al_name_valid(r->seal.name)) return false;
  if (text[at] == ',' && !parse_rest(text + at, &r->seal)) return false;
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
  int rc = al_plat_read_file(dir, AL_SEAL_FILE, RECORD_MAX - 1, &text, &len);
  if (rc) return al_err_exhausted(rc) ? rc : 0;
  if (strlen(text) != len || !parse(text, &r)) return 0;
  if (r.dev != (uintmax_t) st.st_dev || r.ino != (uintmax_t) st.st_ino) return 0;
  *out = r.seal;
  return 1;
}
