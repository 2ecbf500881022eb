/* SPDX-License-Identifier: Apache-2.0 */
/* Run manifests, inside: the form of a line, and the schema. */
#ifndef AL_RUN_INT_H
#define AL_RUN_INT_H

#include "buf.h"
#include "run_log.h"

#define AL__RUN_SUFFIX ".jsonl"
#define AL__RUN_FILE (AL_NAME_LEN + sizeof AL__RUN_SUFFIX) /* room for the name of a file */
#define AL__RUN_READ_MAX (2u * AL_RUN_BYTES_MAX)

typedef struct al__run_line_s {
  uint64_t n;
  int64_t at_ms;
  char prev[AL_SHA256_HEX], hash[AL_SHA256_HEX], event[16];
} al__run_line_t;

/* run_line.c. Appends one line to `out` and moves *at from the line before it (hash "" = none) to this one. -EMSGSIZE,
 * -ENOMEM */
int
al__run_put(al_buf_t *out, const al_val_t *event, al__run_line_t *at);
/* Reads the frame of one line, without its newline. False with the reason when its own hash does not hold. */
bool
al__run_frame(const char *line, size_t len, al__run_line_t *out, const char **why);

/* run_schema.c: whether an event has the members that it must have, and no others. */
bool
al__run_schema(const al_val_t *event, char *why, size_t cap);

void
al__run_file(const char *name, char out[AL__RUN_FILE]);
/* The directory; -errno. */
int
al__run_dir(const al_home_t *home);

#endif
