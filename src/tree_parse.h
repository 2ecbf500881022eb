/* SPDX-License-Identifier: Apache-2.0 */
/* Records of a guest's directory: checked as they come, in pieces cut anywhere, without I/O. */
#ifndef AL_TREE_PARSE_H
#define AL_TREE_PARSE_H

#include "err.h"
#include "frame.h"
#include "names.h"

typedef struct al_tree_entry_s {
  const char *name;  /* one component, never "", ".", ".." or a .git; "" for the root; borrowed */
  unsigned mode;     /* 0777 at most */
  int64_t mtime_s;
  uint32_t mtime_ns; /* below 10^9 */
  uint64_t size;
} al_tree_entry_t;

/* 0, or a negative code, with which al_tree_feed stops and which it returns. */
typedef struct al_tree_cbs_s {
  int (*root)(void *data, const al_tree_entry_t *e); /* first and once */
  int (*enter)(void *data, const al_tree_entry_t *e);
  int (*leave)(void *data);                          /* the directory that was entered last */
  int (*file)(void *data, const al_tree_entry_t *e); /* e->size bytes follow */
  int (*bytes)(void *data, const uint8_t *p, size_t n);
  int (*file_end)(void *data);
  /* Only of a target that cannot lead out of the tree, whatever else is in it. */
  int (*link)(void *data, const al_tree_entry_t *e, const char *target);
} al_tree_cbs_t;

typedef struct al_tree_s {
  const al_tree_cbs_t *cbs;
  void *data;
  uint64_t max_bytes;
  uint32_t max_entries, max_depth; /* at most AL_TREE_DEPTH_MAX */
  /* What came so far; `bytes` are contents and targets. */
  uint64_t bytes, entries, changed, skipped;
  bool done;                       /* END has come */
  unsigned depth;
  char path[AL_PATH_MAX + 1];      /* of the entry at hand, below the root */
  char skipped_path[AL_PATH_MAX + 1]; /* of the first link that was left out */
  /* private */
  int state;
  uint8_t header[AL_TREE_HEADER];
  size_t have;                     /* bytes of the header, name or target */
  uint64_t left;                   /* of the file */
  uint16_t end[AL_TREE_DEPTH_MAX + 1]; /* of the path of each directory that is open */
  char name[AL_TREE_NAME_MAX + 1], target[AL_TREE_TARGET_MAX + 1];
} al_tree_t;

/* The path of the entry at hand for a message: in one line, without control characters. */
#define AL_TREE_SHOWN 400

const char *
al_tree_shown(const al_tree_t *t, char out[AL_TREE_SHOWN]);
void
al_tree_init(al_tree_t *t, const al_tree_cbs_t *cbs, void *data);
/* 0; AL_ETREE_REFUSED, AL_ETREE_TOO_LARGE, AL_ECOPY_OUT_FAILED (records that cannot be) with `err`; or a callback's. Not
 * to be called again after that. */
int
al_tree_feed(al_tree_t *t, const uint8_t *p, size_t n, al_err_t *err);
/* Whether a link may be made `depth` directories below the root. Its target must go up first, no further than the root,
 * and then only down: so each step begins in a real directory of the tree, through whatever links it leads. */
bool
al_tree_stays_inside(const char *target, unsigned depth);

#endif
