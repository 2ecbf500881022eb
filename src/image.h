/* SPDX-License-Identifier: Apache-2.0 */
/* Image store: import with hashing, look-up, and proof that a stored image is still what was imported. Synchronous; run
 * on a worker. */
#ifndef AL_IMAGE_H
#define AL_IMAGE_H

#include "home.h"
#include "val.h"

typedef struct al_image_s {
  char id[72];         /* <name>-<first 12 hex digits of the manifest's sha256>: its directory in the store */
  char dir[AL_HOME_MAX + 80];
  char arch[16];       /* x86_64, aarch64 */
  char disk[AL_HOME_MAX + 160], disk_format[8]; /* for the asked vm type */
  char kernel[AL_HOME_MAX + 160], initrd[AL_HOME_MAX + 160], cmdline[512];
  char login_user[33], agent_user[33];
  char manifest_sha256[65], disk_sha256[65], kernel_sha256[65], probe_marker[64];
  uint64_t virtual_size;
  bool port;           /* its init takes the lane agent from a virtio port when asked to */
} al_image_t;

/* Called while copying with bytes done and in all; may be NULL. */
typedef void (*al_image_progress_cb)(void *data, uint64_t done, uint64_t total);

/* Imports the directory `from` (manifest.json beside its files). Every file named in the manifest is copied and hashed
 * at once, 0400, built aside and renamed in. AL_EIMAGE_INVALID (manifest or hash), AL_ESOURCE_MISSING, -ENOSPC …
 * Importing the same image twice is a no-op. */
int
al_image_import(
  const al_home_t *home, const char *from, al_image_progress_cb progress, void *data, al_image_t *out, al_err_t *err);
/* The same, and an image that the store has already is compared with the files of `from`, each of them. */
int
al_image_import_checked(const al_home_t *home, const char *from, al_image_t *out, al_err_t *err);
/* `want`: NULL (the newest of name "base", else the newest), a name, an id, or an absolute path of an unpacked image
 * directory, which is imported first. vm_type "qemu" or "vz". Checks every file: a cached result (file <dir>/.verified:
 * size, mtime, ctime, inode per file) counts only when the file's ctime is at least 2 s older than the hashing; else it
 * is hashed again. AL_EIMAGE_MISSING, AL_EIMAGE_CORRUPT (file, expected and found digest). */
int
al_image_open(
  const al_home_t *home, const char *want, const char *vm_type, const char *arch, al_image_t *out, al_err_t *err);
int
al_image_list(const al_home_t *home, al_val_t **out,
  al_err_t *err); /* list of maps: id, name, flavour, version, arch, bytes, created, dir */
/* Removes what imports that were given up a day ago have left in the store. */
void
al_image_sweep(const al_home_t *home);

#endif
