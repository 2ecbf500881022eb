/* SPDX-License-Identifier: Apache-2.0 */
/* Unpacking, a program of its own in the same file as the agent: contracts of its parts. No heap of its own. */
#ifndef AL_UNPACK_H
#define AL_UNPACK_H

#include "tmp_name.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define AL_UNTAR_BUFFER 262144u /* a whole pipe */
#define AL_UNTAR_PATH 4096u
#define AL_UNTAR_RANGES 8192u   /* of one sparse file */

/* ---- untar.c: a reader of pax archives, as libarchive and GNU tar write them. No I/O of its own. ---- */

typedef enum { AL_UNTAR_FILE, AL_UNTAR_DIR, AL_UNTAR_LINK, AL_UNTAR_HARD } al_untar_kind_t;

typedef struct al_untar_range_s {
  uint64_t at, len;
} al_untar_range_t;

typedef struct al_untar_entry_s {
  al_untar_kind_t kind;
  char path[AL_UNTAR_PATH + 1]; /* relative; no empty, "." or ".." component; "" = the root, of a DIR only */
  char link[AL_UNTAR_PATH + 1]; /* LINK: any text but ""; HARD: like path, not "" */
  mode_t mode;                  /* 07777 */
  int64_t mtime;
  uint32_t mtime_ns;
  uint64_t size;                /* FILE: with its holes */
  uint32_t ranges_len;          /* FILE: where its bytes go: rising, not overlapping, below size */
  al_untar_range_t ranges[AL_UNTAR_RANGES];
} al_untar_entry_t;

typedef struct al_untar_s {
  ssize_t (*read)(void *data, void *p, size_t n); /* blocks; 0 = the end, or -errno */
  void *data;
  const char *why;     /* of a failure with -EINVAL; static */
  uint64_t left;       /* bytes of the entry not yet taken */
  uint32_t padding;    /* after them */
  size_t at, len;      /* of buf: what is not used yet */
  uint8_t buf[AL_UNTAR_BUFFER];
} al_untar_t;          /* all zero but read and data at the start */

/* 1 = an entry; 0 = the archive's end, and nothing but zeros came after it; or -errno. Skips what is left of the entry
 * before. */
int
al_untar_next(al_untar_t *u, al_untar_entry_t *e);
/* The next bytes of the entry, at most `most`, as they lie in the buffer: small ones in one piece. Their number, 0 when
 * there are none left, or -errno. They count as taken. */
ssize_t
al_untar_data(al_untar_t *u, const uint8_t **p, uint64_t most);
/* Bytes of the entry that are not in the buffer yet and may be moved from the source directly, when the buffer is
 * empty; al_untar_moved says how many were. */
uint64_t
al_untar_direct(const al_untar_t *u);
void
al_untar_moved(al_untar_t *u, uint64_t n);

/* ---- place.c: the temporary sibling, and putting in place what is in it. 0 or -errno. ---- */

typedef struct al_place_s {
  char path[AL_UNTAR_PATH + 1]; /* the target */
  const char *name;             /* its last component */
  int parent;                   /* directory that holds tmp, -1 = none */
  int target;                   /* directory that holds the target: parent, or one above */
  unsigned made;                /* directories above the target that we made */
  int fd;                       /* the temporary file or directory, locked */
  bool tree;
  char tmp[AL_TMP_NAME];        /* "" = there is none */
  /* Of a clash: kinds ('f'ile, 'd'irectory, 'l'ink, 'o'ther) of what comes and of what is there; the path below the
   * target of it, and of any other failure. */
  char kinds[2];
  char at[AL_UNTAR_PATH + 1];
} al_place_t;

/* Makes missing parents and the temporary sibling, removes those that nobody holds any more. -EEXIST: a clash. */
int
al_place_open(al_place_t *p, const char *path, bool tree);
/* Looks for clashes (-EEXIST) before it changes anything, then puts everything in place. `mode` and `times` are a
 * tree's own. */
int
al_place_commit(al_place_t *p, mode_t mode, const struct timespec times[2]);
/* Removes what is not in place. */
void
al_place_undo(al_place_t *p);

/* ---- unpack.c ---- */

/* agent --unpack USER tree|file PATH; USER "" = stay who we are. The archive comes on stdin. Exit status 0; 1: why is
 * on stderr; AL_UNPACK_CLASH: what comes, what is there and the path below the target are on stdout. */
int
al_unpack_main(int argc, char **argv);

#endif
