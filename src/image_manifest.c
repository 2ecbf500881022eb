/* SPDX-License-Identifier: Apache-2.0 */
/* Reading an image's manifest: untrusted JSON, every field checked before anything is done with it. */
#include "db.h"
#include "image_int.h"
#include "mem.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define FEATURES_MAX 64
#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define DIGIT "0123456789"
#define PLAIN LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ" DIGIT "._+-"

int
al__manifest_bad(al_err_t *err, const char *field, const char *why) {
  return al_err_set(err, AL_EIMAGE_INVALID, "The image's manifest is not usable: %s %s.", field, why);
}
#define bad al__manifest_bad
#define take_text al__manifest_text

int
al__manifest_text(const al_val_t *map, const char *key, const char *first, const char *allowed, char *out, size_t cap,
  al_err_t *err) {
  const al_val_t *v = al_val_get(map, key);

  if (!v || v->kind != AL_TEXT) return bad(err, key, "is missing or not a text");
  if (v->len == 0 || v->len >= cap) return bad(err, key, "is empty or too long");
  for (size_t i = 0; i < v->len; i++) {
    char c = v->text[i];
    bool ok = c >= 0x20 && c <= 0x7e && (!allowed || strchr(allowed, c));
    if (!ok || (i == 0 && first && !strchr(first, c))) return bad(err, key, "contains a character that it must not");
  }
  memcpy(out, v->text, v->len + 1);
  return 0;
}

int
al__manifest_sha256(const al_val_t *map, const char *key, char out[AL_SHA256_HEX], al_err_t *err) {
  int rc = take_text(map, key, NULL, DIGIT "abcdef", out, AL_SHA256_HEX, err);
  return rc || strlen(out) == 64 ? rc : bad(err, key, "does not have 64 hex digits");
}

static int
take_number(const al_val_t *map, const char *key, int64_t min, int64_t max, uint64_t *out, al_err_t *err) {
  const al_val_t *v = al_val_get(map, key);

  if (!v || v->kind != AL_INT || v->i < min || v->i > max) {
    return bad(err, key, "is missing, not a whole number, or out of bounds");
  }
  *out = (uint64_t) v->i;
  return 0;
}

/* ISO 8601 in UTC. */
static int
take_created(const al_val_t *map, char out[24], al_err_t *err) {
  static const char shape[] = "dddd-dd-ddTdd:dd:ddZ";
  const al_val_t *v = al_val_get(map, "created");
  bool ok = v && v->kind == AL_TEXT && v->len == sizeof shape - 1;

  for (size_t i = 0; ok && i < v->len; i++) {
    char c = v->text[i];
    ok = shape[i] == 'd' ? c >= '0' && c <= '9' : c == shape[i];
  }
  if (!ok) return bad(err, "created", "is not a date like 2026-01-31T23:59:59Z");
  memcpy(out, v->text, v->len + 1);
  return 0;
}

static int
take_file(const al_val_t *v, al__manifest_t *m, al_err_t *err) {
  al__image_file_t *f = &m->files[m->count];

  if (v->kind != AL_MAP) return bad(err, "files", "has an entry that is not an object");
  int rc = take_text(v, "name", NULL, PLAIN, f->name, sizeof f->name, err);
  if (!rc && (f->name[0] == '.' || strncasecmp(f->name, "manifest.json", 13) == 0))
    rc = bad(err, "files", "has a name that is not allowed");
  if (!rc) rc = take_text(v, "role", LOWER, LOWER "-", f->role, sizeof f->role, err);
  if (!rc) rc = al__manifest_sha256(v, "sha256", f->sha256, err);
  if (!rc) rc = take_number(v, "size", 1, AL_IMAGE_SIZE_MAX, &f->size, err);
  if (rc) return rc;
  for (size_t i = 0; i < m->count; i++) { /* folded: macOS would make them one file */
    if (strcasecmp(m->files[i].name, f->name) == 0) return bad(err, "files", "names one file twice");
  }
  m->bytes += f->size;
  m->count++;
  return m->bytes <= (uint64_t) AL_IMAGE_SIZE_MAX ? 0 : bad(err, "files", "are larger than an image may be");
}

static int
take_files(const al_val_t *map, al__manifest_t *m, al_err_t *err) {
  const al_val_t *list = al_val_get(map, "files");

  if (!list || list->kind != AL_LIST || list->len == 0) return bad(err, "files", "is missing or empty");
  if (list->len > AL_IMAGE_FILES_MAX) return bad(err, "files", "has more entries than an image may have");
  for (size_t i = 0; i < list->len; i++) {
    int rc = take_file(list->items[i], m, err);
    if (rc) return rc;
  }
  return 0;
}

static int
with_role(const al__manifest_t *m, const char *role, char out[65], al_err_t *err) {
  const al__image_file_t *found = NULL;

  for (size_t i = 0; i < m->count; i++) {
    if (strcmp(m->files[i].role, role)) continue;
    if (found) return bad(err, role, "is the role of more than one file");
    found = &m->files[i];
  }
  snprintf(out, 65, "%s", found ? found->name : "");
  return 0;
}

const al__image_file_t *
al__manifest_file(const al__manifest_t *m, const char *name) {
  for (size_t i = 0; i < m->count; i++) {
    if (strcmp(m->files[i].name, name) == 0) return &m->files[i];
  }
  return NULL;
}

/* One vm type. The disk is the file of role `role`: a raw one is needed for vz, since only QEMU reads qcow2. */
static int
take_boot(const al_val_t *boot, const char *type, const char *format, const char *role, const al__manifest_t *m,
  al__image_boot_t *out, al_err_t *err) {
  const al_val_t *v = al_val_get(boot, type);

  if (!v) return 0;
  if (v->kind != AL_MAP) return bad(err, type, "is not an object");
  int rc = take_text(v, "kernel", NULL, PLAIN, out->kernel, sizeof out->kernel, err);
  if (!rc) rc = take_text(v, "initrd", NULL, PLAIN, out->initrd, sizeof out->initrd, err);
  if (!rc) rc = take_text(v, "cmdline", NULL, NULL, out->cmdline, sizeof out->cmdline, err);
  if (!rc) rc = take_text(v, "disk_format", NULL, LOWER DIGIT, out->disk_format, sizeof out->disk_format, err);
  if (!rc) rc = with_role(m, role, out->disk, err);
  if (rc) return rc;
  if (strcmp(out->disk_format, format)) return bad(err, "disk_format", "is not the one for this VM type");
  if (strstr(out->cmdline, "{{")) return bad(err, "cmdline", "contains \"{{\", which Lima would expand");
  /* A derived image boots what it was derived from, see image.c. */
  if (!m->parent.id[0] && (!al__manifest_file(m, out->kernel) || !al__manifest_file(m, out->initrd))) {
    return bad(err, type, "boots a file that the image does not have");
  }
  return 0;
}

static int
take_users(const al_val_t *map, al__manifest_t *m, al_err_t *err) {
  const al_val_t *users = al_val_get(map, "users");

  if (!users || users->kind != AL_MAP) return bad(err, "users", "is missing");
  int rc = take_text(users, "login", LOWER "_", LOWER DIGIT "_-", m->login, sizeof m->login, err);
  if (!rc) rc = take_text(users, "agent", LOWER "_", LOWER DIGIT "_-", m->agent, sizeof m->agent, err);
  if (rc) return rc;
  if (strcmp(m->login, "root") == 0 || strcmp(m->agent, "root") == 0 || strcmp(m->login, m->agent) == 0) {
    return bad(err, "users", "must be two users, neither of them root");
  }
  return 0;
}

/* What the image can do beyond the least. Features of later versions are nothing to us. */
static int
take_feature(const al_val_t *v, al__manifest_t *m, al_err_t *err) {
  bool ok = v->kind == AL_TEXT && v->len >= 1 && v->len <= 32 && strspn(v->text, LOWER DIGIT "-") == v->len;

  if (!ok || v->text[0] == '-') return bad(err, "features", "has an entry that is not a word");
  if (strcmp(v->text, "port-transport") == 0) m->port = true;
  return 0;
}

static int
take_features(const al_val_t *map, al__manifest_t *m, al_err_t *err) {
  const al_val_t *list = al_val_get(map, "features");

  if (!list) return 0;
  if (list->kind != AL_LIST || list->len > FEATURES_MAX)
    return bad(err, "features", "is not a list, or a very long one");
  for (size_t i = 0; i < list->len; i++) {
    int rc = take_feature(list->items[i], m, err);
    if (rc) return rc;
  }
  return 0;
}

/* What is not of our format but of the family says so: there is another cure than for a broken one. */
static int
take_format(const al_val_t *v, al_err_t *err) {
  static const char family[] = "agent-lane-image/";
  const al_val_t *format = al_val_get(v, "format"), *old = al_val_get(v, "schema");
  bool text = format && format->kind == AL_TEXT;

  if (text && format->len == sizeof AL_IMAGE_FORMAT - 1 && strcmp(format->text, AL_IMAGE_FORMAT) == 0) return 0;
  if (!format && old) {
    return al_err_set(err, AL_EIMAGE_FORMAT,
      "The image was built for an earlier version: its manifest has a \"schema\" instead of the format \"%s\".",
      AL_IMAGE_FORMAT);
  }
  if (text && strncmp(format->text, family, sizeof family - 1) == 0) {
    return al_err_set(err, AL_EIMAGE_FORMAT,
      "The image's manifest has the format \"%.40s\", and this version reads \"%s\".", format->text, AL_IMAGE_FORMAT);
  }
  return bad(err, "format", "is not \"" AL_IMAGE_FORMAT "\"");
}

/* What an image is made of, beside the boot data, which need it. */
static int
take_content(const al_val_t *v, al__manifest_t *m, al_err_t *err) {
  char sbom[65];

  int rc = take_users(v, m, err);
  if (!rc) rc = take_features(v, m, err);
  if (!rc) rc = take_files(v, m, err);
  if (!rc) rc = with_role(m, "sbom", sbom, err);
  if (!rc) rc = al__manifest_origin(v, m, err);
  if (!rc && !m->parent.id[0] && !sbom[0]) rc = bad(err, "files", "has none of role \"sbom\"");
  return rc;
}

static int
take_all(const al_val_t *v, al__manifest_t *m, al_err_t *err) {
  const al_val_t *boot = al_val_get(v, "boot");

  if (v->kind != AL_MAP) return bad(err, "it", "is not a JSON object");
  int rc = take_format(v, err);
  if (!rc) rc = take_text(v, "name", LOWER DIGIT, LOWER DIGIT "-", m->name, sizeof m->name, err);
  if (!rc) rc = take_text(v, "flavour", LOWER DIGIT, PLAIN, m->flavour, sizeof m->flavour, err);
  if (!rc) rc = take_text(v, "version", NULL, PLAIN, m->version, sizeof m->version, err);
  if (!rc) rc = take_text(v, "arch", LOWER, LOWER DIGIT "_", m->arch, sizeof m->arch, err);
  if (!rc && strcmp(m->arch, "x86_64") && strcmp(m->arch, "aarch64")) rc = bad(err, "arch",
    "is neither x86_64 nor aarch64");
  if (!rc) rc = take_created(v, m->created, err);
  if (!rc) rc = al__manifest_sha256(v, "recipe_sha256", m->recipe_sha256, err);
  if (!rc) rc = take_number(v, "virtual_size", 1 << 20, 1ll << 42, &m->virtual_size, err);
  if (!rc && al_val_get(v, "probe_marker")) {
    rc = take_text(v, "probe_marker", NULL, PLAIN, m->probe_marker, sizeof m->probe_marker, err);
  }
  if (!rc) rc = take_content(v, m, err);
  if (!rc && (!boot || boot->kind != AL_MAP)) rc = bad(err, "boot", "is missing");
  if (!rc) rc = take_boot(boot, "qemu", "qcow2", "disk", m, &m->qemu, err);
  if (!rc) rc = take_boot(boot, "vz", "raw", "disk-raw", m, &m->vz, err);
  if (!rc && !m->qemu.disk[0] && !m->vz.disk[0]) rc = bad(err, "files", "has no disk");
  return rc;
}

int
al__manifest_parse(const char *text, size_t len, al__manifest_t *out, al_err_t *err) {
  al_val_t *v = NULL;

  memset(out, 0, sizeof *out);
  int rc = al_json_parse(text, len, &v, err);
  if (rc == -ENOMEM) return rc;
  if (rc) {
    if (err) err->code = AL_EIMAGE_INVALID;
    al_err_wrap(err, "The image's manifest is not usable");
    return AL_EIMAGE_INVALID;
  }
  rc = take_all(v, out, err);
  al_val_free(v);
  al_sha256_text(text, len, out->sha256);
  return rc;
}

void
al__manifest_id(const al__manifest_t *m, char id[AL_IMAGE_ID_MAX]) {
  snprintf(id, AL_IMAGE_ID_MAX, "%s-%.12s", m->name, m->sha256);
}

#define COPY(to, from) snprintf(to, sizeof(to), "%s", from)

/* What does not depend on the kind of VM. */
static void
describe(const al__manifest_t *m, const al_home_t *home, al_image_t *out) {
  memset(out, 0, sizeof *out);
  al__manifest_id(m, out->id);
  snprintf(out->dir, sizeof out->dir, "%s/%s", home->images, out->id);
  COPY(out->name, m->name);
  COPY(out->flavour, m->flavour);
  COPY(out->version, m->version);
  COPY(out->created, m->created);
  COPY(out->recipe_sha256, m->recipe_sha256);
  COPY(out->arch, m->arch);
  COPY(out->login_user, m->login);
  COPY(out->agent_user, m->agent);
  COPY(out->manifest_sha256, m->sha256);
  COPY(out->probe_marker, m->probe_marker);
  out->virtual_size = m->virtual_size;
  out->port = m->port;
  out->untrusted_setup = m->untrusted_setup;
}

int
al__manifest_image(const al__manifest_t *m, const al_home_t *home, const char *vm_type, al_image_t *out,
  al_err_t *err) {
  bool vz = vm_type ? strcmp(vm_type, "vz") == 0 : !m->qemu.kernel[0] || !m->qemu.disk[0];
  const al__image_boot_t *boot = vz ? &m->vz : &m->qemu;

  describe(m, home, out);
  if (!boot->kernel[0]) {
    return al_err_set(err, AL_EIMAGE_INVALID, "Image %s has no part for VMs of type %s.", out->id,
      vm_type ? vm_type : "qemu or vz");
  }
  if (!boot->disk[0]) {
    return al_err_set(err, AL_EIMAGE_INVALID, "Image %s has no file of role \"%s\", which VMs of type %s need.",
      out->id, vz ? "disk-raw" : "disk", vz ? "vz" : "qemu");
  }
  COPY(out->disk_format, boot->disk_format);
  COPY(out->disk_sha256, al__manifest_file(m, boot->disk)->sha256);
  snprintf(out->disk, sizeof out->disk, "%s/%s", out->dir, boot->disk);
  if (m->parent.id[0]) return 0; /* image.c takes the rest from what it was derived from */
  COPY(out->cmdline, boot->cmdline);
  COPY(out->kernel_sha256, al__manifest_file(m, boot->kernel)->sha256);
  snprintf(out->kernel, sizeof out->kernel, "%s/%s", out->dir, boot->kernel);
  snprintf(out->initrd, sizeof out->initrd, "%s/%s", out->dir, boot->initrd);
  return 0;
}
