/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, out: which files came, and the hashes of what was written. */
#include "xfer_int.h"

#include "mem.h"
#include "utf8.h"
#include <string.h>

/* In the buffer: size (8 bytes), digest, length of the path (2 bytes), path. */
#define HEAD (8 + AL_SHA256_LEN + 2)
#define MORE "\xe2\x80\xa6" /* behind a path that was cut */

void
al__noted_begin(al_noted_t *n) {
  al_sha256_init(&n->sum);
}

void
al__noted_bytes(al_noted_t *n, const void *p, size_t len) {
  if (n->count < AL_COPIED_FILES) al_sha256_update(&n->sum, p, len); /* else nobody would see it */
}

int
al__noted_end(al_noted_t *n, const char *path, uint64_t bytes) {
  uint8_t head[HEAD];
  size_t len = strlen(path);
  if (n->count == AL_COPIED_FILES) {
    n->unlisted++;
    return 0;
  }
  bool whole = len <= AL_COPIED_PATH;
  if (!whole) len = al_utf8_cut((const uint8_t *) path, AL_COPIED_PATH - (sizeof MORE - 1));
  al_put64(head, bytes);
  al_sha256_final(&n->sum, head + 8);
  al_put16(head + 8 + AL_SHA256_LEN, (uint16_t) (len + (whole ? 0 : sizeof MORE - 1)));
  int rc = al_buf_reserve(&n->files, sizeof head + AL_COPIED_PATH);
  if (rc) return rc;
  n->count++;
  (void) al_buf_append(&n->files, head, sizeof head);
  (void) al_buf_append(&n->files, path, len);
  return whole ? 0 : al_buf_append(&n->files, MORE, sizeof MORE - 1);
}

void
al_xfer_take_files(al_xfer_t *x, al_buf_t *out, uint64_t *unlisted) {
  al_buf_init(out, 0);
  *unlisted = 0;
  if (!x->noted) return;
  *out = x->noted->files;
  *unlisted = x->noted->unlisted;
  al_buf_init(&x->noted->files, 0);
}

void
al_xfer_paths(const al_xfer_t *x, const char **guest, const char **host) {
  *guest = x->noted && x->noted->guest ? x->noted->guest : "";
  *host = x->noted && x->noted->host ? x->noted->host : "";
}

bool
al_copied_next(const al_buf_t *files, size_t *at, al_copied_t *out) {
  if (*at + HEAD > files->len) return false;
  const uint8_t *p = files->data + *at;
  size_t len = al_get16(p + 8 + AL_SHA256_LEN);
  AL_ASSERT(len < sizeof out->path && *at + HEAD + len <= files->len);
  out->bytes = al_get64(p);
  al_sha256_hex(p + 8, out->sha256);
  memcpy(out->path, p + HEAD, len);
  out->path[len] = 0;
  *at += HEAD + len;
  return true;
}
