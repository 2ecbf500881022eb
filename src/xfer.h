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

/* File or directory *as* guest_path, owned by agent; missing parents are made. Walked on a thread of its own, streamed
 * as a pax tar to the guest's tar; modes, times of the last change, links, hard links and holes are kept, owners and
 * extended attributes are not. Links below host_path are copied as links, host_path itself is followed. A file is put
 * in place whole or not at all; a directory is merged in place, so what was unpacked before a failure stays. Sockets,
 * FIFOs and devices: AL_ESOURCE_UNSUPPORTED; AL_ESOURCE_MISSING; AL_ESOURCE_UNREADABLE, also for a file that shrinks
 * while it is read (one that grows is cut at the size it had); AL_ECOPY_IN_FAILED with what tar printed. Strings are
 * copied. An error returned here (a guest path that cannot be, no memory, AL_ECHANNEL_CLOSED) means that cb will not be
 * called. */
int
al_xfer_in(al_chan_t *c, const char *host_path, const char *guest_path, al_xfer_cb cb, void *data, al_xfer_t **out,
  al_err_t *err);
/* One regular file to the absolute host_path. The root is the nearest ancestor of host_path with a .git entry, else
 * `root` (then host_path must be below it), else the deepest existing parent. The root is resolved once; below it no
 * link is followed and missing parents are made; a `.git` component is refused anywhere (AL_EHOST_PATH_REFUSED).
 * Temporary file beside the target (0600), fsync, then mode 0666 less the umask and rename: on any failure the target
 * is as it was. max_bytes 0 = AL_COPY_OUT_MAX; more is AL_EFILE_TOO_LARGE. AL_EGUEST_FILE_MISSING, AL_EIS_LINK,
 * AL_ENOT_A_FILE, AL_ECOPY_OUT_FAILED. Strings are copied. */
int
al_xfer_out(al_chan_t *c, const char *guest_path, const char *host_path, const char *root, uint64_t max_bytes,
  al_xfer_cb cb, void *data, al_xfer_t **out, al_err_t *err);
/* Ends it with `why` (NULL: AL_EABORTED); cb follows, at the latest after 2 s for the guest's clean-up. Too late for a
 * copy out whose bytes are all here. */
void
al_xfer_cancel(al_xfer_t *x, const al_err_t *why);

#endif
