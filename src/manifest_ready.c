/* SPDX-License-Identifier: Apache-2.0 */
/* The first event of a run manifest: versions, image, options, how the VM was started, and what is enforced. */
#include "lane_manifest.h"

#include "db.h"
#include "enforced.h"
#include "lima_look.h"
#include "mem.h"
#include "run_log.h"
#include "utf8.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define ENV_NAMES_MAX 500
#define PACKAGE_MAX (64u << 10)

static int
set_int(al_val_t *map, const char *key, uint64_t n) {
  return al_val_set(map, key, al_val_int((int64_t) n));
}

static al_val_t *
text_or_null(const char *text) {
  return text[0] ? al_val_text(text) : al_val_null();
}

/* ---- what is known on the loop ---- */

/* A copy; null where there is no list. */
static al_val_t *
texts_or_null(const al_val_t *list) {
  if (!list) return al_val_null();
  al_val_t *v = al_val_list();
  int rc = v ? 0 : -ENOMEM;
  for (size_t i = 0; i < list->len && !rc; i++) rc = al_val_add(v, al_val_text(list->items[i]->text));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

static al_val_t *
options(const al_lane_t *l) {
  static const char *const transports[] = {"auto", "shell", "port"};
  const al_lane_spec_t *s = &l->spec;
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "cpus", al_val_int(s->cpus)) | al_val_set(v, "memoryMiB", al_val_int(s->memory_mib)) |
    al_val_set(v, "diskGiB", al_val_int(s->disk_gib)) | al_val_set(v, "timeoutMinutes", al_val_int(l->timeout_minutes)) |
    al_val_set(v, "startTimeoutSeconds", al_val_int(l->start_timeout_s)) |
    al_val_set(v, "syncInTimeoutSeconds", al_val_int(l->sync_in_s)) |
    al_val_set(v, "queueTimeoutSeconds", al_val_int(l->queue_timeout_s)) |
    al_val_set(v, "maxConcurrentVms", al_val_int(l->max_vms)) | set_int(v, "maxCopyOutBytes", l->max_copy_out) |
    set_int(v, "maxCopyOutTotalBytes", l->copy_out_left) | set_int(v, "maxBufferedBytes", l->budget.max) |
    set_int(v, "maxDiskGrowthBytes", l->max_growth) | set_int(v, "maxHostLogBytes", l->max_host_log) |
    set_int(v, "minHostFreeBytes", l->min_free) |
    al_val_set(v, "onLowSpace", al_val_text(l->low_close ? "close" : "event")) |
    al_val_set(v, "network", al_val_text(s->network == AL_NETWORK_NONE ? "none" : "open")) |
    al_val_set(v, "accelerator", al_val_text(l->accel_auto ? "auto" : "tcg")) |
    al_val_set(v, "transport", al_val_text(transports[l->transport_want])) |
    al_val_set(v, "guestSudo", al_val_bool(l->sudo)) | al_val_set(v, "worktreePath", al_val_text(l->worktree)) |
    al_val_set(v, "image", text_or_null(l->image_want)) | al_val_set(v, "imageKeys", texts_or_null(l->image_keys)) |
    al_val_set(v, "limactlPath", al_val_text(l->driver->lima.limactl)) |
    al_val_set(v, "allowUnknownLima", al_val_bool(l->driver->allow_unknown)) |
    al_val_set(v, "keepManifestDays", al_val_int(l->manifest.keep_days));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

static al_val_t *
versions(const al_lane_t *l) {
  struct utsname u;
  char host[3 * sizeof u.release] = "";
  if (uname(&u) == 0) snprintf(host, sizeof host, "%s %s %s", u.sysname, u.release, u.machine);
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "agentLane", al_val_null()) | al_val_set(v, "lima", al_val_text(l->driver->lima.version)) |
    al_val_set(v, "vmType", al_val_text(l->driver->lima.vm_type)) |
    al_val_set(v, "vm", text_or_null(l->driver->vm_version)) | al_val_set(v, "kernel", al_val_null()) |
    al_val_set(v, "host", al_val_text(host));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

/* Null: nobody has. */
static al_val_t *
signature(const al_image_t *im) {
  if (!im->is_signed) return al_val_null();
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "manifestSha256",
             al_val_text(im->parents ? im->parent[im->parents - 1].manifest_sha256 : im->manifest_sha256)) |
    al_val_set(v, "keyId", text_or_null(im->signer_id)) | al_val_set(v, "key", text_or_null(im->signer_key));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

/* What the disk is made of: every byte is known by the digests of these manifests. */
static al_val_t *
image(const al_image_t *im) {
  al_val_t *parents = al_val_list(), *v = al_val_map();
  int rc = parents ? 0 : -ENOMEM;
  for (size_t i = 0; i < im->parents && !rc; i++) {
    al_val_t *p = al_val_map();
    rc = al_val_set(p, "id", al_val_text(im->parent[i].id)) |
      al_val_set(p, "manifestSha256", al_val_text(im->parent[i].manifest_sha256));
    if (rc) al_val_free(p);
    else rc = al_val_add(parents, p);
  }
  rc |= al_val_set(v, "id", al_val_text(im->id)) | al_val_set(v, "arch", al_val_text(im->arch)) |
    al_val_set(v, "manifestSha256", al_val_text(im->manifest_sha256)) |
    al_val_set(v, "diskSha256", text_or_null(im->disk_sha256)) |
    al_val_set(v, "kernelSha256", text_or_null(im->kernel_sha256)) | al_val_set(v, "untrustedSetup", al_val_bool(im->untrusted_setup)) |
    al_val_set(v, "signature", signature(im)) | al_val_set(v, "parents", parents);
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

/* Names only: what they are set to is nobody's business. */
static al_val_t *
environment(char *const *env, int64_t *more) {
  al_val_t *list = al_val_list();
  int rc = list ? 0 : -ENOMEM;
  *more = 0;
  for (char *const *s = env; *s && !rc; s++) {
    if (list->len == ENV_NAMES_MAX) ++*more;
    else rc = al_val_add(list, al_val_textn(*s, strcspn(*s, "=")));
  }
  if (!rc) return list;
  al_val_free(list);
  return NULL;
}

static int
add_time(al_val_t *list, const char *state, int64_t at_ms) {
  if (!at_ms) return 0;
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "state", al_val_text(state)) | al_val_set(v, "atMs", al_val_int(at_ms));
  if (!rc) return al_val_add(list, v);
  al_val_free(v);
  return rc;
}

static al_val_t *
timeline(const al_lane_t *l) {
  al_val_t *list = al_val_list();
  int rc = list ? add_time(list, "asked", l->manifest.asked_ms) : -ENOMEM;
  for (int i = 0; i <= AL_LANE_READY && !rc; i++) rc = add_time(list, al_lane_state_name(i), l->manifest.at_ms[i]);
  if (!rc) return list;
  al_val_free(list);
  return NULL;
}

static al_val_t *
owner(const al_lane_t *l) {
  const al_ident_t *self = &l->spec.owner;
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "pid", al_val_int(self->pid)) | al_val_set(v, "program", text_or_null(self->exe)) |
    al_val_set(v, "environment", al_val_text(l->spec.owner_env));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

static al_val_t *
used(const al_lane_t *l) {
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "accelerator", al_val_text(l->row.accel)) |
    al_val_set(v, "transport", al_val_text(l->spec.port ? "port" : "shell")) |
    al_val_set(v, "agentUser", al_val_text(l->agent_user)) | al_val_set(v, "sshPort", al_val_int(l->ssh_port));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

al_val_t *
al_manifest_ready_event(const al_lane_t *l) {
  int64_t more = 0;
  al_val_t *v = al_val_map(), *names = environment(l->env, &more);
  int rc = al_val_set(v, "event", al_val_text("ready")); /* before the others */
  rc |= al_val_set(v, "schema", al_val_int(AL_RUN_SCHEMA)) |
    al_val_set(v, "lane", al_val_text(l->spec.name)) | al_val_set(v, "row", al_val_int(l->row.id)) |
    al_val_set(v, "versions", versions(l)) | al_val_set(v, "owner", owner(l)) |
    al_val_set(v, "image", image(&l->spec.image)) | al_val_set(v, "options", options(l)) |
    al_val_set(v, "used", used(l)) | al_val_set(v, "environment", names) |
    al_val_set(v, "moreEnvironment", al_val_int(more)) |
    al_val_set(v, "configurationSha256", text_or_null(l->manifest.config)) | al_val_set(v, "arguments", al_val_null()) |
    al_val_set(v, "enforced", al_val_list()) | al_val_set(v, "timeline", timeline(l));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

/* ---- what files say ---- */

/* Linux writes its version into the header of an x86 kernel; others are known by their digest only. */
static al_val_t *
kernel_version(const char *path) {
  uint8_t head[0x210];
  char text[128], shown[sizeof text];
  AL_AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || pread(fd, head, sizeof head, 0) != (ssize_t) sizeof head || memcmp(head + 0x202, "HdrS", 4))
    return al_val_null();
  off_t at = 0x200 + (off_t) (head[0x20e] | head[0x20f] << 8);
  ssize_t n = pread(fd, text, sizeof text, at);
  if (n <= 0) return al_val_null();
  al_utf8_printable(shown, sizeof shown, text, strnlen(text, (size_t) n), false);
  return text_or_null(shown);
}

static al_val_t *
package_version(const char *package_dir) {
  char path[1100];
  AL_AUTO_FREE char *text = NULL;
  size_t len = 0;
  al_val_t *v = NULL;
  snprintf(path, sizeof path, "%s/package.json", package_dir);
  if (al_plat_read_file(AT_FDCWD, path, PACKAGE_MAX, &text, &len) || al_json_parse(text, len, &v, NULL)) return al_val_null();
  const al_val_t *version = v->kind == AL_MAP ? al_val_get(v, "version") : NULL;
  al_val_t *out = version && version->kind == AL_TEXT ? al_val_text(version->text) : al_val_null();
  al_val_free(v);
  return out;
}

static int
look_at_vm(al_val_t *event, const al_ready_facts_t *f, al_err_t *err) {
  al_val_t *argv = NULL, *settings = NULL, *processes = NULL, *held = NULL;
  int rc = al_lima_settings(f->home, f->row.name, &settings, err);
  if (!rc) rc = al_lima_argv(f->home, f->row.name, &argv, err);
  if (!rc) rc = al_lima_processes(f->home, f->row.name, &processes, err);
  if (!rc) rc = al_enforced(&f->row, argv, settings, processes, &held);
  al_val_free(settings);
  al_val_free(processes);
  if (!rc) rc = al_val_set(event, "arguments", argv ? argv : al_val_null());
  else al_val_free(argv);
  if (!rc) rc = al_val_set(event, "enforced", held);
  else al_val_free(held);
  return rc;
}

int
al_manifest_ready_look(al_val_t *event, const al_ready_facts_t *f, al_err_t *err) {
  al_val_t *v = al_val_at(event, "versions");
  int rc = al_val_set(v, "agentLane", package_version(f->package_dir)) |
    al_val_set(v, "kernel", kernel_version(f->kernel));
  if (!rc) rc = look_at_vm(event, f, err);
  if (rc && !err->code) al_err_set(err, rc, "out of memory for the run manifest");
  return rc;
}

al_val_t *
al_manifest_commands(const al_lane_t *l) {
  al_val_t *v = al_val_map(), *exits = al_val_list();
  int rc = exits ? 0 : -ENOMEM;
  for (size_t i = 0; i < sizeof l->manifest.exits / sizeof *l->manifest.exits && !rc; i++) {
    if (!l->manifest.exits[i]) continue;
    al_val_t *e = al_val_map();
    rc = set_int(e, "code", i) | set_int(e, "count", l->manifest.exits[i]);
    if (rc) al_val_free(e);
    else rc = al_val_add(exits, e);
  }
  rc |= set_int(v, "started", l->manifest.started) | set_int(v, "ended", l->manifest.ended) |
    set_int(v, "interrupted", l->manifest.interrupted) | al_val_set(v, "exits", exits);
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}
