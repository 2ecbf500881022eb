/* SPDX-License-Identifier: Apache-2.0 */
/* Image store, shared between its files: the checked manifest and the hashing of stored files. */
#ifndef AL_IMAGE_INT_H
#define AL_IMAGE_INT_H

#include "image.h"
#include "sha256.h"

#define AL_IMAGE_FILES_MAX 16
#define AL_IMAGE_MANIFEST_MAX (4u << 20)
#define AL_IMAGE_SIZE_MAX (1ll << 37) /* of all files together: 128 GiB */

typedef struct al__image_file_s {
  char name[65], role[17], sha256[AL_SHA256_HEX];
  uint64_t size;
} al__image_file_t;

typedef struct al__image_boot_s {
  char kernel[65], initrd[65], disk[65], disk_format[8], cmdline[512]; /* kernel "": this vm type cannot boot it */
} al__image_boot_t;

/* Every field has passed its check; a manifest is untrusted input. */
typedef struct al__manifest_s {
  char name[33], flavour[33], version[65], arch[16], created[24]; /* created: 2026-01-31T23:59:59Z */
  char login[33], agent[33], probe_marker[64], sha256[AL_SHA256_HEX];
  uint64_t virtual_size, bytes; /* bytes: of all files */
  al__image_file_t files[AL_IMAGE_FILES_MAX];
  size_t count;
  al__image_boot_t qemu, vz;
  bool port; /* "port-transport" is among its features */
} al__manifest_t;

/* AL_EIMAGE_INVALID names the field. */
int
al__manifest_parse(const char *text, size_t len, al__manifest_t *out, al_err_t *err);
void
al__manifest_id(const al__manifest_t *m, char id[72]);
/* Fills what can be told from the manifest. AL_EIMAGE_INVALID when the image has nothing for this vm type (NULL:
 * qemu's, else vz's). */
int
al__manifest_image(const al__manifest_t *m, const al_home_t *home, const char *vm_type, al_image_t *out, al_err_t *err);

/* The manifest of a stored image. -ENOENT, AL_EIMAGE_CORRUPT (the directory's name says another digest),
 * AL_EIMAGE_INVALID. */
int
al__image_load(const al_home_t *home, const char *id, al__manifest_t *out, al_err_t *err);
/* Whether the stored files are those of the manifest; see al_image_open for when they are hashed again. */
int
al__image_verify(const al_home_t *home, const char *id, const al__manifest_t *m, al_err_t *err);
/* Hashes `fd` to its end; when `out` is a descriptor the bytes are copied there, zeros as holes. Non-zero from `step`, which
 * hears of bytes before they are copied, stops and is returned. */
int
al__image_hash(int fd, int out, char hex[AL_SHA256_HEX], int (*step)(void *data, uint64_t bytes), void *data);
/* A qcow2 disk must stand alone: no backing file, no external data file, and the size that the manifest says. */
int
al__image_check_qcow2(int fd, const char *name, uint64_t virtual_size, al_err_t *err);

#endif
