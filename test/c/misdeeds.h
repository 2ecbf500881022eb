/* SPDX-License-Identifier: Apache-2.0 */
/* What a hostile guest does and what comes of it, as the rows of a test that are also the rows of docs/HOSTILE.md. */
#ifndef MISDEEDS_H
#define MISDEEDS_H

#include "al_test.h"
#include "err.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVED 0 /* nothing is wrong: slow, or much, but served */

typedef struct misdeed_s {
  const char *name, *does;
  int code;
  const char *words; /* of the message; when served, what becomes of it */
} misdeed_t;

/* The first table behind `heading` has a row for each of these and no other; with AL_WRITE=1 they are written. */
static void
misdeeds_in_docs(const char *heading, const misdeed_t *list, size_t count) {
  static char want[16384], have[65536];
  size_t n = 0;
  for (const misdeed_t *m = list; m < list + count; m++) {
    size_t room = sizeof want - n;
    if (m->code == SERVED) n += (size_t) snprintf(want + n, room, "| `%s` | %s | served, %s |\n", m->name, m->does, m->words);
    else
      n += (size_t) snprintf(
        want + n, room, "| `%s` | %s | `%s`: … %s … |\n", m->name, m->does, al_err_name(m->code), m->words);
    assert_true(n < sizeof want);
  }
  FILE *f = fopen("docs/HOSTILE.md", "re");
  assert_non_null(f);
  have[fread(have, 1, sizeof have - 1, f)] = 0;
  fclose(f);
  char *at = strstr(have, heading);
  assert_non_null(at);
  at = strstr(at, "|---|---|---|\n");
  assert_non_null(at);
  at = strchr(at, '\n') + 1;
  size_t head = (size_t) (at - have);
  while (strncmp(at, "| `", 3) == 0) at = strchr(at, '\n') + 1;
  if (getenv("AL_WRITE")) {
    f = fopen("docs/HOSTILE.md", "we");
    assert_non_null(f);
    fprintf(f, "%.*s%s%s", (int) head, have, want, at);
    fclose(f);
  } else if ((size_t) (at - have) - head != n || memcmp(have + head, want, n) != 0) {
    fail_msg("docs/HOSTILE.md is not what this test has: run it with AL_WRITE=1 to write it");
  }
}

#endif
