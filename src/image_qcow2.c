/* SPDX-License-Identifier: Apache-2.0 */
/* What is looked at of a qcow2 disk before QEMU ever opens it: its header, never its content. */
#include "image_int.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define HEADER_V3 104u
#define CLUSTER_MIN_BITS 9u
#define CLUSTER_MAX_BITS 21u
#define EXTERNAL_DATA 4u             /* bit of the incompatible features */
#define BACKING_FORMAT 0xe2792acau   /* header extension */

static uint64_t
big_endian(const uint8_t *p, size_t n) {
  uint64_t v = 0;
  for (size_t i = 0; i < n; i++) v = v << 8 | p[i];
  return v;
}

int
al__image_check_qcow2(int fd, const char *name, uint64_t virtual_size, al_err_t *err) {
  uint8_t h[HEADER_V3];

  if (pread(fd, h, sizeof h, 0) != (ssize_t) sizeof h || memcmp(h, "QFI\xfb", 4)) {
    return al_err_set(err, AL_EIMAGE_INVALID, "%s is not a qcow2 disk.", name);
  }
  uint64_t version = big_endian(h + 4, 4);
  if (version != 2 && version != 3) {
    return al_err_set(err, AL_EIMAGE_INVALID, "%s is qcow2 of an unknown version.", name);
  }
  if (big_endian(h + 8, 8)) {
    return al_err_set(err, AL_EIMAGE_INVALID, "%s has a backing file: an image must stand alone.", name);
  }
  if (version == 3 && (big_endian(h + 72, 8) & EXTERNAL_DATA)) {
    return al_err_set(err, AL_EIMAGE_INVALID, "%s keeps its data in another file: an image must stand alone.", name);
  }
  if (big_endian(h + 32, 4)) return al_err_set(err, AL_EIMAGE_INVALID, "%s is encrypted.", name);
  if (big_endian(h + 24, 8) != virtual_size) {
    return al_err_set(err, AL_EIMAGE_INVALID, "%s is a disk of %llu bytes, but the manifest says %llu.", name,
      (unsigned long long) big_endian(h + 24, 8), (unsigned long long) virtual_size);
  }
  return 0;
}

static int
unfit(al_err_t *err, const char *what) {
  return al_err_set(err, AL_EIMAGE_INVALID, "The disk cannot become an image: %s.", what);
}

/* Whether the extensions of the header `h` (n bytes) say that the backing file is qcow2: without that QEMU would guess
 * the format from what the file holds. */
static bool
says_format(const uint8_t *h, size_t n, size_t at) {
  while (at + 8 <= n) {
    uint64_t type = big_endian(h + at, 4), len = big_endian(h + at + 4, 4);
    if (type == 0 || len > n - at - 8) return false;
    if (type == BACKING_FORMAT) return len == 5 && memcmp(h + at + 8, "qcow2", 5) == 0;
    at += 8 + (size_t) (len + 7) / 8 * 8;
  }
  return false;
}

int
al__image_rebase_qcow2(int fd, const char *backing, const char *to, uint64_t *virtual_size, al_err_t *err) {
  uint8_t h[4096] = {0}, size[4];
  size_t len = strlen(backing), new_len = strlen(to);

  ssize_t n = pread(fd, h, sizeof h, 0);
  if (n < (ssize_t) HEADER_V3 || memcmp(h, "QFI\xfb\0\0\0\3", 8)) return unfit(err, "it is not qcow2 of version 3");
  uint64_t offset = big_endian(h + 8, 8), bits = big_endian(h + 20, 4), header = big_endian(h + 100, 4);
  if (bits < CLUSTER_MIN_BITS || bits > CLUSTER_MAX_BITS)
    return unfit(err, "its clusters have no size that QEMU makes");
  if (big_endian(h + 72, 8)) return unfit(err, "it was not closed in order, is damaged, or has unusual features");
  if (big_endian(h + 32, 4)) return unfit(err, "it is encrypted");
  if (big_endian(h + 60, 4)) return unfit(err, "it has snapshots");
  if (!offset || offset > (uint64_t) n || big_endian(h + 16, 4) != len || len > (uint64_t) n - offset ||
    memcmp(h + offset, backing, len)) {
    return unfit(err, "it is not an overlay of the image's disk");
  }
  if (header < HEADER_V3 || header > offset || !says_format(h, offset, header))
    return unfit(err, "it does not say that its backing file is qcow2");
  if (new_len > len) return unfit(err, "the name of its backing file is longer than the old one");
  *virtual_size = big_endian(h + 24, 8);
  for (size_t i = 0; i < sizeof size; i++) size[i] = (uint8_t) (new_len >> (24 - 8 * i));
  memset(h + offset, 0, len);
  memcpy(h + offset, to, new_len);
  if (pwrite(fd, h + offset, len, (off_t) offset) != (ssize_t) len || pwrite(fd, size, sizeof size, 16) != 4)
    return al_err_set(err, errno ? -errno : -EIO, "The disk's header cannot be written: %s.", strerror(errno));
  return 0;
}
