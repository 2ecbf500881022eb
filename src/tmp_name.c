/* SPDX-License-Identifier: Apache-2.0 */
/* Temporary names of transfers; compiled into both ends. */
#include "tmp_name.h"
#include <stdio.h>
#include <string.h>

#define HEAD ".agent-lane-"
#define DIGITS 16
#define TAIL ".tmp"

_Static_assert(sizeof HEAD TAIL + DIGITS == AL_TMP_NAME, "the length of a name");

void
al_tmp_name(char out[AL_TMP_NAME], uint64_t random) {
  snprintf(out, AL_TMP_NAME, HEAD "%016llx" TAIL, (unsigned long long) random);
}

bool
al_tmp_name_is(const char *name) {
  const size_t head = strlen(HEAD);
  return strlen(name) == AL_TMP_NAME - 1 && memcmp(name, HEAD, head) == 0
    && strspn(name + head, "0123456789abcdef") == DIGITS && strcmp(name + head + DIGITS, TAIL) == 0;
}
