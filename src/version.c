/* SPDX-License-Identifier: Apache-2.0 */
/* Versions: reading and comparing them. */
#include "version.h"
#include <stdlib.h>
#include <string.h>

static bool
digit(char c) {
  return c >= '0' && c <= '9';
}

bool
al_version_parse(const char *s, al_version_t *out) {
  unsigned v[3];

  for (int i = 0; i < 3; i++) {
    char *end;
    if (!digit(*s)) return false;
    unsigned long n = strtoul(s, &end, 10);
    if (n > 9999 || (i < 2 && *end != '.')) return false;
    v[i] = (unsigned) n;
    s = i < 2 ? end + 1 : end;
  }
  *out = (al_version_t) {.major = v[0], .minor = v[1], .patch = v[2], .rest = s};
  return true;
}

bool
al_version_find(const char *line, al_version_t *out) {
  for (const char *p = line; *p; p++) {
    if (digit(*p) && (p == line || !digit(p[-1])) && al_version_parse(p, out)) return true;
  }
  return false;
}

bool
al_version_older(const al_version_t *v, unsigned major, unsigned minor) {
  static const char *const early[] = {"-alpha", "-beta", "-rc"};

  if (v->major != major) return v->major < major;
  if (v->minor != minor) return v->minor < minor;
  for (size_t i = 0; v->patch == 0 && i < sizeof early / sizeof early[0]; i++) {
    if (strncmp(v->rest, early[i], strlen(early[i])) == 0) return true;
  }
  return false;
}
