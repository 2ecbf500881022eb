/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers: host tree or file into a lane, one regular file or a directory out of it. */
#ifndef AL_XFER_H
#define AL_XFER_H

#include "buf.h"
#include "chan.h"
#include "names.h"
#include "sha256.h"

/* Bytes: default of maxCopyOutBytes and of maxCopyOutTotalBytes, and the bound of both. */
#define AL_COPY_OUT_MAX (256ull << 20)
#define AL_COPY_OUT_TOTAL (4ll << 30)
#define AL_COPY_OUT_MOST (1ll << 40)
#define AL_TREE_ENTRIES 100000u
#define AL_TREE_DEPTH 64u
#define AL_COPIED_FILES 2000u /* of one copy out whose hashes are kept; the others are only counted */
#define AL_COPIED_PATH 512u   /* bytes of a path that are kept with them; a longer one ends with "…" */

typedef struct al_xfer_s al_xfer_t;
typedef struct al_xfer_stats_s {
  uint64_t bytes, files; /* so far; in the end: in all. files counts entries of every kind */
  uint64_t total;        /* bytes in all, 0 = not known */
  uint64_t changed;      /* files that grew or shrank while they were read: cut or padded with zeros; not of a single file out */
  char changed_path[AL_PATH_MAX + 1]; /* in: the first of them on the host, "" = none; any bytes */
  /* trees: links that would lead out of the tree, and were left out; the first of them below guest_path; any bytes */
  uint64_t skipped;
  char skipped_path[AL_PATH_MAX + 1];
} al_xfer_stats_t;

/* Both on the loop thread. on_progress comes at most ten times a second, never from inside a call of the receiver's and
 * never after on_end; `changed` is not told before the end. It may cancel. on_end comes last and exactly once;
 * err->code 0 = done. */
typedef void (*al_xfer_progress_cb)(al_xfer_t *x, void *data, const al_xfer_stats_t *stats);
typedef void (*al_xfer_cb)(al_xfer_t *x, void *data, const al_xfer_stats_t *stats, const al_err_t *err);
typedef struct al_xfer_cbs_s {
  al_xfer_progress_cb on_progress; /* NULL = none */
  al_xfer_cb on_end;
} al_xfer_cbs_t;

typedef struct al_xfer_limits_s {
  uint64_t max_bytes; /* of this call; 0 = AL_COPY_OUT_MAX; more is AL_EFILE_TOO_LARGE, of a tree AL_ETREE_TOO_LARGE */
  /* Bytes that the lane may still copy out in all, counted down as they arrive, by all its calls; NULL = no bound. Loop
   * thread; must live until on_end. More is AL_ECOPY_OUT_LIMIT. */
  uint64_t *left;
  uint32_t max_entries, max_depth; /* trees; 0 = 100,000 and 64; depth at most AL_TREE_DEPTH_MAX */
  bool executables;                /* trees: keep the x bits (default: regular files lose them) */
} al_xfer_limits_t;

/* File or directory *as* guest_path, owned by agent; missing parents are made. Walked on a thread of its own, streamed
 * as a pax archive to the lane agent, which unpacks it beside guest_path and puts it in place when it is whole: a file
 * replaces a file or a link; a directory is merged with one that is there, file over file. Where a directory would come
 * over a file or a link, or something else over a directory: AL_ECOPY_IN_FAILED, which names both paths, and nothing is
 * changed. Modes, times of the last change, links, hard links and holes are kept, setuid and setgid of files, owners,
 * extended attributes and ACLs are not. Links below host_path are copied as links, host_path itself is followed, and
 * so is guest_path when a directory comes and it is a link to one.
 * Sockets, FIFOs, devices, files of more than 1 PiB, and paths of more than 4,096 bytes below host_path: AL_ESOURCE_UNSUPPORTED;
 * AL_ESOURCE_MISSING; AL_ESOURCE_UNREADABLE; AL_ECOPY_IN_FAILED with the guest's reason. A file that changes its size
 * while it is read arrives with the size it had when it was opened, see `changed`. After
 * any failure the guest is as it was, but for a disk that fails while things are put in place. `ignore` are
 * patterns as in a .gitignore, NULL-terminated, NULL = none. Everything is copied. An error returned here (a guest path
 * that cannot be, AL_EBAD_OPTION for a bad pattern, no memory, AL_ECHANNEL_CLOSED) means that on_end will not come. */
int
al_xfer_in(al_chan_t *c, const char *host_path, const char *guest_path, const char *const *ignore,
  const al_xfer_cbs_t *cbs, void *data, al_xfer_t **out, al_err_t *err);
/* One regular file to the absolute host_path, which must be below `root` unless that is NULL. Its own root is the nearest
 * of its ancestors that is `root` or has a .git entry, else the deepest existing parent. That is resolved once; below it no
 * link is followed and missing parents are made; a `.git` component is refused anywhere. AL_EHOST_PATH_INVALID, _GIT,
 * _LINK, _DIRECTORY, _REFUSED (outside the root, or neither file nor directory). Temporary file beside the target
 * (0600), fsync, then mode 0666 less the umask and rename: on any failure the target is as it was. What a process that
 * was killed has left beside the target is removed. limits NULL = all defaults. AL_EGUEST_FILE_MISSING, AL_EIS_LINK,
 * AL_ENOT_A_FILE, AL_EHOST_DISK_FULL, AL_ECOPY_OUT_FAILED. Everything is copied, but what limits->left points to. */
int
al_xfer_out(al_chan_t *c, const char *guest_path, const char *host_path, const char *root,
  const al_xfer_limits_t *limits, const al_xfer_cbs_t *cbs, void *data, al_xfer_t **out, al_err_t *err);
/* A directory *as* host_path, which must not exist (AL_EHOST_PATH_EXISTS) or be an empty directory; else as above. Files,
 * directories and symbolic links with their modes (less the umask; no setuid, setgid or sticky bit; their owner may read them, and change directories) and times of
 * the last change; a link only when it cannot lead out of the tree (`skipped`). Anything else, and a name that is .git
 * to some file system, is AL_ETREE_REFUSED. AL_ENOT_A_DIRECTORY, AL_ETREE_TOO_LARGE. Made in a temporary directory
 * beside the target, in place all at once. `bytes` counts contents and link targets; `changed` files that grew (cut) or
 * shrank (padded with zeros) while they were read. */
int
al_xfer_tree(al_chan_t *c, const char *guest_path, const char *host_path, const char *root,
  const al_xfer_limits_t *limits, const al_xfer_cbs_t *cbs, void *data, al_xfer_t **out, al_err_t *err);
/* Valid in on_end of a copy out that is done: the files that came, with the hashes of the bytes that were written. Moves
 * them into `out`, which is the caller's then; `unlisted`: how many more there were. */
void
al_xfer_take_files(al_xfer_t *x, al_buf_t *out, uint64_t *unlisted);
typedef struct al_copied_s {
  char path[AL_COPIED_PATH + 1]; /* as the guest calls it: of a tree below its root, of a single file absolute */
  uint64_t bytes;
  char sha256[AL_SHA256_HEX];
} al_copied_t;
/* Likewise: its path in the guest and the target; borrowed. */
void
al_xfer_paths(const al_xfer_t *x, const char **guest, const char **host);
/* The next one of such a buffer; *at is 0 at first. False when there is no more. */
bool
al_copied_next(const al_buf_t *files, size_t *at, al_copied_t *out);

/* Ends it with `why` (NULL: AL_EABORTED); on_end follows, at the latest after 2 s for the guest's clean-up. Too late
 * for a copy out whose bytes are all here. */
void
al_xfer_cancel(al_xfer_t *x, const al_err_t *why);

#endif
