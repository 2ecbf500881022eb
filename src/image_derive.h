/* SPDX-License-Identifier: Apache-2.0 */
/* Derived images: the disk of a stopped lane becomes an image of the store, found again by its project and inputs.
 * Synchronous; run on a worker. docs/IMAGES.md says what they are good for. */
#ifndef AL_IMAGE_DERIVE_H
#define AL_IMAGE_DERIVE_H

#include "image.h"

/* All by which a derived image is found; digests in hex. */
typedef struct al_derive_key_s {
  char parent_sha256[65]; /* manifest of the image it is derived from */
  char project[65];       /* stands for the project: images are never shared between two */
  char inputs_key[65];    /* over the setup's script and its input files */
} al_derive_key_t;

/* The id of the derived image of that key, for al_image_find; -ENOENT when there is none. A damaged one is none. */
int
al_image_derived(const al_home_t *home, const al_derive_key_t *key, char id[AL_IMAGE_ID_MAX], al_err_t *err);

/* One process at a time makes the image of a key: 0 and `claim` for al_image_release, or -EAGAIN while another is at it
 * (ask again; when it has ended, al_image_derived may find its image). A process that dies gives its claim back. */
int
al_image_claim(const al_home_t *home, const al_derive_key_t *key, int *claim, al_err_t *err);

typedef struct al_derive_s {
  const al_image_t *parent;  /* as al_image_find gave it, with a hold until this is done */
  al_derive_key_t key;       /* parent_sha256 is taken from `parent` */
  /* Absolute path of the disk; nobody writes to it any more. With QEMU: a qcow2 overlay of exactly parent->disk, as a
   * lane's is; it stays an overlay. With vz: a raw disk. It is copied (cloned where the file system can); never is it
   * changed, mounted, or opened as anything but that format. */
  const char *disk;
  const char *vm_type;
  const char *created;       /* 2026-01-31T23:59:59Z; NULL: now */
} al_derive_t;

/* Puts the image into the store, at once and whole. When there is one of this key already, `out` is that one and
 * nothing is made. AL_EIMAGE_INVALID when the disk is not what it must be, -ENOSPC, … */
int
al_image_derive(const al_home_t *home, const al_derive_t *d, al_image_progress_cb progress, void *data, al_image_t *out,
  al_err_t *err);

#endif
