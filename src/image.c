/* SPDX-License-Identifier: Apache-2.0 */
/* Image store: which image is meant, what it was derived from, and whether it may be used. */
#include "image.h"
#include "image_int.h"
#include "mem.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define HOLD_WAIT_MS 10000u /* a removal or a replacement that is under way */

/* ---- which one ---- */

typedef struct choice_s {
  const al_home_t *home;
  const char *want, *arch;
  const char *only;    /* id or name of those that are read; NULL: all. reading a long manifest takes milliseconds */
  al__manifest_t *m, *best; /* best->name "" while there is none */
  char best_id[AL_IMAGE_ID_MAX], bad_id[AL_IMAGE_ID_MAX];
  al_err_t bad;        /* of an image that was asked for and cannot be read */
  al_err_t old;        /* of one that another version built, which may be what was meant */
  char seen[200];      /* what there is, for the message */
} choice_t;

/* True when `a` is to be preferred: "base" first, then the later creation, then the id, so that the choice never
 * varies. */
static bool
better(const al__manifest_t *a, const char *a_id, const al__manifest_t *b, const char *b_id) {
  bool a_base = strcmp(a->name, "base") == 0, b_base = strcmp(b->name, "base") == 0;

  if (a_base != b_base) return a_base;
  int order = strcmp(a->created, b->created);
  return order != 0 ? order > 0 : strcmp(a_id, b_id) > 0;
}

static void
cannot_read(choice_t *c, const char *id, const al_err_t *why) {
  if (why->code == AL_EIMAGE_FORMAT) c->old = *why;
  if (!c->want || strcmp(c->want, id)) return;
  c->bad = *why;
  snprintf(c->bad_id, sizeof c->bad_id, "%s", id);
}

static int
consider(void *data, const char *id) {
  choice_t *c = data;
  al_err_t why = {0};
  size_t n = strlen(c->seen);

  if (c->only && strcmp(c->only, id) && !al__image_is_named(id, c->only)) return 0;
  int rc = al__image_load(c->home, id, c->m, NULL, NULL, &why);
  if (rc == -ENOMEM) return rc;
  if (rc) {
    if (rc != -ENOENT && rc != -ENOTDIR) cannot_read(c, id, &why);
    return 0;
  }
  /* A derived image belongs to one project, which knows its id. */
  if (c->m->parent.id[0] && (!c->want || strcmp(c->want, id))) return 0;
  snprintf(c->seen + n, sizeof c->seen - n, "%s%s (%s)", n ? ", " : "", id, c->m->arch);
  if (c->want && strcmp(c->want, id) && strcmp(c->want, c->m->name)) return 0;
  if (strcmp(c->arch, c->m->arch)) return 0;
  if (c->best->name[0] && !better(c->m, id, c->best, c->best_id)) return 0;
  *c->best = *c->m;
  snprintf(c->best_id, sizeof c->best_id, "%s", id);
  return 0;
}

/* First those that are meant, or "base"; when there is none of them all others, which may do or are at least named. */
static int
choose(choice_t *c, al_err_t *err) {
  int rc;

  c->only = c->want ? c->want : "base";
  if ((rc = al__image_each(c->home, consider, c, err)) || c->best->name[0]) return rc;
  c->only = NULL;
  c->seen[0] = 0;
  return al__image_each(c->home, consider, c, err);
}

static int
none(const choice_t *c, al_err_t *err) {
  const al_err_t *known = c->bad.code ? &c->bad : c->old.code && !c->seen[0] ? &c->old : NULL;

  if (known) {
    if (err) *err = *known;
    return known->code;
  }
  if (!c->seen[0]) return al_err_set(err, AL_EIMAGE_MISSING, "No image has been imported into %s.", c->home->images);
  if (!c->want) {
    return al_err_set(err, AL_EIMAGE_MISSING, "No image for %s has been imported. There is: %s.", c->arch, c->seen);
  }
  return al_err_set(err, AL_EIMAGE_MISSING, "No image %.80s for %s has been imported. There is: %s.", c->want, c->arch,
    c->seen);
}

/* ---- what it was derived from ---- */

static int
load_parent(const al_home_t *home, const al_image_t *child, const al_image_link_t *link, al__manifest_t *m,
  al_err_t *err) {
  int rc = al__image_load(home, link->id, m, NULL, NULL, err);
  if (rc == -ENOENT || rc == -ENOTDIR) {
    return al_err_set(err, AL_EIMAGE_MISSING, "Image %s was derived from image %s, which is not in the store.",
      child->id, link->id);
  }
  if (rc) return rc;
  if (strcmp(m->sha256, link->manifest_sha256)) {
    return al_err_set(err, AL_EIMAGE_CORRUPT,
      "Image %s was derived from an image whose manifest had sha256 %s, and that of image %s has %s.", child->id,
      link->manifest_sha256, link->id, m->sha256);
  }
  if (strcmp(m->arch, child->arch)) {
    return al_err_set(err, AL_EIMAGE_INVALID, "Image %s is for %s, and what it was derived from for %s.", child->id,
      child->arch, m->arch);
  }
  return 0;
}

/* Kernel and all that belongs to it is that of the image at the end: the derived ones have only a disk. */
static void
take_boot(al_image_t *out, const al_image_t *last) {
  memcpy(out->kernel, last->kernel, sizeof out->kernel);
  memcpy(out->initrd, last->initrd, sizeof out->initrd);
  memcpy(out->cmdline, last->cmdline, sizeof out->cmdline);
  memcpy(out->kernel_sha256, last->kernel_sha256, sizeof out->kernel_sha256);
  memcpy(out->probe_marker, last->probe_marker, sizeof out->probe_marker);
  memcpy(out->login_user, last->login_user, sizeof out->login_user);
  memcpy(out->agent_user, last->agent_user, sizeof out->agent_user);
  out->port = last->port;
}

/* Who has signed the image at the end of the chain, as far as that is known. */
static int
take_signer(const al_home_t *home, const al_image_trust_t *trust, const al__manifest_t *last, al_image_t *out,
  al_err_t *err) {
  const char *id = out->parents ? out->parent[out->parents - 1].id : out->id, *key;
  AL_AUTO_FREE char *signature = NULL;

  if (!al__image_trusted(trust, last->sha256, &key)) return al__image_untrusted(err, out->id);
  AL_AUTO_FD int dir = al__image_dir(home, id, err);
  int rc = dir < 0 ? dir : al__signature_load(dir, id, &signature, NULL, err);
  if (rc || !signature) return rc;
  out->is_signed = true;
  al__signature_key_id(signature, out->signer_id);
  snprintf(out->signer_key, sizeof out->signer_key, "%s", key);
  return 0;
}

typedef int (*verify_cb)(const al_home_t *home, const char *id, const al__manifest_t *m, void *data, al_err_t *err);

/* Fills `out` from `m`, then goes along its parents; each is verified, the image itself first. Changes m. */
static int
resolve(const al_home_t *home, const char *vm_type, const al_image_trust_t *trust, al__manifest_t *m, verify_cb verify,
  void *data, al_image_t *out, al_err_t *err) {
  AL_AUTO_FREE al_image_t *at = al_malloc(sizeof *at);
  al_image_link_t link = m->parent;

  if (!at) return al_err_set(err, -ENOMEM, "Out of memory.");
  int rc = al__manifest_image(m, home, vm_type, out, err);
  if (!rc) rc = verify(home, out->id, m, data, err);
  while (!rc && link.id[0]) {
    if (out->parents == AL_IMAGE_CHAIN_MAX - 1)
      return al_err_set(err, AL_EIMAGE_INVALID, "Image %s was derived over more than %d steps.", out->id,
        AL_IMAGE_CHAIN_MAX - 1);
    out->parent[out->parents++] = link;
    if ((rc = load_parent(home, out, &link, m, err))) break;
    link = m->parent;
    rc = al__manifest_image(m, home, vm_type, at, err);
    if (!rc) rc = verify(home, at->id, m, data, err);
    out->untrusted_setup |= m->untrusted_setup;
  }
  if (rc) return rc;
  if (out->parents) take_boot(out, at);
  return take_signer(home, trust, m, out, err);
}

/* ---- use ---- */

static int
verify_known(const al_home_t *home, const char *id, const al__manifest_t *m, void *data, al_err_t *err) {
  (void) data;
  int rc = al__image_verify(home, id, m, err);
  return rc == -ENOENT ? al_err_set(err, AL_EIMAGE_MISSING, "Image %s was removed a moment ago.", id) : rc;
}

/* The lock comes before the check: what has been checked is still there when the lane is made. */
static int
hold(const al_home_t *home, const char *id, int *held, al_err_t *err) {
  int fd = al__image_lock(home, id, true, HOLD_WAIT_MS, err);
  if (fd == -ENOENT) return al_err_set(err, AL_EIMAGE_MISSING, "Image %s was removed a moment ago.", id);
  if (fd < 0) return fd;
  *held = fd + 1; /* 0 is none, and a descriptor may be 0 */
  return 0;
}

int
al_image_find(const al_home_t *home, const al_image_want_t *want, al_image_t *out, al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_calloc(2, sizeof *m);
  const char *name = want->image && want->image[0] ? want->image : NULL;
  choice_t c = {.home = home, .want = name, .arch = want->arch, .m = m, .best = m ? m + 1 : NULL};
  al_image_t imported;

  if (want->hold) *want->hold = 0;
  if (!m) return al_err_set(err, -ENOMEM, "Out of memory.");
  if (name && name[0] == '/') {
    int rc = al__image_import_trusted(home, name, want->trust, &imported, err);
    if (rc) return rc;
    c.want = imported.id;
  }
  int rc = choose(&c, err);
  if (rc) return rc == -ENOMEM ? al_err_set(err, rc, "Out of memory.") : rc;
  if (!c.best->name[0]) return none(&c, err);
  if (want->hold && (rc = hold(home, c.best_id, want->hold, err))) return rc;
  rc = resolve(home, want->vm_type, want->trust, c.best, verify_known, NULL, out, err);
  if (rc && want->hold) al_image_release(want->hold);
  return rc;
}

int
al_image_open(const al_home_t *home, const char *want, const char *vm_type, const char *arch, al_image_t *out,
  al_err_t *err) {
  al_image_want_t all = {.image = want, .vm_type = vm_type, .arch = arch};
  return al_image_find(home, &all, out, err);
}

/* ---- check ---- */

typedef struct check_s {
  al_image_progress_cb progress;
  void *data;
  uint64_t done, total;
} check_t;

static int
advance(void *data, uint64_t bytes) {
  check_t *c = data;
  c->done += bytes;
  if (!c->progress) return 0;
  return c->progress(c->data, c->done < c->total ? c->done : c->total, c->total) ? -ECANCELED : 0;
}

static int
verify_all(const al_home_t *home, const char *id, const al__manifest_t *m, void *data, al_err_t *err) {
  check_t *c = data;
  c->total += m->bytes;
  return al__image_verify_all(home, id, m, advance, c, err);
}

int
al_image_check(const al_home_t *home, const char *id, const al_image_trust_t *trust, al_image_progress_cb progress,
  void *data, al_image_t *out, al_err_t *err) {
  AL_AUTO_FREE al__manifest_t *m = al_calloc(1, sizeof *m);
  check_t c = {.progress = progress, .data = data};
  int held = 0;

  if (!m) return al_err_set(err, -ENOMEM, "Out of memory.");
  if (!al__image_id_valid(id)) return al_err_set(err, AL_EIMAGE_MISSING, "There is no image %.80s.", id);
  int rc = hold(home, id, &held, err);
  if (!rc) rc = al__image_load(home, id, m, NULL, NULL, err);
  if (!rc) rc = resolve(home, NULL, trust, m, verify_all, &c, out, err);
  if (rc == -ENOENT) rc = al_err_set(err, AL_EIMAGE_CORRUPT, "Image %s has no manifest.json any more.", id);
  al_image_release(&held);
  return rc;
}
