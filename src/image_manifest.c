/* SPDX-License-Identifier: Apache-2.0 */
/* Reading an image's manifest: untrusted JSON, every field checked before anything is done with it. */
#include "db.h"
#include "image_int.h"
#include "mem.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define FEATURES_MAX 64
#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define DIGIT "0123456789"
#define PLAIN LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ" DIGIT "._+-"

static int
bad(al_err_t *err, const char *field, const char *why) {
  return al_err_set(err, AL_EIMAGE_INVALID, "The image's manifest is not usable: %s %s.", field, why);
}

/* A text of 1 to cap - 1 bytes out of `allowed` that starts with one of `first`. NULL sets allow all printable
 * ASCII. */
static int
take_text(const al_val_t *map, const char *key, const char *first, const char *allowed, char *out, size_t cap,
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

static int
take_number(const al_val_t *map, const char *key, int64_t min, int64_t max, uint64_t *out, al_err_t *err) {
  const al_val_t *v = al_val_get(map, key);

  if (!v || v->kind != AL_INT || v->i < min || v->i > max) {
    return bad(err, key, "is missing, not a whole number, or out of bounds");
  }
  *out = (uint64_t) v->i;
  return 0;
}

/* ISO 8601 in UTC, or seconds since 1970. */
static int
take_created(const al_val_t *map, char out[24], al_err_t *err) {
  static const char shape[] = "dddd-dd-ddTdd:dd:ddZ";
  const al_val_t *v = al_val_get(map, "created");
  struct tm tm;

  if (v && v->kind == AL_INT && v->i >= 0 && v->i < 253402300800) {
    time_t t = (time_t) v->i;
    return gmtime_r(&t, &tm) && strftime(out, 24, "%Y-%m-%dT%H:%M:%SZ", &tm) ? 0 : bad(err, "created", "is not a date");
  }
  if (!v || v->kind != AL_TEXT || v->len != sizeof shape - 1) {
    return bad(err, "created", "is not a date like 2026-01-31T23:59:59Z");
  }
  for (size_t i = 0; i < v->len; i++) {
    char c = v->text[i];
    if (shape[i] == 'd' ? c < '0' || c > '9' : c != shape[i]) {
      return bad(err, "created", "is not a date like 2026-01-31T23:59:59Z");
    }
  }
  memcpy(out, v->text, v->len + 1);
  return 0;
}

static int
take_file(const al_val_t *v, al__manifest_t *m, al_err_t *err) {
  al__image_file_t *f = &m->files[m->count];

  if (v->kind != AL_MAP) return bad(err, "files", "has an entry that is not an object");
  int rc = take_text(v, "name", NULL, PLAIN, f->name, sizeof f->name, err);
  if (!rc && (f->name[0] == '.' || strcasecmp(f->name, "manifest.json") == 0)) rc = bad(err, "files",
    "has a name that is not allowed");
  if (!rc) rc = take_text(v, "role", LOWER, LOWER "-", f->role, sizeof f->role, err);
  if (!rc) rc = take_text(v, "sha256", NULL, DIGIT "abcdef", f->sha256, sizeof f->sha256, err);
  if (!rc && strlen(f->sha256) != 64) rc = bad(err, "sha256", "does not have 64 hex digits");
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

static const al__image_file_t *
find_file(const al__manifest_t *m, const char *name) {
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
  if (!find_file(m, out->kernel) || !find_file(m, out->initrd)) {
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
take_features(const al_val_t *map, al__manifest_t *m, al_err_t *err) {
  const al_val_t *list = al_val_get(map, "features");

  if (!list) return 0;
  if (list->kind != AL_LIST || list->len > FEATURES_MAX) return bad(err, "features", "is not a list, or a very long one");
  for (size_t i = 0; i < list->len; i++) {
    if (list->items[i]->kind != AL_TEXT) return bad(err, "features", "has an entry that is not a text");
    if (strcmp(list->items[i]->text, "port-transport") == 0) m->port = true;
  }
  return 0;
}

static int
take_all(const al_val_t *v, al__manifest_t *m, al_err_t *err) {
  const al_val_t *boot = al_val_get(v, "boot");
  uint64_t schema;

  if (v->kind != AL_MAP) return bad(err, "it", "is not a JSON object");
  int rc = take_number(v, "schema", 1, 1, &schema, err);
  if (!rc) rc = take_text(v, "name", LOWER DIGIT, LOWER DIGIT "-", m->name, sizeof m->name, err);
  if (!rc) rc = take_text(v, "flavour", LOWER DIGIT, PLAIN, m->flavour, sizeof m->flavour, err);
  if (!rc) rc = take_text(v, "version", NULL, PLAIN, m->version, sizeof m->version, err);
  if (!rc) rc = take_text(v, "arch", LOWER, LOWER DIGIT "_", m->arch, sizeof m->arch, err);
  if (!rc && strcmp(m->arch, "x86_64") && strcmp(m->arch, "aarch64")) rc = bad(err, "arch",
    "is neither x86_64 nor aarch64");
  if (!rc) rc = take_created(v, m->created, err);
  if (!rc) rc = take_number(v, "virtual_size", 1 << 20, 1ll << 42, &m->virtual_size, err);
  if (!rc && al_val_get(v, "probe_marker")) {
    rc = take_text(v, "probe_marker", NULL, PLAIN, m->probe_marker, sizeof m->probe_marker, err);
  }
  if (!rc) rc = take_users(v, m, err);
  if (!rc) rc = take_features(v, m, err);
  if (!rc) rc = take_files(v, m, err);
  if (!rc && (!boot || boot->kind != AL_MAP)) rc = bad(err, "boot", "is missing");
  if (!rc) rc = take_boot(boot, "qemu", "qcow2", "disk", m, &m->qemu, err);
  if (!rc) rc = take_boot(boot, "vz", "raw", "disk-raw", m, &m->vz, err);
  if (!rc && !m->qemu.disk[0] && !m->vz.disk[0]) rc = bad(err, "files", "has no disk");
  return rc;
}

int
al__manifest_parse(const char *text, size_t len, al__manifest_t *out, al_err_t *err) {
  uint8_t digest[AL_SHA256_LEN];
  al_sha256_t sum;
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
  al_sha256_init(&sum);
  al_sha256_update(&sum, text, len);
  al_sha256_final(&sum, digest);
  al_sha256_hex(digest, out->sha256);
  return rc;
}

void
al__manifest_id(const al__manifest_t *m, char id[72]) {
  snprintf(id, 72, "%s-%.12s", m->name, m->sha256);
}

int
al__manifest_image(const al__manifest_t *m, const al_home_t *home, const char *vm_type, al_image_t *out,
  al_err_t *err) {
  const al__image_boot_t *boot = vm_type && strcmp(vm_type, "vz") == 0 ? &m->vz : &m->qemu;
  memset(out, 0, sizeof *out);
  if (!vm_type && !boot->kernel[0]) boot = &m->vz;
  al__manifest_id(m, out->id);
  if (!boot->kernel[0]) {
    return al_err_set(err, AL_EIMAGE_INVALID, "Image %s has no part for VMs of type %s.", out->id,
      vm_type ? vm_type : "qemu or vz");
  }
  if (!boot->disk[0]) {
    return al_err_set(err, AL_EIMAGE_INVALID, "Image %s has no file of role \"%s\", which VMs of type %s need.",
      out->id,
      boot == &m->vz ? "disk-raw" : "disk", boot == &m->vz ? "vz" : "qemu");
  }
  snprintf(out->dir, sizeof out->dir, "%s/%s", home->images, out->id);
  snprintf(out->disk, sizeof out->disk, "%s/%s", out->dir, boot->disk);
  snprintf(out->kernel, sizeof out->kernel, "%s/%s", out->dir, boot->kernel);
  snprintf(out->initrd, sizeof out->initrd, "%s/%s", out->dir, boot->initrd);
  snprintf(out->disk_format, sizeof out->disk_format, "%s", boot->disk_format);
  snprintf(out->cmdline, sizeof out->cmdline, "%s", boot->cmdline);
  snprintf(out->arch, sizeof out->arch, "%s", m->arch);
  snprintf(out->login_user, sizeof out->login_user, "%s", m->login);
  snprintf(out->agent_user, sizeof out->agent_user, "%s", m->agent);
  snprintf(out->manifest_sha256, sizeof out->manifest_sha256, "%s", m->sha256);
  snprintf(out->disk_sha256, sizeof out->disk_sha256, "%s", find_file(m, boot->disk)->sha256);
  snprintf(out->kernel_sha256, sizeof out->kernel_sha256, "%s", find_file(m, boot->kernel)->sha256);
  snprintf(out->probe_marker, sizeof out->probe_marker, "%s", m->probe_marker);
  out->virtual_size = m->virtual_size;
  out->port = m->port;
  return 0;
}
