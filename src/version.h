/* SPDX-License-Identifier: Apache-2.0 */
/* Versions: MAJOR.MINOR.PATCH as programs say it of themselves. */
#ifndef AL_VERSION_H
#define AL_VERSION_H

#include <stdbool.h>

typedef struct al_version_s {
  unsigned major, minor, patch;
  const char *rest; /* what follows, such as "-rc.1"; points into the text that was read */
} al_version_t;

/* The version at the start of `s`, each number at most 9999; false when there is none. */
bool
al_version_parse(const char *s, al_version_t *out);
/* The first one anywhere in `line`. */
bool
al_version_find(const char *line, al_version_t *out);
/* Whether it comes before MAJOR.MINOR.0; -alpha, -beta and -rc of that one do. */
bool
al_version_older(const al_version_t *v, unsigned major, unsigned minor);

#endif
