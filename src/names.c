/* SPDX-License-Identifier: Apache-2.0 */
/* Names and paths: lane names, guest paths, and everything a file system may take for ".git". */
#include "names.h"
#include <string.h>

#define PREFIX "agent-lane-"
#define PART 8
#define BASE36_8 2821109907456ull /* 36 to the 8th */

static void
base36(char *out, uint64_t v) {
  for (int i = PART - 1; i >= 0; i--, v /= 36) out[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[v % 36];
}

int
al_name_make(char name[AL_NAME_LEN + 1], uint64_t unix_seconds, const uint8_t random[8]) {
  uint64_t r = 0;

  for (int i = 0; i < 8; i++) r = r << 8 | random[i];
  memcpy(name, PREFIX, sizeof PREFIX - 1);
  base36(name + sizeof PREFIX - 1, unix_seconds % BASE36_8);
  name[sizeof PREFIX - 1 + PART] = '-';
  base36(name + sizeof PREFIX + PART, r % BASE36_8);
  name[AL_NAME_LEN] = 0;
  return 0;
}

static bool
part_valid(const char *p) {
  for (int i = 0; i < PART; i++)
    if (!((p[i] >= 'a' && p[i] <= 'z') || (p[i] >= '0' && p[i] <= '9'))) return false;
  return true;
}

bool
al_name_valid(const char *name) {
  const char *p = name + sizeof PREFIX - 1;

  return name && strnlen(name, AL_NAME_LEN + 1) == AL_NAME_LEN && memcmp(name, PREFIX, sizeof PREFIX - 1) == 0 &&
    part_valid(p) && p[PART] == '-' && part_valid(p + PART + 1);
}

bool
al_name_next(const char **at, const char *end, char name[AL_NAME_LEN + 1]) {
  const char *p = *at;

  while ((p = memmem(p, (size_t) (end - p), PREFIX, sizeof PREFIX - 1)) && end - p >= AL_NAME_LEN) {
    memcpy(name, p++, AL_NAME_LEN);
    name[AL_NAME_LEN] = 0;
    if (!al_name_valid(name)) continue;
    *at = p;
    return true;
  }
  return false;
}

static const char *
guest_path_fault(const char *path, size_t len) {
  if (len == 0 || path[0] != '/') return "is not absolute";
  if (len > AL_PATH_MAX) return "is too long";
  if (memchr(path, 0, len)) return "contains a zero byte";
  if (path[len - 1] == '/') return "ends with a slash";
  for (size_t at = 1, end; at < len; at = end + 1) {
    const char *slash = memchr(path + at, '/', len - at);
    end = slash ? (size_t) (slash - path) : len;
    size_t n = end - at;
    if (n == 0) return "has an empty component";
    if (path[at] == '.' && (n == 1 || (n == 2 && path[at + 1] == '.'))) return "has a `.` or `..` component";
  }
  return NULL;
}

int
al_guest_path_check(const char *path, size_t len, al_err_t *err) {
  const char *fault = guest_path_fault(path, len);

  if (!fault) return 0;
  int shown = len < 200 ? (int) len : 200;
  return al_err_set(err, AL_EGUEST_PATH_INVALID, "The guest path \"%.*s\" %s.", shown, path, fault);
}

/* Length of a code point that HFS+ ignores in names (U+200C..200F, 202A..202E, 206A..206F, FEFF), else 0. */
static size_t
ignorable(const uint8_t *p, size_t n) {
  if (n < 3) return 0;
  if (p[0] == 0xef) return p[1] == 0xbb && p[2] == 0xbf ? 3 : 0;
  if (p[0] != 0xe2) return 0;
  if (p[1] == 0x80) return (p[2] >= 0x8c && p[2] <= 0x8f) || (p[2] >= 0xaa && p[2] <= 0xae) ? 3 : 0;
  return p[1] == 0x81 && p[2] >= 0xaa && p[2] <= 0xaf ? 3 : 0;
}

bool
al_is_dotgit(const char *component, size_t len) {
  const uint8_t *p = (const uint8_t *) component;
  char plain[6] = {0}; /* "git~1" and one more, which shows that the name goes on */
  size_t n = 0;

  for (size_t i = 0; i < len;) {
    size_t skip = ignorable(p + i, len - i);
    if (skip) {
      i += skip;
      continue;
    }
    uint8_t c = p[i++];
    /* NTFS: a stream name after ':', and '\' separates; both make the part before them the name. */
    if (c == ':' || c == '\\') break;
    /* Windows drops dots and spaces at the end, so they only count when something else follows. */
    if (n > 0 && (c == '.' || c == ' ')) {
      size_t rest = i;
      while (rest < len && (p[rest] == '.' || p[rest] == ' ' || ignorable(p + rest, len - rest)))
        rest += ignorable(p + rest, len - rest) ? 3 : 1;
      if (rest == len || p[rest] == ':' || p[rest] == '\\') break;
    }
    if (n == 5) return false;
    plain[n++] = (char) (c >= 'A' && c <= 'Z' ? c + 32 : c);
  }
  return strcmp(plain, ".git") == 0 || strcmp(plain, "git~1") == 0;
}
