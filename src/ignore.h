/* SPDX-License-Identifier: Apache-2.0 */
/* Ignore patterns, a subset of .gitignore's: which names of a tree are left out. Pure; no file system access. */
#ifndef AL_IGNORE_H
#define AL_IGNORE_H

#include "err.h"
#include <stdbool.h>

#define AL_IGNORE_MAX 1024        /* patterns */
#define AL_IGNORE_LENGTH_MAX 4096 /* bytes of one */

typedef struct al_ignore_s al_ignore_t;

/* NULL-terminated, copied. The last pattern that matches counts. `*` and `?` match no slash, `[a-z]` and `[!a-z]` one
 * byte; a backslash takes a special character's meaning away. With a slash at its front or inside, a pattern is matched
 * from the root of the tree on, else against the name alone, at any depth; with one at its end it matches directories
 * only. A whole component `**` is any number of directories, at the end everything below. `!` takes names back in, but
 * nothing below a directory that is ignored. Empty ones and those that begin with `#` match nothing. Bad ones (a
 * bracket without its end, a backslash at the end, nothing but `!` or slashes, too long) are AL_EBAD_OPTION, which
 * names it. */
int
al_ignore_open(const char *const *patterns, al_ignore_t **out, al_err_t *err);
void
al_ignore_close(al_ignore_t *ig); /* NULL is fine */
/* path: relative to the root, no slash at its ends; the directories above it are not ignored. ig NULL: never. */
bool
al_ignore_matches(const al_ignore_t *ig, const char *path, bool is_dir);

#endif
