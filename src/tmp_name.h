/* SPDX-License-Identifier: Apache-2.0 */
/* What a transfer calls a thing that is not in place yet, on either side: `.agent-lane-<16 hexadecimal digits>.tmp`. */
#ifndef AL_TMP_NAME_H
#define AL_TMP_NAME_H

#include <stdbool.h>
#include <stdint.h>

#define AL_TMP_NAME 33

void
al_tmp_name(char out[AL_TMP_NAME], uint64_t random);
bool
al_tmp_name_is(const char *name); /* exactly such a name */

#endif
