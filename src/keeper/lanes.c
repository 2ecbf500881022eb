/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper's table of lanes: what is kept, what is due, who is ending it, and when it is given up. */
#include "keeper.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static al_keeper_lane_t *
find(al_keeper_t *k, const char *name) {
  for (size_t i = 0; i < k->count; i++) {
    if (k->lanes[i].state != AL_KEEPER_FREE && strcmp(k->lanes[i].name, name) == 0) return &k->lanes[i];
  }
  return NULL;
}

static al_keeper_lane_t *
take_place(al_keeper_t *k) {
  for (size_t i = 0; i < k->count; i++) {
    if (k->lanes[i].state == AL_KEEPER_FREE) return &k->lanes[i];
  }
  return k->count < AL_KEEPER_LANES_MAX ? &k->lanes[k->count++] : NULL;
}

/* The same few for all lanes of an owner. -ENOSPC when there is no room for another. */
static int
take_tools(al_keeper_t *k, const al_keeper_keep_t *r) {
  for (size_t i = 0; i < k->tools_count; i++) {
    const al_keeper_tools_t *t = &k->tools[i];
    if (strcmp(t->limactl, r->limactl) == 0 && strcmp(t->path_env, r->path_env) == 0 &&
      strcmp(t->user_home, r->user_home) == 0)
      return (int) i;
  }
  if (k->tools_count == AL_KEEPER_TOOLS_MAX) return -ENOSPC;
  al_keeper_tools_t *t = &k->tools[k->tools_count];
  memcpy(t->limactl, r->limactl, sizeof t->limactl);
  memcpy(t->path_env, r->path_env, sizeof t->path_env);
  memcpy(t->user_home, r->user_home, sizeof t->user_home);
  return (int) k->tools_count++;
}

int
al_keeper_lanes_keep(al_keeper_t *k, const al_keeper_keep_t *r) {
  int tools = take_tools(k, r);
  if (tools < 0) return tools;
  al_keeper_lane_t *lane = find(k, r->name);
  if (lane != NULL && lane->state != AL_KEEPER_KEPT) return -ECANCELED; /* its end has begun */
  if (lane == NULL) lane = take_place(k);
  if (lane == NULL) return -ENOSPC;
  *lane = (al_keeper_lane_t) {
    .state = AL_KEEPER_KEPT, .tools = (uint8_t) tools, .row = r->row, .expires_boot_ms = r->expires_boot_ms};
  memcpy(lane->name, r->name, sizeof lane->name);
  return 0;
}

void
al_keeper_lanes_drop(al_keeper_t *k, const char *name) {
  al_keeper_lane_t *lane = find(k, name);
  if (lane == NULL) return;
  if (lane->state == AL_KEEPER_ENDING) lane->dropped = true;
  else lane->state = AL_KEEPER_FREE;
}

bool
al_keeper_lanes_busy(const al_keeper_t *k) {
  for (size_t i = 0; i < k->count; i++) {
    uint8_t state = k->lanes[i].state;
    if (state == AL_KEEPER_KEPT || state == AL_KEEPER_DUE || state == AL_KEEPER_ENDING) return true;
  }
  return false;
}

/* True when something was marked. */
static bool
mark_due(al_keeper_t *k) {
  bool any = false;
  uint64_t now = al_plat_boot_ms();
  for (size_t i = 0; i < k->count; i++) {
    al_keeper_lane_t *lane = &k->lanes[i];
    if (lane->state != AL_KEEPER_KEPT) continue;
    bool over = now >= lane->expires_boot_ms + AL_KEEPER_ADVANCE_MS;
    if (!k->orphaned && !over) continue;
    al_keeper_log(k, "%s: %s", lane->name, k->orphaned ? "its owner is gone" : "its lifetime is over");
    lane->state = AL_KEEPER_DUE;
    lane->at_ms = 0;
    any = true;
  }
  return any;
}

/* A try has failed: later again, or never. */
static void
failed(al_keeper_t *k, al_keeper_lane_t *lane) {
  lane->worker = 0;
  lane->state = AL_KEEPER_DUE;
  lane->at_ms = al_plat_mono_ms() + (1000u << lane->tries);
  if (++lane->tries < AL_KEEPER_TRIES_MAX) return;
  lane->state = AL_KEEPER_GIVEN_UP;
  al_keeper_log(k, "%s: given up after %u tries; the next sweep has it", lane->name, (unsigned) lane->tries);
}

static void
start(al_keeper_t *k, al_keeper_lane_t *lane) {
  pid_t pid = al_keeper_end_start(k, lane);
  if (pid < 0) {
    al_keeper_log(k, "%s: no process to end it: %s", lane->name, strerror((int) -pid));
    failed(k, lane);
    return;
  }
  lane->state = AL_KEEPER_ENDING;
  lane->worker = pid;
  lane->at_ms = al_plat_mono_ms();
  k->workers++;
}

int
al_keeper_lanes_turn(al_keeper_t *k) {
  if (mark_due(k)) al_keeper_end_kill(k);
  bool kept = false;
  uint64_t now = al_plat_mono_ms(), boot = al_plat_boot_ms(), wait = AL_KEEPER_LOOK_MS;
  for (size_t i = 0; i < k->count; i++) {
    al_keeper_lane_t *lane = &k->lanes[i];
    if (lane->state == AL_KEEPER_DUE && lane->at_ms <= now && k->workers < AL_KEEPER_WORKERS_MAX) start(k, lane);
    if (lane->state == AL_KEEPER_ENDING && now >= lane->at_ms + AL_KEEPER_WORKER_MS)
      (void) kill(lane->worker, SIGKILL); /* not reaped yet, so the pid is still the worker's */
    uint64_t left = lane->expires_boot_ms + AL_KEEPER_ADVANCE_MS - boot;
    if (lane->state == AL_KEEPER_KEPT && left < wait) wait = left;
    kept |= lane->state == AL_KEEPER_KEPT || lane->state == AL_KEEPER_DUE || lane->state == AL_KEEPER_ENDING;
  }
  return kept ? (int) wait : -1;
}

static void
ended(al_keeper_t *k, al_keeper_lane_t *lane, int status) {
  k->workers--;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    al_keeper_log(k, "%s: ended and proven gone", lane->name);
    lane->state = lane->dropped || k->orphaned ? AL_KEEPER_FREE : AL_KEEPER_GONE;
    return;
  }
  if (WIFSIGNALED(status)) al_keeper_log(k, "%s: its worker was killed by signal %d", lane->name, WTERMSIG(status));
  if (lane->dropped) lane->state = AL_KEEPER_FREE; /* the owner has proven the end itself */
  else failed(k, lane);
}

void
al_keeper_lanes_reap(al_keeper_t *k) {
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    for (size_t i = 0; i < k->count; i++) {
      if (k->lanes[i].state == AL_KEEPER_ENDING && k->lanes[i].worker == pid) ended(k, &k->lanes[i], status);
    }
  }
}
