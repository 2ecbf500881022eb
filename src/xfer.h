/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers: host tree or file into a lane, one regular file out of it. */
#ifndef AL_XFER_H
#define AL_XFER_H

#include "chan.h"

#define AL_COPY_OUT_MAX (256ull << 20)

typedef struct al_xfer_s al_xfer_t;
typedef struct al_xfer_stats_s {
  uint64_t bytes, files;
} al_xfer_stats_t;
/* Last and exactly once; err->code 0 = done. */
typedef void (*al_xfer_cb)(al_xfer_t *x, void *data, const al_xfer_stats_t *stats, const al_err_t *err);

/* File or directory *as* guest_path (merged into an existing directory), owned by agent. Walked by libarchive on a thread
 * of its own, streamed as pax tar to the guest's tar. Strings are copied. */
int
al_xfer_in(al_chan_t *c, const char *host_path, const char *guest_path, al_xfer_cb cb, void *data, al_xfer_t **out, al_err_t *err);
/* One regular file. `root` (NULL: nearest ancestor of host_path with .git, else its deepest existing parent). Below the
 * root no link is followed and .git refused; missing parents are made. Exclusive temporary file, fsync, rename. */
int
al_xfer_out(al_chan_t *c, const char *guest_path, const char *host_path, const char *root, uint64_t max_bytes, al_xfer_cb cb, void *data, al_xfer_t **out, al_err_t *err);
void
al_xfer_cancel(al_xfer_t *x, const al_err_t *why);

#endif
