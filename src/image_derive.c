/* SPDX-License-Identifier: Apache-2.0 */
/* Derived images: made of a lane's disk as an overlay of the image that the lane was started from, looked up by key. */
#include "image_derive.h"
#include "db.h"
#include "image_int.h"
#include "mem.h"
#include "platform.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/*
 * Theory of operation. The disk of a lane is a qcow2 overlay of its image's disk already, so the derived image is a
 * copy of that overlay whose header names the parent's disk from its own place, "../<parent>/<disk>", with the format
 * qcow2. Nothing is flattened: a setup writes some hundred MiB, and the image below stays shared. The header is checked
 * and changed in the copy, which nobody else can reach; only then it is hashed. Two processes with the same key meet at
 * the lock of the store's file `.derive.lock`, under which the key is looked up once more before the rename.
 */

#define LOCK_FILE ".derive.lock"
#define LOCK_MS 10000u
#define POLL_NS 20000000l
#define ROOM_SPARE (256ull << 20)

static int
no_memory(al_err_t *err) {
  return al_err_set(err, -ENOMEM, "Out of memory.");
}

static int
check_hex(const char *text, const char *what, al_err_t *err) {
  if (strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64) return 0;
  return al_err_set(err, AL_EBAD_OPTION, "%s must be a digest of 64 hex digits", what);
}

/* ---- looking up ---- */

typedef struct search_s {
  const al_home_t *home;
  const al_derive_key_t *key;
  al__manifest_t *m;
  char name[33], id[AL_IMAGE_ID_MAX], created[24];
} search_t;

/* All of one project have one name, so the others need not be read. */
static void
name_of(const al_derive_key_t *key, char name[33]) {
  snprintf(name, 33, AL_IMAGE_DERIVED_PREFIX "%.12s", key->project);
}

static int
match(void *data, const char *id) {
  search_t *s = data;
  const al__manifest_t *m = s->m;

  if (!al__image_is_named(id, s->name)) return 0;
  int rc = al__image_load(s->home, id, s->m, NULL, NULL, NULL);
  if (rc == -ENOMEM) return rc;
  if (rc || strcmp(m->parent.manifest_sha256, s->key->parent_sha256)) return 0;
  if (strcmp(m->project, s->key->project) || strcmp(m->inputs_key, s->key->inputs_key)) return 0;
  int order = strcmp(m->created, s->created);
  if (s->id[0] && (order < 0 || (order == 0 && strcmp(id, s->id) < 0))) return 0;
  snprintf(s->id, sizeof s->id, "%s", id);
  memcpy(s->created, m->created, sizeof s->created);
  return 0;
}

int
al_image_derived(const al_home_t *home, const al_derive_key_t *key, char id[AL_IMAGE_ID_MAX], al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_malloc(sizeof *m);
  search_t s = {.home = home, .key = key, .m = m};

  int rc = m ? check_hex(key->parent_sha256, "the digest of the image", err) : no_memory(err);
  if (!rc) rc = check_hex(key->project, "project", err);
  if (!rc) rc = check_hex(key->inputs_key, "the key of the inputs", err);
  if (rc) return rc;
  name_of(key, s.name);
  rc = al__image_each(home, match, &s, err);
  if (rc) return rc == -ENOMEM ? no_memory(err) : rc;
  if (!s.id[0]) return al_err_set(err, -ENOENT, "There is no image of this project with these inputs.");
  memcpy(id, s.id, sizeof s.id);
  return 0;
}

/* ---- locks ---- */

/* The lock of a file that is only there to be locked: never removed, so that two processes cannot have it twice. */
static int
take_lock(const char *path, unsigned wait_ms, al_err_t *err) {
  uint64_t until = al_plat_mono_ms() + wait_ms;

  int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return al_err_set(err, -errno, "%s cannot be opened: %s.", path, strerror(errno));
  while (flock(fd, LOCK_EX | LOCK_NB)) {
    int rc = errno == EINTR ? 0 : errno == EWOULDBLOCK ? (al_plat_mono_ms() < until ? 0 : -EAGAIN) : -errno;
    if (rc) {
      close(fd);
      return al_err_set(err, rc, rc == -EAGAIN ? "%s is held by another process." : "%s cannot be locked.", path);
    }
    nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
  }
  return fd;
}

int
al_image_claim(const al_home_t *home, const al_derive_key_t *key, int *claim, al_err_t *err) {
  char path[AL_HOME_MAX + 64], hex[AL_SHA256_HEX];

  *claim = 0;
  al_sha256_text(key, sizeof *key, hex);
  /* A few hundred names in all, so that lock files do not pile up; two keys with one name wait for each other. */
  snprintf(path, sizeof path, "%s/derive-%.2s.lock", home->run, hex);
  int fd = take_lock(path, 0, err);
  if (fd < 0) return fd;
  *claim = fd + 1; /* as al_image_release wants it */
  return 0;
}

/* ---- making ---- */

typedef struct making_s {
  const al_home_t *home;
  const al_derive_t *d;
  al__manifest_t *m;        /* the parent's at first, then the image's own */
  char *parent_text;
  size_t parent_len;
  int images, to;
  const char *disk;         /* name of the disk's file in the image */
  bool raw;
  uint64_t virtual_size, size;
  char sha256[AL_SHA256_HEX], id[AL_IMAGE_ID_MAX];
  al_image_progress_cb progress;
  void *data;
  uint64_t done;
} making_t;

static int
advance(void *data, uint64_t bytes) {
  making_t *k = data;
  k->done += bytes;
  if (!k->progress) return 0;
  return k->progress(k->data, k->done < k->size ? k->done : k->size, k->size) ? -ECANCELED : 0;
}

/* The copy's header is made that of an image: from the lane's parent as the lane knew it to the parent's place. */
static int
rebase(making_t *k, int fd, al_err_t *err) {
  const al_image_t *parent = k->d->parent;
  char to[sizeof parent->disk + sizeof parent->id + 8];

  const char *name = strrchr(parent->disk, '/');
  snprintf(to, sizeof to, "../%s/%s", parent->id, name ? name + 1 : parent->disk);
  int rc = al__image_rebase_qcow2(fd, parent->disk, to, &k->virtual_size, err);
  if (rc || k->virtual_size >= parent->virtual_size) return rc;
  return al_err_set(err, AL_EIMAGE_INVALID, "The disk cannot become an image: it is smaller than what it was made of.");
}

static int
take_disk(making_t *k, const char *dir, al_err_t *err) {
  char to[AL_HOME_MAX + AL_IMAGE_ID_MAX + 32];
  struct stat st;

  snprintf(to, sizeof to, "%s/%s", dir, k->disk);
  int rc = al_plat_clone_file(k->d->disk, to, 0600);
  if (rc) return al_err_set(err, rc, "%.300s cannot be copied into the store: %s.", k->d->disk, strerror(-rc));
  AL_AUTO_FD int fd = openat(k->to, k->disk, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st)) return al_err_set(err, -errno, "%s: %s.", k->disk, strerror(errno));
  k->size = k->virtual_size = (uint64_t) st.st_size;
  if (!k->raw && (rc = rebase(k, fd, err))) return rc;
  if (k->size == 0 || k->size > (uint64_t) AL_IMAGE_SIZE_MAX)
    return al_err_set(err, AL_EIMAGE_INVALID, "The disk cannot become an image: it has %llu bytes.",
      (unsigned long long) k->size);
  rc = al__image_hash(fd, -1, k->sha256, advance, k);
  if (rc == -ECANCELED) return al_err_set(err, AL_EINTERRUPTED, "The image was interrupted; nothing of it is left.");
  if (!rc && fchmod(fd, 0400)) rc = -errno;
  if (!rc) rc = al_plat_fsync(fd);
  return rc ? al_err_set(err, rc, "%s cannot be hashed: %s.", k->disk, strerror(-rc)) : 0;
}

/* What of the parent's manifest holds for the derived image, too. */
static int
inherit(al_val_t *v, const al_val_t *parent) {
  static const char *const keys[] = {"flavour", "version", "arch", "recipe_sha256"};
  int rc = 0;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    rc |= al_val_set(v, keys[i], al_val_text(al_val_get(parent, keys[i])->text));
  return rc;
}

/* Boot data are the parent's at every start; what is written here is what the schema wants to see. */
static al_val_t *
boot(const making_t *k) {
  const al__image_boot_t *b = k->raw ? &k->m->vz : &k->m->qemu;
  al_val_t *one = al_val_map(), *all = al_val_map();
  int rc = al_val_set(one, "kernel", al_val_text(b->kernel)) | al_val_set(one, "initrd", al_val_text(b->initrd)) |
    al_val_set(one, "cmdline", al_val_text(b->cmdline)) | al_val_set(one, "disk", al_val_text(k->disk)) |
    al_val_set(one, "disk_format", al_val_text(k->raw ? "raw" : "qcow2"));
  if (rc || al_val_set(all, k->raw ? "vz" : "qemu", one)) {
    if (rc) al_val_free(one);
    al_val_free(all);
    return NULL;
  }
  return all;
}

static al_val_t *
files(const making_t *k) {
  al_val_t *file = al_val_map(), *list = al_val_list();
  int rc = al_val_set(file, "name", al_val_text(k->disk)) |
    al_val_set(file, "role", al_val_text(k->raw ? "disk-raw" : "disk")) |
    al_val_set(file, "size", al_val_int((int64_t) k->size)) | al_val_set(file, "sha256", al_val_text(k->sha256));
  if (rc || al_val_add(list, file)) {
    if (rc) al_val_free(file);
    al_val_free(list);
    return NULL;
  }
  return list;
}

static al_val_t *
pair(const char *a, const char *a_text, const char *b, const char *b_text) {
  al_val_t *v = al_val_map();
  if (!(al_val_set(v, a, al_val_text(a_text)) | al_val_set(v, b, al_val_text(b_text)))) return v;
  al_val_free(v);
  return NULL;
}

static int
fill_manifest(const making_t *k, al_val_t *v, const al_val_t *parent) {
  const al_derive_key_t *key = &k->d->key;
  char name[33], created[24];
  time_t now = time(NULL);
  struct tm tm;

  name_of(key, name);
  if (k->d->created) snprintf(created, sizeof created, "%s", k->d->created);
  else strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
  return al_val_set(v, "format", al_val_text(AL_IMAGE_FORMAT)) | al_val_set(v, "name", al_val_text(name)) |
    inherit(v, parent) | al_val_set(v, "created", al_val_text(created)) |
    al_val_set(v, "virtual_size", al_val_int((int64_t) k->virtual_size)) | al_val_set(v, "files", files(k)) |
    al_val_set(v, "boot", boot(k)) | al_val_set(v, "users", pair("login", k->m->login, "agent", k->m->agent)) |
    al_val_set(v, "parent", pair("id", k->d->parent->id, "manifest_sha256", k->d->parent->manifest_sha256)) |
    al_val_set(v, "untrusted_setup", al_val_bool(true)) | al_val_set(v, "project", al_val_text(key->project)) |
    al_val_set(v, "inputs_key", al_val_text(key->inputs_key));
}

/* Writes it, and reads it as any other: what is put into the store can be read from it. */
static int
write_manifest(making_t *k, al_err_t *err) {
  al_val_t *parent = NULL, *v = al_val_map();

  int rc = al_json_parse(k->parent_text, k->parent_len, &parent, err);
  if (!rc && (!v || fill_manifest(k, v, parent))) rc = no_memory(err);
  AL_AUTO_FREE char *text = rc ? NULL : al_json_text(v);
  al_val_free(v);
  al_val_free(parent);
  if (rc) return rc;
  if (!text) return no_memory(err);
  if ((rc = al__manifest_parse(text, strlen(text), k->m, err))) return rc;
  al__manifest_id(k->m, k->id);
  rc = al_plat_write_new(k->to, "manifest.json", text, strlen(text), 0400);
  if (!rc) rc = al_plat_fsync(k->to);
  return rc ? al_err_set(err, rc, "manifest.json cannot be written: %s.", strerror(-rc)) : 0;
}

/* Under the store's lock: the first of two with one key is the image of both. */
static int
publish(making_t *k, const char *aside, al_err_t *err) {
  char path[AL_HOME_MAX + 32], other[AL_IMAGE_ID_MAX];

  snprintf(path, sizeof path, "%s/" LOCK_FILE, k->home->images);
  AL_AUTO_FD int lock = take_lock(path, LOCK_MS, err);
  if (lock < 0) return lock;
  int rc = al_image_derived(k->home, &k->d->key, other, NULL);
  if (rc == 0) {
    memcpy(k->id, other, sizeof k->id);
    return al_plat_remove_tree(k->images, aside);
  }
  return rc == -ENOENT ? al__image_publish(k->images, aside, k->id, err) : rc;
}

static int
make(making_t *k, al_err_t *err) {
  char aside[AL_IMAGE_ASIDE_MAX], dir[AL_HOME_MAX + AL_IMAGE_ID_MAX];

  al_image_sweep(k->home);
  int rc = al__image_aside(k->images, aside, &k->to, err);
  if (rc) return rc;
  snprintf(dir, sizeof dir, "%s/%s", k->home->images, aside);
  rc = take_disk(k, dir, err);
  if (!rc) rc = write_manifest(k, err);
  if (!rc) rc = publish(k, aside, err);
  if (rc) (void) al_plat_remove_tree(k->images, aside);
  close(k->to);
  return rc;
}

int
al_image_derive(const al_home_t *home, const al_derive_t *d, al_image_progress_cb progress, void *data, al_image_t *out,
  al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_malloc(sizeof *m);
  AL_AUTO_FREE char *text = NULL;
  al_derive_t copy = *d;
  char id[AL_IMAGE_ID_MAX];
  al_err_t why = {0};
  size_t len = 0;

  if (!m) return no_memory(err);
  memcpy(copy.key.parent_sha256, d->parent->manifest_sha256, sizeof copy.key.parent_sha256);
  bool raw = strcmp(d->vm_type, "vz") == 0;
  making_t k = {.home = home, .d = &copy, .m = m, .disk = raw ? "disk.raw" : "disk.qcow2", .raw = raw,
    .progress = progress, .data = data};
  if (d->parent->parents == AL_IMAGE_CHAIN_MAX - 1) {
    return al_err_set(err, AL_EIMAGE_INVALID, "Image %s was derived over %d steps already.", d->parent->id,
      AL_IMAGE_CHAIN_MAX - 1);
  }
  int rc = al_image_derived(home, &copy.key, id, &why);
  if (rc != 0 && rc != -ENOENT && err) *err = why;
  if (rc == -ENOENT) {
    AL_AUTO_FD int images = al__image_store(home, err);
    if (images < 0) return images;
    k.images = images;
    rc = al__image_load(home, d->parent->id, m, &text, &len, err);
    k.parent_text = text, k.parent_len = len;
    if (!rc) rc = make(&k, err);
    if (!rc) memcpy(id, k.id, sizeof id);
  }
  if (rc) {
    if (err && !err->code) al_err_set(err, rc, "The image cannot be made: %s.", strerror(-rc));
    return rc;
  }
  return al_image_open(home, id, d->vm_type, d->parent->arch, out, err);
}
