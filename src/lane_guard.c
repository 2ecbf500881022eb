/* SPDX-License-Identifier: Apache-2.0 */
/* Looks after the open lanes of a home: growth of their files, space on the host, and ends that others have asked for. */
#include "lane_guard.h"
#include "lane_manifest.h"
#include "lima_look.h"
#include "mem.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

/* Theory of operation. One timer per home, while it has lanes. Every second the registry is asked which of them are
 * closing or closed there although we have not ended them: another process has (`agent-lane close`), and their owner, we,
 * ends them in order, with its reason. Every fifth second a worker measures each lane's directory and the free space.
 *   - A lane whose files have grown by more than maxDiskGrowthGiB is closed (RESOURCE_LIMIT).
 *   - Logs of Lima's host agent beyond maxHostLogMiB are emptied: it goes on writing where it was, so the rest is a hole.
 *     While the lane boots they are followed by limactl and by us, who would stumble over that hole, so it fails instead.
 *   - Below minHostFreeGiB each lane says so once. When the next look finds it so still, of the lanes whose onLowSpace is
 *     "close" the one whose directory takes most is closed; the others wait for the look after that. Processes share a disk:
 *     as long as somebody else's lane takes more, its owner is given the time of two more looks to close that. */

#define TICK_MS 1000
#define LOOK_TICKS 5
#define OTHERS_LOOKS 4                 /* of low space, before we close ours although another's takes more */
#define WORTH_CLOSING (16ull << 20)    /* bytes; less than that is not what fills the disk */
#define GIB(n) ((double) (n) / (double) (1ull << 30))

typedef struct seen_s {
  char name[AL_NAME_LEN + 1];
  bool may_cut, cut;
  uint64_t max_logs;
  al_lane_disk_t disk;
} seen_t;

struct al_guard_s {
  al_site_t *site;
  uv_timer_t timer;
  bool closing, watching, looking;
  unsigned ticks, low_looks;
  void (*closed)(void *data);
  void *closed_data;
  /* of a look, worker thread while `looking` */
  al_job_t job;
  seen_t *seen;
  size_t count;
  uint64_t keep;    /* the most that one of them wants to be kept free */
  uint64_t free;    /* UINT64_MAX: it cannot be told */
  uint64_t others;  /* the largest directory of a lane that is not ours, when space is low */
};

static bool
is_open(const al_guard_t *g, const al_lane_t *lane) {
  return lane->site == g->site && !lane->attached && !lane->finished && lane->state >= AL_LANE_REGISTERED &&
    lane->state <= AL_LANE_READY;
}

static size_t
count_open(const al_guard_t *g) {
  size_t n = 0;
  for (const al_lane_t *l = g->site->engine->lanes; l; l = l->next) n += is_open(g, l) ? 1u : 0u;
  return n;
}

static void
warn(al_lane_t *lane, const char *option, const char *text) {
  al_val_t *v = al_val_map();
  if (al_val_set(v, "option", al_val_text(option))) al_val_free(v);
  else al_lane_emit_with(lane, "warning", text, v);
}

static void
end_lane(al_lane_t *lane, const al_err_t *why) {
  al_lane_event(lane, AL_LANE_ON_FAIL, why, why->msg);
}

/* ---- what others have ended ---- */

static void
watched(void *data, int status, const al_err_t *err, const al_lane_row_t *rows, size_t count) {
  al_guard_t *g = data;
  (void) err; /* a registry that cannot be read now is read in a second */
  g->watching = false;
  for (size_t i = 0; status == 0 && i < count; i++) {
    for (al_lane_t *l = g->site->engine->lanes, *next; l; l = next) {
      al_err_t why = { 0 };
      next = l->next;
      if (!is_open(g, l) || l->row.id != rows[i].id) continue;
      al_err_set(&why, AL_ELANE_CLOSED, "another process has ended the lane: %.200s", rows[i].reason);
      al_lane_event(l, AL_LANE_ON_CLOSE, &why, rows[i].reason);
    }
  }
}

static void
watch(al_guard_t *g) {
  size_t n = count_open(g), at = 0;
  int64_t *ids = n && !g->watching ? al_calloc(n, sizeof *ids) : NULL;
  if (!ids) return;
  for (const al_lane_t *l = g->site->engine->lanes; l; l = l->next)
    if (is_open(g, l)) ids[at++] = l->row.id;
  g->watching = true;
  al_registry_watch(&g->site->registry, ids, n, watched, g);
  al_free(ids);
}

/* ---- what they take ---- */

static uint64_t
free_bytes(const al_home_t *home) {
  struct statvfs v;
  if (statvfs(home->lima, &v) != 0) return UINT64_MAX;
  return (uint64_t) v.f_bavail * (v.f_frsize ? v.f_frsize : v.f_bsize);
}

int
al_guard_room(const al_home_t *home, uint64_t keep, al_err_t *err) {
  uint64_t room = keep ? free_bytes(home) : UINT64_MAX;
  if (room >= keep) return 0;
  al_err_set(err, AL_EHOST_DISK_FULL, "%.2f GiB are free in %s, and minHostFreeGiB keeps %.2f GiB of them free",
    GIB(room), home->root, GIB(keep));
  al_err_cure(err, "Free space there, close lanes that are no longer needed (`agent-lane ls`), or lower minHostFreeGiB.");
  return AL_EHOST_DISK_FULL;
}

static bool
is_seen(const al_guard_t *g, const char *name) {
  for (size_t i = 0; i < g->count; i++)
    if (strcmp(g->seen[i].name, name) == 0) return true;
  return false;
}

static uint64_t
largest_other(const al_guard_t *g) {
  uint64_t most = 0;
  DIR *dir = opendir(g->site->home.lima);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    al_lane_disk_t disk;
    if (!al_name_valid(e->d_name) || is_seen(g, e->d_name)) continue;
    if (al_lima_disk(&g->site->home, e->d_name, &disk) == 0 && disk.all > most) most = disk.all;
  }
  if (dir) closedir(dir);
  return most;
}

static int
measure(al_job_t *job) {
  al_guard_t *g = job->data;
  const al_home_t *home = &g->site->home;
  for (size_t i = 0; i < g->count; i++) {
    seen_t *s = &g->seen[i];
    if (al_lima_disk(home, s->name, &s->disk) != 0) s->disk = (al_lane_disk_t) {0};
    if (s->may_cut && s->disk.logs > s->max_logs) s->cut = al_lima_cut_logs(home, s->name) == 0;
  }
  g->free = free_bytes(home);
  g->others = g->free < g->keep ? largest_other(g) : 0;
  return 0;
}

static void
judge_growth(al_lane_t *lane, const al_lane_disk_t *disk) {
  al_err_t why = { 0 };
  if (!disk->there) return;
  if (!lane->disk_seen) lane->disk_base = disk->all;
  lane->disk_seen = true;
  lane->disk_now = disk->all;
  if (!lane->max_growth || disk->all <= lane->disk_base || disk->all - lane->disk_base <= lane->max_growth) return;
  al_err_set(&why, AL_ERESOURCE_LIMIT, "the lane's files have grown by %.2f GiB on the host; maxDiskGrowthGiB is %.2f",
    GIB(disk->all - lane->disk_base), GIB(lane->max_growth));
  end_lane(lane, &why);
}

static void
judge_logs(al_lane_t *lane, const seen_t *s) {
  al_err_t why = { 0 };
  unsigned long long max = lane->max_host_log >> 20;
  if (!lane->max_host_log || s->disk.logs <= lane->max_host_log || !is_open(lane->site->guard, lane)) return;
  if (s->cut) {
    char text[160];
    snprintf(text, sizeof text, "the logs of Lima's host agent passed maxHostLogMiB (%llu) and were emptied", max);
    if (!lane->logs_told) warn(lane, "maxHostLogMiB", text);
    lane->logs_told = true;
  } else if (s->may_cut || lane->state < AL_LANE_READY) {
    al_err_set(&why, AL_ERESOURCE_LIMIT,
      "the logs of Lima's host agent passed maxHostLogMiB (%llu) and could not be emptied%s", max,
      s->may_cut ? "" : " while the lane was starting");
    end_lane(lane, &why);
  }
}

static void
tell_low(al_guard_t *g, al_lane_t *lane) {
  char text[240];
  bool low = g->free < lane->min_free;
  if (low && !lane->low_told) {
    snprintf(text, sizeof text, "%.2f GiB are free in the home, less than minHostFreeGiB (%.2f)%s", GIB(g->free),
      GIB(lane->min_free), lane->low_close ? "; the lane that takes most is closed if that stays so" : "");
    warn(lane, "minHostFreeGiB", text);
  }
  lane->low_told = low;
}

/* The one to close, or NULL. */
static al_lane_t *
offender(const al_guard_t *g) {
  al_lane_t *most = NULL;
  for (al_lane_t *l = g->site->engine->lanes; l; l = l->next) {
    if (!is_open(g, l) || !l->low_close || g->free >= l->min_free || l->disk_now < WORTH_CLOSING) continue;
    if (!most || l->disk_now > most->disk_now) most = l;
  }
  return most && (g->others <= most->disk_now || g->low_looks >= OTHERS_LOOKS) ? most : NULL;
}

static void
judge_space(al_guard_t *g) {
  al_err_t why = { 0 };
  g->low_looks = g->free < g->keep ? g->low_looks + 1 : 0;
  for (al_lane_t *l = g->site->engine->lanes; l; l = l->next)
    if (is_open(g, l)) tell_low(g, l);
  al_lane_t *most = g->low_looks > 1 ? offender(g) : NULL;
  if (!most) return;
  al_err_set(&why, AL_ERESOURCE_LIMIT,
    "%.2f GiB are free on the host, less than minHostFreeGiB (%.2f), and this lane takes most of it: %.2f GiB",
    GIB(g->free), GIB(most->min_free), GIB(most->disk_now));
  end_lane(most, &why);
  g->low_looks = 1; /* the others have until the look after the next, when this one's space is free */
}

static void
measured(al_job_t *job, int status) {
  al_guard_t *g = job->data;
  g->looking = false;
  for (size_t i = 0; status == 0 && i < g->count && !g->closing; i++) {
    al_lane_t *lane = al_lane_find(g->site->engine, g->seen[i].name);
    if (!lane || !is_open(g, lane)) continue;
    judge_growth(lane, &g->seen[i].disk);
    judge_logs(lane, &g->seen[i]);
  }
  if (status == 0 && !g->closing) judge_space(g);
  al_free(g->seen);
  g->seen = NULL;
}

static void
look(al_guard_t *g) {
  size_t n = count_open(g), at = 0;
  if (g->looking || !n || !(g->seen = al_calloc(n, sizeof *g->seen))) return;
  g->keep = 0;
  for (const al_lane_t *l = g->site->engine->lanes; l; l = l->next) {
    if (!is_open(g, l)) continue;
    seen_t *s = &g->seen[at++];
    memcpy(s->name, l->spec.name, sizeof s->name);
    s->max_logs = l->max_host_log;
    s->may_cut = l->max_host_log && l->state == AL_LANE_READY;
    if (l->min_free > g->keep) g->keep = l->min_free;
  }
  g->count = n;
  g->looking = true;
  g->job.data = g;
  al_worker_post(g->site->store, &g->job, measure, measured);
}

/* ---- the timer ---- */

static void
on_tick(uv_timer_t *t) {
  al_guard_t *g = t->data;
  if (!count_open(g)) {
    uv_timer_stop(t); /* the next lane starts it again */
    return;
  }
  watch(g);
  for (al_lane_t *l = g->site->engine->lanes; l; l = l->next)
    if (is_open(g, l)) al_manifest_count(l);
  if (++g->ticks % LOOK_TICKS == 0) look(g);
}

void
al_guard_add(al_lane_t *lane) {
  al_site_t *site = lane->site;
  if (!site->guard) {
    al_guard_t *g = al_calloc(1, sizeof *g);
    if (!g) return; /* the next lane tries again; what it looks after is bounded by others, too */
    g->site = site;
    uv_timer_init(&site->engine->loop, &g->timer);
    g->timer.data = g;
    site->guard = g;
  }
  if (uv_is_active((uv_handle_t *) &site->guard->timer)) return;
  site->guard->ticks = site->guard->low_looks = 0;
  uv_timer_start(&site->guard->timer, on_tick, TICK_MS, TICK_MS);
}

static void
on_closed(uv_handle_t *h) {
  al_guard_t *g = h->data;
  void (*cb)(void *) = g->closed;
  void *data = g->closed_data;
  cb(data);
}

/* Its memory goes with the site, when worker and registry have ended, too: both may still have a job of ours. */
void
al_guard_close(al_site_t *site, void (*cb)(void *data), void *data) {
  al_guard_t *g = site->guard;
  if (!g) {
    cb(data);
    return;
  }
  g->closing = true;
  g->closed = cb;
  g->closed_data = data;
  uv_close((uv_handle_t *) &g->timer, on_closed);
}
