/* SPDX-License-Identifier: Apache-2.0 */
/* Names and paths: what a lane, a guest path and a host target may be called. Pure; no file system access. */
#ifndef AL_NAMES_H
#define AL_NAMES_H

#include "err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AL_NAME_LEN 28 /* "agent-lane-" + 8 + "-" + 8 */
#define AL_PATH_MAX 4096

/* Fills `name` (AL_NAME_LEN + 1) with ^agent-lane-[a-z0-9]{8}-[a-z0-9]{8}$: seconds in base 36, then random. */
int
al_name_make(char name[AL_NAME_LEN + 1], uint64_t unix_seconds, const uint8_t random[8]);
bool
al_name_valid(const char *name);
/* The next valid name in the bytes from *at to `end`, whatever is around it: copied to `name`, and *at moved behind its
 * first byte. False when there is no more. */
bool
al_name_next(const char **at, const char *end, char name[AL_NAME_LEN + 1]);

/* Absolute, no empty, "." or ".." component, no NUL (len), no trailing slash, <= AL_PATH_MAX:
 * AL_EGUEST_PATH_INVALID. */
int
al_guest_path_check(const char *path, size_t len, al_err_t *err);
/* True for ".git" in any case folding, also with trailing dots, spaces or NTFS/HFS tricks (".git ", "git~1", ignorable
 * code points). */
bool
al_is_dotgit(const char *component, size_t len);

#endif
