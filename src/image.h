/* SPDX-License-Identifier: Apache-2.0 */
/* Image store: import with hashing, look-up, and proof that a stored image is still what was imported. Synchronous; run
 * on a worker. docs/IMAGES.md describes format and store. */
#ifndef AL_IMAGE_H
#define AL_IMAGE_H

#include "home.h"
#include "val.h"

#define AL_IMAGE_FORMAT "agent-lane-image/1"
#define AL_IMAGE_CHAIN_MAX 4 /* images that one disk is made of: itself and what it was derived from */
#define AL_IMAGE_ID_MAX 72
#define AL_IMAGE_KEY_MAX 57  /* a public key of minisign in base64 */

/* One image of a chain, by its digest. */
typedef struct al_image_link_s {
  char id[AL_IMAGE_ID_MAX], manifest_sha256[65];
} al_image_link_t;

typedef struct al_image_s {
  char id[AL_IMAGE_ID_MAX]; /* <name>-<first 12 hex digits of the manifest's sha256>: its directory in the store */
  char dir[AL_HOME_MAX + 80];
  char name[33], flavour[33], version[65], created[24], recipe_sha256[65];
  char arch[16];       /* x86_64, aarch64 */
  char disk[AL_HOME_MAX + 160], disk_format[8]; /* for the asked vm type */
  char kernel[AL_HOME_MAX + 160], initrd[AL_HOME_MAX + 160], cmdline[512]; /* of a derived image: the last parent's */
  char login_user[33], agent_user[33];
  char manifest_sha256[65], disk_sha256[65], kernel_sha256[65], probe_marker[64];
  uint64_t virtual_size;
  bool port;           /* its init takes the lane agent from a virtio port when asked to */
  bool untrusted_setup; /* code of a project has run in it while it was made */
  al_image_link_t parent[AL_IMAGE_CHAIN_MAX - 1]; /* [0]: what it was derived from, and so on; all have been checked */
  size_t parents;      /* 0: it stands alone */
  /* What vouches for it: the signature of it, or of the last it was derived from. */
  bool is_signed;
  char signer_id[17];  /* of the key, as minisign shows it and as the signature says; "": it does not say */
  char signer_key[AL_IMAGE_KEY_MAX]; /* the key by which the caller found it valid; "": it has not looked */
} al_image_t;

/* Called while copying and hashing with bytes done and in all; may be NULL. Non-zero ends it: AL_EINTERRUPTED. */
typedef int (*al_image_progress_cb)(void *data, uint64_t done, uint64_t total);

/* Digests of manifests that somebody whom the caller trusts has signed. NULL where one is taken: whatever is signed or
 * not. With a list, an image that is not in it, or not derived from one in it, is refused: AL_EIMAGE_UNTRUSTED. */
typedef struct al_image_trust_s {
  const char *const *sha256; /* borrowed, 64 lower-case hex digits each */
  const char *const *key;    /* the public key that has signed each; NULL: not told */
  size_t count;
} al_image_trust_t;
/* Reads one from a list of texts "DIGEST KEY" (copied); `out` is al_free's. No list gives NULL. AL_EBAD_OPTION */
int
al_image_trust_read(const al_val_t *list, al_image_trust_t **out, al_err_t *err);

/* Imports `from`: a directory (manifest.json beside its files), or a tar archive of one with manifest.json first.
 * Every file named in the manifest is copied and hashed at once, 0400, built aside and renamed in. AL_EIMAGE_INVALID
 * (manifest or hash), AL_EIMAGE_FORMAT, AL_EIMAGE_UNTRUSTED (before anything is copied), AL_ESOURCE_MISSING, -ENOSPC …
 * Importing the same image twice is a no-op, but for a signature that the first had not. */
int
al_image_import(
  const al_home_t *home, const char *from, al_image_progress_cb progress, void *data, al_image_t *out, al_err_t *err);
/* The same, and an image that the store has already is compared with the files of `from`, each of them. */
int
al_image_import_checked(const al_home_t *home, const char *from, const al_image_trust_t *trust,
  al_image_progress_cb progress, void *data, al_image_t *out, al_err_t *err);

typedef struct al_image_want_s {
  /* NULL (the newest of name "base", else the newest), a name, an id, or an absolute path of an unpacked image
   * directory, which is imported first. A derived image is meant by its id only. */
  const char *image;
  const char *vm_type, *arch; /* "qemu" or "vz" */
  const al_image_trust_t *trust;
  int *hold; /* where to put what keeps the image from being removed, for al_image_release; NULL: nothing does */
} al_image_want_t;

/* Checks every file of the image and of what it was derived from: a cached result (file <dir>/.verified: size, mtime,
 * ctime, inode per file) counts only when the file's ctime is at least 2 s older than the hashing; else it is hashed
 * again. AL_EIMAGE_MISSING, AL_EIMAGE_CORRUPT (file, expected and found digest), AL_EIMAGE_UNTRUSTED. */
int
al_image_find(const al_home_t *home, const al_image_want_t *want, al_image_t *out, al_err_t *err);
/* The same without trust and hold. */
int
al_image_open(
  const al_home_t *home, const char *want, const char *vm_type, const char *arch, al_image_t *out, al_err_t *err);
/* `hold` as al_image_find left it, 0 for none; it is 0 afterwards. */
void
al_image_release(int *hold);

/* List of maps: id, name, flavour, version, arch, bytes, created, dir, signed, parent?, untrustedSetup; or id, dir and
 * problem. */
int
al_image_list(const al_home_t *home, al_val_t **out, al_err_t *err);
/* The id of the image that is meant: an id, or a name that only one has. AL_EIMAGE_MISSING, AL_EBAD_OPTION */
int
al_image_id(const al_home_t *home, const char *want, char id[AL_IMAGE_ID_MAX], al_err_t *err);
/* One image, by id or such a name: a row of the list and `manifest`, its text. */
int
al_image_inspect(const al_home_t *home, const char *want, al_val_t **out, al_err_t *err);
/* What there is to check signatures with: list of {id, sha256, manifest: bytes, signature: bytes} of the signed images
 * of the store, or (from: path of a directory or archive) of that one. */
int
al_image_signed(const al_home_t *home, const char *from, al_val_t **out, al_err_t *err);
/* Hashes every file of `id` and of its parents, whatever was found earlier. A failure is remembered: no earlier result
 * counts any more. */
int
al_image_check(const al_home_t *home, const char *id, const al_image_trust_t *trust, al_image_progress_cb progress,
  void *data, al_image_t *out, al_err_t *err);
/* Writes a tar archive that al_image_import takes, whole or not at all; the files are hashed again on the way. `to`
 * must not exist. */
int
al_image_export(const al_home_t *home, const char *id, const char *to, al_image_progress_cb progress, void *data,
  al_err_t *err);

/* Removing, in steps, since who uses it is found out in between by the caller (rows of open lanes). lock: nobody can
 * start to use the image from here, and nobody was about to; else AL_EIMAGE_IN_USE. `hold` is for al_image_release.
 * Images that cannot be read can be locked and removed, too. */
int
al_image_lock(const al_home_t *home, const char *id, int *hold, al_err_t *err);
/* AL_EIMAGE_IN_USE when another image is derived from it, but for those in `gone`, a list of {id} (may be NULL). */
int
al_image_removable(const al_home_t *home, const char *id, const al_val_t *gone, al_err_t *err);
/* The same, and removes it. `hold`: of al_image_lock. */
int
al_image_remove(const al_home_t *home, const char *id, const int *hold, al_err_t *err);
/* What can go: list of {id, bytes, reason}: images of which there is a newer one with the same name for the same
 * machine, derived ones before those they were derived from. */
int
al_image_outdated(const al_home_t *home, al_val_t **out, al_err_t *err);
/* Removes what imports and removals that were interrupted have left in the store. How many there were. */
size_t
al_image_sweep(const al_home_t *home);

#endif
