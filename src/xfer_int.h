/* SPDX-License-Identifier: Apache-2.0 */
/* Transfer internals: the common head of a transfer, the bounded pipe from thread to loop, the archive writer, the host
 * target. */
#ifndef AL_XFER_INT_H
#define AL_XFER_INT_H

#include "buf.h"
#include "ignore.h"
#include "names.h"
#include "sha256.h"
#include "tmp_name.h"
#include "tree_parse.h"
#include "xfer.h"
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#define AL_PIPE_MAX 524288u /* bytes between the reading thread and the loop */

int
al__xfer_tmp_name(char out[AL_TMP_NAME]); /* a random one; 0 or -errno */
bool
al__xfer_tmp_in(const char *path); /* such a name as a component, which the next copy beside it would remove */

struct al_xfer_s { /* first member of every kind */
  al_xfer_cbs_t cbs;
  void *data;
  uint64_t told; /* loop time of the last on_progress, 0 = none yet */
  al_xfer_stats_t stats;
  al_err_t err; /* the first one stays */
  void (*cancel)(al_xfer_t *x, const al_err_t *why);
  struct al_noted_s *noted; /* of a copy out */
};

/* Says how far it is, unless that was said a moment ago. on_progress may cancel: to be called last. */
void
al__xfer_tell(al_xfer_t *x, uv_loop_t *loop);
/* The end, with x->stats and x->err. */
void
al__xfer_ended(al_xfer_t *x);

/* Blocks from one thread to the loop; the thread waits when AL_PIPE_MAX bytes are in it. */
typedef struct al_block_s {
  struct al_block_s *next;
  size_t len;
  uint64_t done, files, total; /* of al_xfer_stats_t, when this block is sent */
  uint8_t *bytes;
} al_block_t;

typedef struct al_pipe_s {
  uv_mutex_t lock;
  uv_cond_t room;
  al_block_t *head, **tail;
  size_t bytes;
  bool broken;
  uv_async_t async; /* fires on the loop after a put; closed by the owner, when the thread is gone */
} al_pipe_t;

int
al__pipe_init(uv_loop_t *loop, al_pipe_t *p, uv_async_cb cb);
/* thread; waits for room. bytes (al_malloc) are taken, also on failure. 0, -ECANCELED when broken, -ENOMEM */
int
al__pipe_give(al_pipe_t *p, void *bytes, size_t n, const al_xfer_stats_t *stats);
al_block_t *
al__pipe_take(al_pipe_t *p); /* loop; NULL = empty; the caller frees it and its bytes */
void
al__pipe_break(al_pipe_t *p); /* any thread: puts fail from now on */
bool
al__pipe_broken(al_pipe_t *p);
void
al__pipe_deinit(al_pipe_t *p); /* after the async is closed */

/* The files of a tree that have several names. All zero but paths.cap at the start: `paths` is bounded. */
#define AL_LINKS_MAX 0x7fffffffu

typedef struct al_link_s al_link_t;
typedef struct al_links_s {
  al_link_t *slots;
  size_t room, len; /* of the slots: a power of two; taken ones */
  al_buf_t paths;
} al_links_t;

/* 1: the file came before, as *first (valid until the next call); 0: it is new, and known as `path` from now on; -ENOMEM */
int
al__links_first(al_links_t *l, const struct stat *st, const char *path, const char **first);
void
al__links_deinit(al_links_t *l);

/* The writer of a pax archive into a pipe: begin, what it is, header, data. Everything blocks; worker thread. 0,
 * -ENOMEM, -ECANCELED (the pipe was broken), or -EINVAL with `why`. */
#define AL_PAX_BLOCK 131072u

struct archive;
struct archive_entry;

typedef struct al_pax_s {
  al_pipe_t *pipe;
  const al_xfer_stats_t *stats;
  struct archive *a;
  struct archive_entry *entry;
  al_links_t links;
  uint8_t *block; /* AL_PAX_BLOCK bytes, of which len are used; NULL between two */
  size_t len;
  int failed;     /* the first failure; nothing goes into the pipe after it */
  const char *why;
} al_pax_t;

int
al__pax_open(al_pax_t *x, al_pipe_t *pipe, const al_xfer_stats_t *stats);
int
al__pax_close(al_pax_t *x, bool whole); /* whole: with the archive's end; always frees, also after a failed open */
void
al__pax_begin(al_pax_t *x, const char *path, const struct stat *st);
/* Of what has several names, once it has begun: whether it is another name of what came before, and will have no data. */
bool
al__pax_linked(al_pax_t *x, const char *path, const struct stat *st);
void
al__pax_symlink(al_pax_t *x, const char *target);
void
al__pax_range(al_pax_t *x, int64_t at, int64_t n); /* data of a sparse file, rising; each is given as data too, in its place */
int
al__pax_header(al_pax_t *x);
/* Where data is best put for al__pax_data, with want more to come: it is not moved from there. */
int
al__pax_room(al_pax_t *x, uint64_t want, uint8_t **p, size_t *n);
int
al__pax_data(al_pax_t *x, const uint8_t *p, uint64_t n); /* p NULL: in a hole */

/* A host file or tree as a pax archive. Both functions block; worker thread. */
typedef struct al_tar_s {
  const char *host_path; /* borrowed */
  const char *name;      /* a single file's name in the archive; borrowed */
  const al_ignore_t *ignore; /* borrowed; NULL = nothing is */
  bool count;            /* look first how much there is, for stats.total */
  al_pipe_t *pipe;
  int fd;                /* the opened root, -1 at the start; closed by al__tar_close */
  bool is_dir;
  al_xfer_stats_t stats;
  al_err_t err;
} al_tar_t;

int
al__tar_look(al_tar_t *t); /* opens the root, tells file from directory */
int
al__tar_write(al_tar_t *t); /* -ECANCELED without t->err when the pipe was broken */
void
al__tar_close(al_tar_t *t);

/* Where on the host something is put: its parent, found without following a link below the root, and its name. All
 * functions block; worker thread. */
typedef struct al_place_s {
  char path[AL_PATH_MAX + 1]; /* as given, repeated slashes removed */
  uint16_t end[AL_PATH_MAX / 2 + 1]; /* where each component ends */
  unsigned count;
  char name[AL_PATH_MAX + 1]; /* the last component */
  int dir;                    /* the parent; -1 = none */
  uint64_t unchecked;         /* bytes since the disk was last looked at */
  unsigned made;              /* entries since then */
  al_err_t err;
} al_place_t;

void
al__place_init(al_place_t *p);
/* Makes missing parents and removes what killed processes have left beside the target. Does not look at the target. */
int
al__place_open(al_place_t *p, const char *path, const char *root);
/* Before `n` more bytes, or an entry (0), are written: AL_EHOST_DISK_FULL when too little would be left for others. */
int
al__place_room(al_place_t *p, uint64_t n);
int
al__place_failed(al_place_t *p, const char *doing, int error); /* sets p->err */
void
al__place_deinit(al_place_t *p);

/* What comes out of a guest is hashed as it is written, and the first files of a copy are noted. Worker thread. */
typedef struct al_noted_s {
  al_sha256_t sum;  /* of the file at hand */
  al_buf_t files;   /* al_copied_next reads it */
  uint32_t count;
  uint64_t unlisted;
  const char *guest, *host; /* borrowed, for the whole copy */
} al_noted_t;

void
al__noted_begin(al_noted_t *n);
void
al__noted_bytes(al_noted_t *n, const void *p, size_t len);
int
al__noted_end(al_noted_t *n, const char *path, uint64_t bytes); /* -ENOMEM */

/* One file, put in place whole or not at all. All functions block; worker thread. */
typedef struct al_target_s {
  al_place_t place;     /* with the error */
  int fd;               /* -1 = none */
  mode_t mode;          /* 0666 less the process's umask */
  char tmp[AL_TMP_NAME]; /* "" = there is no temporary file */
} al_target_t;

void
al__target_init(al_target_t *t);
int
al__target_open(al_target_t *t, const char *path, const char *root);
int
al__target_write(al_target_t *t, const void *p, size_t n);
int
al__target_commit(al_target_t *t);
void
al__target_deinit(al_target_t *t); /* removes the temporary file when it was not committed */

/* One directory, the same way. All functions block; worker thread. */
typedef struct al_tree_out_s {
  al_place_t place;      /* with the error */
  al_tree_t parse;       /* its limits are the caller's to set, before the first take */
  bool executables;
  int dirs[AL_TREE_DEPTH_MAX + 1]; /* the directories that are open; [0] is the temporary one */
  al_tree_entry_t attrs[AL_TREE_DEPTH_MAX + 1]; /* theirs, set when they are left; without the names */
  int depth;             /* of dirs; -1 = none */
  int spare[2];          /* descriptors that the removal needs, and finds when the process has no other left; -1 = none */
  int fd;                /* the file that is written; -1 = none */
  al_noted_t *noted;     /* borrowed */
  al_tree_entry_t file;
  uint64_t at; /* in the file */
  mode_t mask;           /* 0777 less the process's umask */
  char tmp[AL_TMP_NAME]; /* "" = there is no temporary directory */
} al_tree_out_t;

void
al__tree_init(al_tree_out_t *t);
int
al__tree_open(al_tree_out_t *t, const char *path, const char *root);
int
al__tree_take(al_tree_out_t *t, const void *p, size_t n); /* records */
int
al__tree_commit(al_tree_out_t *t);
void
al__tree_deinit(al_tree_out_t *t); /* removes the temporary directory when it was not committed */

#endif
