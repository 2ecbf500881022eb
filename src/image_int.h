/* SPDX-License-Identifier: Apache-2.0 */
/* Image store, shared between its files: the checked manifest, the hashing of stored files, directories aside. */
#ifndef AL_IMAGE_INT_H
#define AL_IMAGE_INT_H

#include "image.h"
#include "sha256.h"

#define AL_IMAGE_FILES_MAX 16
#define AL_IMAGE_MANIFEST_MAX (4u << 20)
#define AL_IMAGE_INPUTS_MAX 16384u
#define AL_IMAGE_SIZE_MAX (1ll << 37) /* of all files together: 128 GiB */
#define AL_IMAGE_SIGNATURE "manifest.json.minisig"
#define AL_IMAGE_SIGNATURE_MAX 16384u
#define AL_IMAGE_DERIVED_PREFIX "project-" /* begin of a derived image's name */
#define AL_IMAGE_ASIDE ".aside."
#define AL_IMAGE_ASIDE_MAX (sizeof AL_IMAGE_ASIDE + 16)

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
  char login[33], agent[33], probe_marker[64], sha256[AL_SHA256_HEX], recipe_sha256[AL_SHA256_HEX];
  uint64_t virtual_size, bytes; /* bytes: of all files */
  al__image_file_t files[AL_IMAGE_FILES_MAX];
  size_t count;
  al__image_boot_t qemu, vz;
  bool port; /* "port-transport" is among its features */
  al_image_link_t parent; /* id "": not derived */
  bool untrusted_setup;
  char project[AL_SHA256_HEX], inputs_key[AL_SHA256_HEX]; /* of a derived one */
} al__manifest_t;

/* Called with the number of bytes before they are written; non-zero stops, -ECANCELED when somebody wants it to. */
typedef int (*al__image_step_cb)(void *data, uint64_t bytes);

/* image_manifest.c. AL_EIMAGE_INVALID names the field, AL_EIMAGE_FORMAT. */
int
al__manifest_parse(const char *text, size_t len, al__manifest_t *out, al_err_t *err);
void
al__manifest_id(const al__manifest_t *m, char id[AL_IMAGE_ID_MAX]);
/* Fills what can be told from the manifest. AL_EIMAGE_INVALID when the image has nothing for this vm type (NULL:
 * qemu's, else vz's). */
int
al__manifest_image(const al__manifest_t *m, const al_home_t *home, const char *vm_type, al_image_t *out, al_err_t *err);
/* A text of 1 to cap - 1 bytes out of `allowed` that starts with one of `first`. NULL sets allow all printable
 * ASCII. */
int
al__manifest_text(const al_val_t *map, const char *key, const char *first, const char *allowed, char *out, size_t cap,
  al_err_t *err);
int
al__manifest_sha256(const al_val_t *map, const char *key, char out[AL_SHA256_HEX], al_err_t *err);
const al__image_file_t *
al__manifest_file(const al__manifest_t *m, const char *name); /* NULL when it has none of that name */
int
al__manifest_bad(al_err_t *err, const char *field, const char *why);
/* image_origin.c: inputs, parent and what goes with it. */
int
al__manifest_origin(const al_val_t *map, al__manifest_t *m, al_err_t *err);

/* image_verify.c */
/* "<name>-<12 hex digits>", as a directory of the store is called. */
bool
al__image_id_valid(const char *id);
/* Whether that is the id of an image of this name. */
bool
al__image_is_named(const char *id, const char *name);
/* The manifest of a stored image. -ENOENT, AL_EIMAGE_CORRUPT (the directory's name says another digest),
 * AL_EIMAGE_INVALID, AL_EIMAGE_FORMAT. `text` (may be NULL): the manifest itself, the caller's to free. */
int
al__image_load(const al_home_t *home, const char *id, al__manifest_t *out, char **text, size_t *len, al_err_t *err);
/* Whether the stored files are those of the manifest; see al_image_find for when they are hashed again. */
int
al__image_verify(const al_home_t *home, const char *id, const al__manifest_t *m, al_err_t *err);
/* The same, hashed in any case. */
int
al__image_verify_all(const al_home_t *home, const char *id, const al__manifest_t *m, al__image_step_cb step, void *data,
  al_err_t *err);
/* Hashes `fd` to its end; when `out` is a descriptor the bytes are copied there, zeros as holes. Non-zero from `step`
 * stops and is returned. */
int
al__image_hash(int fd, int out, char hex[AL_SHA256_HEX], al__image_step_cb step, void *data);
int
al__image_write_sparse(int fd, const uint8_t *p, size_t n);
/* Opens a stored image's directory. -errno, AL_EHOME_UNSAFE. */
int
al__image_dir(const al_home_t *home, const char *id, al_err_t *err);

/* image_qcow2.c */
/* A qcow2 disk must stand alone: no backing file, no external data file, and the size that the manifest says. */
int
al__image_check_qcow2(int fd, const char *name, uint64_t virtual_size, al_err_t *err);
/* A qcow2 disk that must be an overlay of exactly `backing`, named with the format qcow2 and in no other way unusual;
 * from then on it is one of `to`, which is not longer. Gives its size. */
int
al__image_rebase_qcow2(int fd, const char *backing, const char *to, uint64_t *virtual_size, al_err_t *err);

/* image_import.c: al_image_import of an image that is to be used right away */
int
al__image_import_trusted(const al_home_t *home, const char *from, const al_image_trust_t *trust, al_image_t *out,
  al_err_t *err);
/* What directory and archive have in common. */
typedef struct al__import_s {
  const al_home_t *home;
  const char *from;      /* for messages */
  al__manifest_t *m;
  char *text;            /* of the manifest */
  size_t len;
  char *signature;       /* in the store's form; NULL: there is none */
  char id[AL_IMAGE_ID_MAX];
  bool there, again;     /* the store has it; its files are compared all the same */
  int to;                /* directory aside; -1 when nothing is to be written */
  al_image_progress_cb progress;
  void *data;
  uint64_t done, left;   /* left: of the file, by the manifest */
} al__import_t;
/* Reads the next bytes of a file, as read(2) does. */
typedef int64_t (*al__import_read_cb)(void *data, void *p, size_t n);
/* One file: its size is `size`, as the source says. Copied into the store, or just compared. */
int
al__import_file(al__import_t *im, const al__image_file_t *f, uint64_t size, al__import_read_cb read_cb,
  void *source, al_err_t *err);
/* image_tar.c: an archive's head (manifest and signature), then its files. */
typedef struct al__image_tar_s al__image_tar_t;
/* Reads and checks manifest and signature of im->from, which is an archive when `tar` is set then; it may be NULL. */
int
al__import_head(al__import_t *im, al__image_tar_t **tar, al_err_t *err);
void
al__import_end(al__import_t *im);
int
al__image_tar_open(const char *path, al__image_tar_t **out, al__import_t *im, al_err_t *err);
int
al__image_tar_files(al__image_tar_t *t, al__import_t *im, al_err_t *err);
void
al__image_tar_close(al__image_tar_t *t); /* NULL is a no-op */

/* image_sign.c */
/* A minisign signature as the store keeps it: its first line, which nothing signs, becomes a checksum of the others.
 * The caller frees `out`. AL_EIMAGE_INVALID */
int
al__signature_keep(const char *text, size_t len, char **out, al_err_t *err);
/* The stored one of the directory, NULL when there is none. AL_EIMAGE_CORRUPT when it is not what was kept. */
int
al__signature_load(int dir, const char *id, char **out, size_t *len, al_err_t *err);
/* The id of its key, as minisign shows it; "" when there is none to be read. */
void
al__signature_key_id(const char *text, char id[17]);
/* `by` (may be NULL): the key that has signed it, "" when that was not told. */
bool
al__image_trusted(const al_image_trust_t *trust, const char *sha256, const char **by);
int
al__image_untrusted(al_err_t *err, const char *id);

/* image_store.c */
/* Calls cb for every image directory's name; non-zero from it stops and is returned. */
int
al__image_each(const al_home_t *home, int (*cb)(void *data, const char *id), void *data, al_err_t *err);
/* A lock on an image's directory, for readers (shared) or for its removal. Waits at most wait_ms, then
 * AL_EIMAGE_IN_USE. The descriptor; -ENOENT (err unset) when there is none of that name, or no longer. */
int
al__image_lock(const al_home_t *home, const char *id, bool shared, unsigned wait_ms, al_err_t *err);
/* A directory aside that is this process's: its lock tells a sweep that it is not left over. */
int
al__image_aside(int images, char name[AL_IMAGE_ASIDE_MAX], int *fd, al_err_t *err);
/* Renames the finished directory in. When another process was faster with the same image, its copy is as good. */
int
al__image_publish(int images, const char *aside, const char *id, al_err_t *err);
/* Takes an image out of the store: at once, as far as anybody can see. The caller holds its lock. */
int
al__image_retire(int images, const char *id, al_err_t *err);
int
al__image_store(const al_home_t *home, al_err_t *err); /* descriptor of the store's directory */

#endif
