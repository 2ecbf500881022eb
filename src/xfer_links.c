/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, in: files that have several names, each known by the first of them. */
#include "mem.h"
#include "xfer_int.h"
#include <errno.h>
#include <string.h>

/* A table of our own, since libarchive keeps more than 2 KiB for each: a store of packages that is linked into a tree has
 * every file in it twice. Slots are found by the file, tried one after another, and never more than half of them taken. */

#define FIRST_ROOM 64u

struct al_link_s {
  uint64_t dev, ino;
  uint32_t path; /* where it begins in `paths`, plus one; 0 = the slot is free */
};

static al_link_t *
slot_of(al_link_t *slots, size_t room, uint64_t dev, uint64_t ino) {
  uint64_t hash = (ino ^ dev << 32 ^ dev >> 32) * 0x9e3779b97f4a7c15u;
  size_t at = (size_t) (hash >> 20) & (room - 1);
  while (slots[at].path && (slots[at].ino != ino || slots[at].dev != dev)) at = (at + 1) & (room - 1);
  return &slots[at];
}

static int
grow(al_links_t *l) {
  size_t room = l->room ? l->room * 2 : FIRST_ROOM;
  al_link_t *slots = al_calloc(room, sizeof *slots);
  if (!slots) return -ENOMEM;
  for (size_t i = 0; i < l->room; i++)
    if (l->slots[i].path) *slot_of(slots, room, l->slots[i].dev, l->slots[i].ino) = l->slots[i];
  al_free(l->slots);
  l->slots = slots;
  l->room = room;
  return 0;
}

int
al__links_first(al_links_t *l, const struct stat *st, const char *path, const char **first) {
  uint64_t dev = (uint64_t) st->st_dev, ino = (uint64_t) st->st_ino;
  if (l->len * 2 >= l->room && grow(l) < 0) return -ENOMEM;
  al_link_t *slot = slot_of(l->slots, l->room, dev, ino);
  if (slot->path) {
    *first = (const char *) l->paths.data + slot->path - 1;
    return 1;
  }
  size_t at = l->paths.len, n = strlen(path) + 1;
  if (al_buf_append(&l->paths, path, n) < 0) return -ENOMEM;
  *slot = (al_link_t){ .dev = dev, .ino = ino, .path = (uint32_t) at + 1 };
  l->len++;
  return 0;
}

void
al__links_deinit(al_links_t *l) {
  al_free(l->slots);
  al_buf_deinit(&l->paths);
}
