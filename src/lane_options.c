/* SPDX-License-Identifier: Apache-2.0 */
/* What create is asked for: reads and checks the options of its params into the lane. */
#include "lane_life.h"
#include "mem.h"
#include "run_log.h"
#include "xfer.h"
#include <stdio.h>
#include <string.h>

static bool
env_name_valid(const char *s) {
  if (!(*s == '_' || (*s >= 'A' && *s <= 'Z') || (*s >= 'a' && *s <= 'z'))) return false;
  for (; *s; s++)
    if (!(*s == '_' || (*s >= 'A' && *s <= 'Z') || (*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9'))) return false;
  return true;
}

char **
al_env_list(const al_val_t *map, al_err_t *err) {
  size_t n = map && map->kind == AL_MAP ? map->len : 0;
  char **list = al_calloc(n + 2, sizeof *list);
  if (!list) {
    al_err_set(err, -ENOMEM, "out of memory");
    return NULL;
  }
  for (size_t i = 0; i < n; i++) {
    const al_val_t *v = map->items[i];
    const char *name = map->keys[i];
    if (!env_name_valid(name) || v->kind != AL_TEXT || strlen(v->text) != v->len) {
      al_err_set(err, AL_EBAD_OPTION,
        "env: \"%s\" must be a name of letters, digits and _ with a text value without NUL", name);
    } else if (!(list[i] = al_asprintf("%s=%s", name, v->text))) {
      al_err_set(err, -ENOMEM, "out of memory");
    }
    if (list[i]) continue;
    al_env_free(list);
    return NULL;
  }
  return list;
}

void
al_env_free(char **list) {
  for (char **s = list; s && *s; s++) al_free(*s);
  al_free(list);
}

static int
read_enum(const al_val_t *p, const char *key, const char *a, const char *b, bool *second, al_err_t *err) {
  const char *text;
  int rc = al_val_get_text(p, key, a, &text, err);
  if (rc) return rc;
  *second = strcmp(text, b) == 0;
  if (!*second && strcmp(text, a)) return al_err_set(err, AL_EBAD_OPTION, "%s must be \"%s\" or \"%s\"", key, a, b);
  return 0;
}

static int
read_transport(al_lane_t *lane, const al_val_t *p, al_err_t *err) {
  static const char *const names[] = { "auto", "shell", "port" };
  const char *text;
  int rc = al_val_get_text(p, "transport", names[AL_TRANSPORT_AUTO], &text, err);
  if (rc) return rc;
  for (int i = AL_TRANSPORT_AUTO; i <= AL_TRANSPORT_PORT; i++) {
    lane->transport_want = (al_transport_want_t) i;
    if (strcmp(text, names[i]) == 0) return 0;
  }
  return al_err_set(err, AL_EBAD_OPTION, "transport must be \"auto\" or \"shell\" or \"port\"");
}

static int
read_numbers(al_lane_t *lane, const al_val_t *p, al_err_t *err) {
  int64_t cpus, disk, minutes, start, sync, queue, vms, out, total, buffered, days;
  double memory;
  int rc;
  if (
    (rc = al_val_get_int(p, "cpus", 4, 1, 64, &cpus, err))
    || (rc = al_val_get_double(p, "memoryGiB", 8, 1, 256, &memory, err))
    || (rc = al_val_get_int(p, "diskGiB", 30, 1, 2048, &disk, err))
    || (rc = al_val_get_int(p, "timeoutMinutes", 60, 1, 1440, &minutes, err))
    || (rc = al_val_get_int(p, "startTimeoutSeconds", 110, 5, 600, &start, err))
    || (rc = al_val_get_int(p, "syncInTimeoutSeconds", 0, 0, 3600, &sync, err))
    || (rc = al_val_get_int(p, "queueTimeoutSeconds", 0, 0, 86400, &queue, err))
    || (rc = al_val_get_int(p, "maxConcurrentVms", 2, 1, 32, &vms, err))
    || (rc = al_val_get_int(p, "maxCopyOutBytes", AL_COPY_OUT_MAX, 1, AL_COPY_OUT_MOST, &out, err))
    || (rc = al_val_get_int(p, "maxCopyOutTotalBytes", AL_COPY_OUT_TOTAL, 1, AL_COPY_OUT_MOST, &total, err))
    || (rc = al_val_get_int(p, "maxBufferedBytes", AL_BUFFERED_MAX, AL_BUFFERED_LEAST, AL_BUFFERED_MOST, &buffered,
      err))
    || (rc = al_val_get_int(p, "keepManifestDays", AL_RUN_DAYS, 0, AL_RUN_DAYS_MOST, &days, err))
  )
    return rc;
  lane->manifest.keep_days = (int) days;
  lane->spec.cpus = (int) cpus;
  lane->spec.memory_mib = (int64_t) (memory * 1024);
  lane->spec.disk_gib = disk;
  lane->timeout_minutes = (int) minutes;
  lane->start_timeout_s = (int) start;
  lane->sync_in_s = (int) sync;
  lane->queue_timeout_s = (int) queue;
  lane->max_vms = (int) vms;
  lane->max_copy_out = (uint64_t) out;
  lane->copy_out_left = (uint64_t) total;
  lane->budget.max = (uint64_t) buffered;
  return 0;
}

/* What the lane may take of the host. Without a number there is no bound: what is wise is the caller's to say. */
static int
read_guard(al_lane_t *lane, const al_val_t *p, al_err_t *err) {
  double growth, keep;
  int64_t logs;
  bool only_told;
  int rc;
  if (
    (rc = al_val_get_double(p, "maxDiskGrowthGiB", 0, 0.001, 4096, &growth, err))
    || (rc = al_val_get_double(p, "minHostFreeGiB", 0, 0, 65536, &keep, err))
    || (rc = al_val_get_int(p, "maxHostLogMiB", 0, 1, 65536, &logs, err))
    || (rc = read_enum(p, "onLowSpace", "close", "event", &only_told, err))
  )
    return rc;
  lane->max_growth = (uint64_t) (growth * (double) (1ull << 30));
  lane->min_free = (uint64_t) (keep * (double) (1ull << 30));
  lane->max_host_log = (uint64_t) logs << 20;
  lane->low_close = !only_told;
  return 0;
}

static int
copy_keys(al_lane_t *lane, const al_val_t *keys, al_err_t *err) {
  if (keys->kind != AL_LIST) return al_err_set(err, AL_EBAD_OPTION, "imageKeys must be a list");
  lane->image_keys = al_val_list();
  int rc = lane->image_keys ? 0 : -ENOMEM;
  for (size_t i = 0; i < keys->len && !rc; i++) {
    if (keys->items[i]->kind != AL_TEXT) return al_err_set(err, AL_EBAD_OPTION, "imageKeys must be texts");
    rc = al_val_add(lane->image_keys, al_val_text(keys->items[i]->text));
  }
  return rc ? al_err_set(err, rc, "Out of memory.") : 0;
}

/* Who asks for signatures must have checked some: the option without its result would let any image pass. */
static int
read_trust(al_lane_t *lane, const al_val_t *p, al_err_t *err) {
  const al_val_t *digests = al_val_get(p, "imageDigests"), *keys = al_val_get(p, "imageKeys");
  if (keys && !digests)
    return al_err_set(err, AL_EBAD_OPTION, "imageKeys without imageDigests: no signature has been checked");
  int rc = keys ? copy_keys(lane, keys, err) : 0;
  return rc ? rc : al_image_trust_read(digests, &lane->image_trust, err);
}

int
al_lane_read_options(al_lane_t *lane, const al_val_t *p, al_err_t *err) {
  const char *image, *worktree;
  bool none, tcg;
  int rc;
  if (
    (rc = read_numbers(lane, p, err)) || (rc = read_guard(lane, p, err)) || (rc = al_val_get_bool(p, "guestSudo", true, &lane->sudo, err))
    || (rc = read_enum(p, "network", "open", "none", &none, err))
    || (rc = read_enum(p, "accelerator", "auto", "tcg", &tcg, err))
    || (rc = read_transport(lane, p, err))
    || (rc = al_val_get_text(p, "image", NULL, &image, err))
    || (rc = al_val_get_text(p, "worktreePath", "/home/agent/workspace", &worktree, err))
    || (rc = al_guest_path_check(worktree, strlen(worktree), err))
  )
    return rc;
  if ((rc = read_trust(lane, p, err))) return rc;
  if (strlen(worktree) >= sizeof lane->worktree) return al_err_set(err, AL_EBAD_OPTION, "worktreePath is too long");
  if (image && strlen(image) >= sizeof lane->image_want) return al_err_set(err, AL_EBAD_OPTION, "image is too long");
  snprintf(lane->worktree, sizeof lane->worktree, "%s", worktree);
  snprintf(lane->image_want, sizeof lane->image_want, "%s", image ? image : "");
  lane->spec.network = none ? AL_NETWORK_NONE : AL_NETWORK_OPEN;
  lane->accel_auto = !tcg;
  lane->env = al_env_list(al_val_get(p, "env"), err);
  return lane->env ? 0 : err->code;
}
