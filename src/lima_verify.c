/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a lane's effective configuration back from Lima and compares it, key by key, with what we asked for. */
#include "lima_int.h"

#include "mem.h"
#include "utf8.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Theory of operation. The expectation is a tree like the answer. A key that we expect must be there and equal; a key
 * that we do not know may only say nothing: null, false, 0, "" or empty all the way down. So a feature that a newer
 * Lima adds, or a mount that an override file adds, stops the lane. ANY marks the few values that have no effect in a
 * plain lane. */

#define ANY "\001any"
#define DEPTH_MAX 32

typedef struct verify_s {
  al__lima_op_t op;
  al_proc_t proc;
  const al_lane_spec_t *spec; /* copied behind this struct */
  char *digest;               /* the caller's; NULL: not wanted */
  char found[AL_SHA256_HEX];
} verify_t;

/* ---- what we expect ---- */

static al_val_t *
map_of(const char *k1, al_val_t *v1, const char *k2, al_val_t *v2, const char *k3, al_val_t *v3, int *rc) {
  const char *const keys[] = {k1, k2, k3};
  al_val_t *const vals[] = {v1, v2, v3};
  al_val_t *m = al_val_map();
  for (int i = 0; i < 3; i++) {
    if (keys[i] && al_val_set(m, keys[i], vals[i]) != 0) *rc = -ENOMEM; /* a NULL map frees the value and says so */
  }
  return m;
}

static void
put(al_val_t *m, const char *key, al_val_t *v, int *rc) {
  if (al_val_set(m, key, v) != 0) *rc = -ENOMEM;
}

static al_val_t *
list_of(al_val_t *v, int *rc) {
  al_val_t *l = al_val_list();
  if (al_val_add(l, v) != 0) *rc = -ENOMEM;
  return l;
}

static al_val_t *
expected_images(const al_image_t *im, int *rc) {
  al_val_t *kernel =
    map_of("location", al_val_text(im->kernel), "arch", al_val_text(im->arch), "cmdline", al_val_text(im->cmdline), rc);
  al_val_t *initrd = map_of("location", al_val_text(im->initrd), "arch", al_val_text(im->arch), NULL, NULL, rc);
  al_val_t *image = map_of("location", al_val_text(im->disk), "arch", al_val_text(im->arch), "kernel", kernel, rc);
  put(image, "initrd", initrd, rc);
  return list_of(image, rc);
}

static al_val_t *
expected_provision(const al_lane_spec_t *spec, int *rc) {
  al_val_t *m = map_of(
    "mode", al_val_text("data"), "path", al_val_text("/run/agent-lane/proof"), "owner", al_val_text("root:root"), rc);
  put(m, "permissions", al_val_text("600"), rc);
  put(m, "overwrite", al_val_bool(true), rc);
  put(m, "content", al_val_text(spec->proof), rc);
  return list_of(m, rc);
}

static al_val_t *
expected_ssh(int *rc) {
  static const char *const off[] = {
    "loadDotSSHPubKeys", "forwardAgent", "forwardX11", "forwardX11Trusted", "overVsock"};
  al_val_t *m = map_of("localPort", al_val_int(0), NULL, NULL, NULL, NULL, rc);
  for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) put(m, off[i], al_val_bool(false), rc);
  return m;
}

static al_val_t *
expected_user(const char *login, int *rc) {
  char home[64];
  snprintf(home, sizeof home, "/home/%s", login);
  al_val_t *m = map_of("name", al_val_text(login), "comment", al_val_text(""), "home", al_val_text(home), rc);
  put(m, "shell", al_val_text("/bin/bash"), rc);
  put(m, "uid", al_val_int(1000), rc);
  put(m, "passwordlessSudo", al_val_bool(true), rc);
  return m;
}

static void
expect_driver(al_val_t *m, const al_lima_t *l, const al_lane_spec_t *spec, int *rc) {
  if (strcmp(l->vm_type, "vz") == 0) {
    al_val_t *rosetta = map_of("enabled", al_val_bool(false), "binfmt", al_val_bool(false), NULL, NULL, rc);
    al_val_t *vz = map_of("rosetta", rosetta, "diskImageFormat", al_val_text("raw"), NULL, NULL, rc);
    put(m, "vmOpts", map_of("vz", vz, NULL, NULL, NULL, NULL, rc), rc);
    put(m, "firmware", map_of("legacyBIOS", al_val_bool(false), NULL, NULL, NULL, NULL, rc), rc);
    return;
  }
  put(m, "firmware", map_of("legacyBIOS", al_val_bool(strcmp(l->arch, "x86_64") == 0), NULL, NULL, NULL, NULL, rc), rc);
  if (spec->accel != AL_ACCEL_TCG) return;
  al_val_t *type = map_of(l->arch, al_val_text("max"), NULL, NULL, NULL, NULL, rc);
  al_val_t *qemu = map_of("cpuType", type, NULL, NULL, NULL, NULL, rc);
  put(m, "vmOpts", map_of("qemu", qemu, NULL, NULL, NULL, NULL, rc), rc);
}

static al_val_t *
expected(const al_lima_t *l, const al_lane_spec_t *spec, int *rc) {
  char memory[32], disk[32];
  snprintf(memory, sizeof memory, "%" PRId64 "MiB", spec->memory_mib);
  snprintf(disk, sizeof disk, "%" PRId64 "GiB", spec->disk_gib);
  al_val_t *m = map_of("vmType", al_val_text(l->vm_type), "os", al_val_text("Linux"), "arch", al_val_text(l->arch), rc);
  put(m, "minimumLimaVersion", al_val_text("2.2.0"), rc);
  put(m, "images", expected_images(&spec->image, rc), rc);
  put(m, "cpus", al_val_int(spec->cpus), rc);
  put(m, "memory", al_val_text(memory), rc);
  put(m, "disk", al_val_text(disk), rc);
  put(m, "plain", al_val_bool(true), rc);
  put(m, "provision", expected_provision(spec, rc), rc);
  put(m, "ssh", expected_ssh(rc), rc);
  put(m, "user", expected_user(spec->image.login_user, rc), rc);
  put(m, "containerd",
    map_of("system", al_val_bool(false), "user", al_val_bool(false), "archives", al_val_text(ANY), rc), rc);
  put(m, "hostResolver", map_of("enabled", al_val_bool(false), "ipv6", al_val_bool(false), NULL, NULL, rc), rc);
  put(m, "video", map_of("display", al_val_text("none"), "vnc", al_val_text(ANY), NULL, NULL, rc), rc);
  put(m, "propagateProxyEnv", al_val_bool(false), rc);
  put(m, "upgradePackages", al_val_bool(false), rc);
  put(m, "timezone", al_val_text(""), rc);
  put(m, "nestedVirtualization", al_val_bool(false), rc);
  put(m, "caCerts", map_of("removeDefaults", al_val_bool(false), NULL, NULL, NULL, NULL, rc), rc);
  put(m, "guestInstallPrefix", al_val_text(ANY), rc);
  put(m, "mountType", al_val_text(ANY), rc);
  expect_driver(m, l, spec, rc);
  return m;
}

/* ---- comparing ---- */

static bool
says_nothing(const al_val_t *v, int depth) {
  if (depth > DEPTH_MAX) return false;
  switch (v->kind) {
  case AL_NULL: return true;
  case AL_BOOL: return !v->b;
  case AL_INT: return v->i == 0;
  case AL_DOUBLE: return v->d == 0;
  case AL_TEXT:
  case AL_BYTES: return v->len == 0;
  case AL_LIST:
  case AL_MAP:
    for (size_t i = 0; i < v->len; i++) {
      if (!says_nothing(v->items[i], depth + 1)) return false;
    }
    return true;
  }
  return false;
}

static bool
same_scalar(const al_val_t *a, const al_val_t *b) {
  if (a->kind == AL_INT && b->kind == AL_DOUBLE) return (double) a->i == b->d;
  if (a->kind != b->kind) return false;
  switch (a->kind) {
  case AL_NULL: return true;
  case AL_BOOL: return a->b == b->b;
  case AL_INT: return a->i == b->i;
  case AL_DOUBLE: return a->d == b->d;
  case AL_TEXT:
  case AL_BYTES: return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
  case AL_LIST:
  case AL_MAP: break;
  }
  return false;
}

static int
refuse(const al_lima_t *l, const char *path, const char *why, const al_val_t *got, al_err_t *err) {
  char shown[96] = "";
  char *json = got ? al_json_text(got) : NULL;
  /* The proof is the one secret of this tree; it is not repeated in a message. */
  if (json && strstr(path, "provision") == NULL) al_utf8_printable(shown, sizeof shown, json, strlen(json), false);
  al_free(json);
  al_err_set(err, AL_ECONFIG_REFUSED, "Lima %s would start the lane with `%s` %s%s%s",
    l->version[0] ? l->version : "(unknown version)", path, why, shown[0] ? ": " : "", shown);
  return AL_ECONFIG_REFUSED;
}

static const al_val_t *
entry(const al_val_t *map, const char *key) {
  for (size_t i = 0; i < map->len; i++) {
    if (strcmp(map->keys[i], key) == 0) return map->items[i];
  }
  return NULL;
}

static int
compare(const al_lima_t *l, const char *path, const al_val_t *want, const al_val_t *got, int depth, al_err_t *err);

static int
compare_maps(
  const al_lima_t *l, const char *path, const al_val_t *want, const al_val_t *got, int depth, al_err_t *err) {
  char sub[256], key[80];
  const char *dot = path[0] ? "." : "";
  for (size_t i = 0; i < got->len; i++) {
    al_utf8_printable(key, sizeof key, got->keys[i], strlen(got->keys[i]), false);
    snprintf(sub, sizeof sub, "%s%s%s", path, dot, key);
    const al_val_t *w = entry(want, got->keys[i]);
    if (!w && !says_nothing(got->items[i], 0))
      return refuse(l, sub, "set, which Agent Lane does not know", got->items[i], err);
    int rc = w ? compare(l, sub, w, got->items[i], depth + 1, err) : 0;
    if (rc) return rc;
  }
  for (size_t i = 0; i < want->len; i++) {
    const al_val_t *w = want->items[i];
    if (entry(got, want->keys[i]) || (w->kind == AL_TEXT && strcmp(w->text, ANY) == 0)) continue;
    snprintf(sub, sizeof sub, "%s%s%s", path, dot, want->keys[i]);
    return refuse(l, sub, "missing", NULL, err);
  }
  return 0;
}

static int
compare(const al_lima_t *l, const char *path, const al_val_t *want, const al_val_t *got, int depth, al_err_t *err) {
  if (depth > DEPTH_MAX) return refuse(l, path, "nested too deeply", NULL, err);
  if (want->kind == AL_TEXT && strcmp(want->text, ANY) == 0) return 0;
  if (want->kind == AL_MAP && got->kind == AL_MAP) return compare_maps(l, path, want, got, depth, err);
  if (want->kind == AL_LIST && got->kind == AL_LIST) {
    if (want->len != got->len) return refuse(l, path, "of another length", got, err);
    char sub[256];
    for (size_t i = 0; i < want->len; i++) {
      snprintf(sub, sizeof sub, "%.230s[%zu]", path, i);
      int rc = compare(l, sub, want->items[i], got->items[i], depth + 1, err);
      if (rc) return rc;
    }
    return 0;
  }
  return same_scalar(want, got) ? 0 : refuse(l, path, "changed", got, err);
}

/* The record around the configuration: that very lane, stopped, not protected, without errors. */
static int
compare_record(const al_lima_t *l, const al_lane_spec_t *spec, const al_val_t *instance, al_err_t *err) {
  const char *const keys[] = {"name", "dir", "vmType", "arch", "status"};
  const char *const want[] = {spec->name, spec->dir, l->vm_type, l->arch, "Stopped"};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    const char *got = NULL;
    if (al_val_get_text(instance, keys[i], "", &got, NULL) != 0 || strcmp(got, want[i]) != 0) {
      char sub[32];
      snprintf(sub, sizeof sub, "(instance).%s", keys[i]);
      return refuse(l, sub, "not what was asked for", entry(instance, keys[i]), err);
    }
  }
  static const char *const empty[] = {
    "errors", "protected", "network", "networks", "additionalDisks", "param", "hostAgentPID", "driverPID", "message"};
  for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
    const al_val_t *v = entry(instance, empty[i]);
    char sub[32];
    snprintf(sub, sizeof sub, "(instance).%s", empty[i]);
    if (v && !says_nothing(v, 0)) return refuse(l, sub, "set", v, err);
  }
  return 0;
}

int
al__lima_compare(const al_lima_t *l, const al_lane_spec_t *spec, const al_val_t *instance, al_err_t *err) {
  if (instance->kind != AL_MAP) return al_err_set(err, AL_ECONFIG_REFUSED, "limactl's answer is not a record");
  int rc = compare_record(l, spec, instance, err);
  if (rc) return rc;
  const al_val_t *config = al_val_get(instance, "config");
  if (!config || config->kind != AL_MAP)
    return al_err_set(err, AL_ECONFIG_REFUSED, "limactl gave no effective configuration");
  int made = 0;
  al_val_t *want = expected(l, spec, &made);
  if (!want || made) rc = al_err_set(err, -ENOMEM, "out of memory");
  else rc = compare(l, "", want, config, 0, err);
  al_val_free(want);
  return rc;
}

/* ---- its digest ---- */

static void
sort_members(al_val_t *v) {
  for (size_t i = 0; v->kind == AL_MAP && i < v->len; i++) {
    char *key = v->keys[i];
    al_val_t *item = v->items[i];
    size_t at = i;
    for (; at > 0 && strcmp(v->keys[at - 1], key) > 0; at--) {
      v->keys[at] = v->keys[at - 1];
      v->items[at] = v->items[at - 1];
    }
    v->keys[at] = key;
    v->items[at] = item;
  }
  for (size_t i = 0; (v->kind == AL_MAP || v->kind == AL_LIST) && i < v->len; i++) sort_members(v->items[i]);
}

static int
drop_secrets(al_val_t *config) {
  al_val_t *list = al_val_at(config, "provision");
  int rc = 0;
  for (size_t i = 0; list && list->kind == AL_LIST && i < list->len; i++)
    if (list->items[i]->kind == AL_MAP) rc |= al_val_set(list->items[i], "content", al_val_text(""));
  return rc;
}

int
al__lima_config_digest(al_val_t *instance, char digest[AL_SHA256_HEX]) {
  al_val_t *config = al_val_at(instance, "config");
  if (!config || config->kind != AL_MAP || drop_secrets(config)) return -ENOMEM;
  sort_members(config);
  AL_AUTO_FREE char *text = al_json_text(config);
  if (!text) return -ENOMEM;
  al_sha256_text(text, strlen(text), digest);
  return 0;
}

/* ---- asking ---- */

static int
judge(al_job_t *job) {
  verify_t *q = (verify_t *) job;
  al_lima_t *l = q->op.l;
  int rc = al__lima_config_check(l->home, &q->op.err);
  if (rc) return rc;
  const char *text = q->proc.out.data ? (const char *) q->proc.out.data : "";
  size_t len = q->proc.out.len;
  while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r')) len--;
  if (len == 0 || memchr(text, '\n', len))
    return al_err_set(&q->op.err, AL_ECONFIG_REFUSED, "limactl list did not answer with one record");
  al_val_t *v = NULL;
  rc = al_json_parse(text, len, &v, NULL);
  if (rc == -ENOMEM) return al_err_set(&q->op.err, rc, "out of memory for limactl's answer");
  if (rc) return al_err_set(&q->op.err, AL_ECONFIG_REFUSED, "limactl list answered with something that is not JSON");
  rc = al__lima_compare(l, q->spec, v, &q->op.err);
  if (rc == 0 && al__lima_config_digest(v, q->found))
    rc = al_err_set(&q->op.err, -ENOMEM, "out of memory for limactl's answer");
  al_val_free(v);
  return rc;
}

static void
judged(al_job_t *job, int status) {
  verify_t *q = (verify_t *) job;
  al_proc_deinit(&q->proc);
  if (status == 0 && q->digest) memcpy(q->digest, q->found, sizeof q->found);
  al__lima_op_end(&q->op, status);
}

static void
listed(al_proc_t *p, int status) {
  verify_t *q = p->data;
  int rc = al__lima_child_result(p, status, AL_ELIMA_FAILED, "limactl list", &q->op.err);
  if (rc == 0) {
    al_worker_post(q->op.l->io, &q->op.job, judge, judged);
    return;
  }
  al_proc_deinit(p);
  al__lima_op_end(&q->op, rc);
}

void
al_lima_verify(al_lima_t *l, const al_lane_spec_t *spec, char digest[AL_SHA256_HEX], al_lima_cb cb, void *data) {
  verify_t *q = al__lima_op_new(l, sizeof *q + sizeof *spec, cb, data);
  if (!q) return;
  al_lane_spec_t *copy = (al_lane_spec_t *) (void *) (q + 1);
  *copy = *spec;
  q->spec = copy;
  q->digest = digest;
  q->proc.data = q;
  const char *const argv[] = {l->limactl, "--tty=false", "--log-format", "json", "list", "--json", spec->name, NULL};
  int rc = al__lima_spawn(l, NULL, &q->proc, argv, AL__LIMA_QUICK_MS, AL__LIMA_JSON_MAX, listed);
  if (rc) al__lima_op_end_soon(&q->op, rc);
}
