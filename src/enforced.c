/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a lane's limits something holds up, and what: for inspect, and for the run manifest. */
#include "enforced.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Theory of operation. What is asked for stands in the row and in lima.yaml; what is enforced is read off what runs: the
 * arguments that QEMU was started with, which the warden wrote down, and the processes that are there now. Where nothing
 * can be read (vz has no warden, a lane that is only being built has no QEMU) the answer is "unknown", never a guess. */

typedef struct facts_s {
  const al_lane_row_t *row;
  const al_val_t *argv, *settings, *processes; /* the first two may be NULL */
  al_val_t *out;
  int rc;
} facts_t;

static const char *
text_at(const al_val_t *list, size_t i) {
  return list && i < list->len && list->items[i]->kind == AL_TEXT ? list->items[i]->text : "";
}

/* What follows `option` among QEMU's arguments; NULL when it is not there. */
static const char *
argument(const facts_t *f, const char *option) {
  for (size_t i = 0; f->argv && i + 1 < f->argv->len; i++)
    if (strcmp(text_at(f->argv, i), option) == 0) return text_at(f->argv, i + 1);
  return NULL;
}

static const al_val_t *
process(const facts_t *f, const char *kind) {
  for (size_t i = 0; i < f->processes->len; i++) {
    const al_val_t *v = al_val_get(f->processes->items[i], "kind");
    if (v && strcmp(v->text, kind) == 0) return f->processes->items[i];
  }
  return NULL;
}

typedef enum { NO, YES, UNKNOWN } held_t;

static void __attribute__((format(printf, 4, 5)))
say(facts_t *f, const char *what, held_t held, const char *fmt, ...) {
  char by[400];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(by, sizeof by, fmt, ap);
  va_end(ap);
  al_val_t *v = al_val_map();
  f->rc |= al_val_set(v, "what", al_val_text(what)) |
    al_val_set(v, "enforced", held == UNKNOWN ? al_val_null() : al_val_bool(held == YES)) |
    al_val_set(v, "by", al_val_text(by));
  f->rc |= al_val_add(f->out, v);
}

static void
say_network(facts_t *f) {
  const char *netdev = argument(f, "-netdev");
  if (strcmp(f->row->network, "none")) {
    say(f, "network", NO, "network: \"open\" was asked for: the guest reaches the network and the host's loopback");
  } else if (!netdev) {
    say(f, "network", UNKNOWN, "the warden has not written QEMU's arguments down");
  } else {
    bool shut = strstr(netdev, "restrict=on") && strstr(netdev, "ipv6=off");
    say(f, "network", shut ? YES : NO, "QEMU runs with -netdev %.300s", netdev);
  }
}

static void
say_files(facts_t *f) {
  static const char *const shares[] = {"-virtfs", "-fsdev"};
  const al_val_t *mounts = f->settings ? al_val_get(f->settings, "mounts") : NULL;
  for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
    const char *share = argument(f, shares[i]);
    if (!share) continue;
    say(f, "host files", NO, "QEMU runs with %s %.300s", shares[i], share);
    return;
  }
  if (!mounts) say(f, "host files", UNKNOWN, "there is no lima.yaml to read");
  else if (strcmp(mounts->text, "[]")) say(f, "host files", NO, "Lima mounts %.300s", mounts->text);
  else say(f, "host files", YES, "no mount in Lima's configuration%s", f->argv ? ", no shared directory in QEMU's" : "");
}

static void
say_size(facts_t *f, const char *what, const char *option, int64_t want) {
  const char *value = argument(f, option);
  long long got = 0;
  if (!value) say(f, what, UNKNOWN, "the warden has not written QEMU's arguments down");
  else say(f, what, sscanf(value, "%lld", &got) == 1 && got == want ? YES : NO, "QEMU runs with %s %.200s", option, value);
}

static void
say_sandbox(facts_t *f) {
  const char *sandbox = argument(f, "-sandbox");
  if (sandbox) say(f, "QEMU's system calls", strncmp(sandbox, "on", 2) ? NO : YES, "seccomp: -sandbox %.300s", sandbox);
  else say(f, "QEMU's system calls", f->argv ? NO : UNKNOWN, "no -sandbox was written down");
}

static void
say_end(facts_t *f) {
  const al_val_t *warden = process(f, "warden"), *v = warden ? al_val_get(warden, "pid") : NULL;
  int alive = al_plat_ident_alive(&f->row->owner);
  if (v) say(f, "end with its owner", YES, "the warden (process %lld) kills QEMU", (long long) v->i);
  else say(f, "end with its owner", process(f, "qemu") ? NO : UNKNOWN, "no warden runs for this lane");
  if (v) say(f, "console log", YES, "the warden keeps the last 1 MiB at most of each");
  else say(f, "console log", UNKNOWN, "no warden runs for this lane");
  if (f->row->keeper.pid && al_plat_ident_alive(&f->row->keeper) == 1)
    say(f, "lifetime", YES, "its keeper (process %d) ends it, also without its owner", (int) f->row->keeper.pid);
  else if (alive == 1)
    say(f, "lifetime", YES, "its owner (process %d) ends it; no keeper would go on without", (int) f->row->owner.pid);
  else say(f, "lifetime", NO, "neither its owner nor a keeper lives: the next sweep ends it");
}

int
al_enforced(const al_lane_row_t *row, const al_val_t *argv, const al_val_t *settings, const al_val_t *processes,
  al_val_t **out) {
  facts_t f = {.row = row, .argv = argv, .settings = settings, .processes = processes, .out = al_val_list()};
  if (!f.out) return -ENOMEM;
  say_network(&f);
  say_files(&f);
  say_size(&f, "memory", "-m", row->memory_mib);
  say_size(&f, "cpus", "-smp", row->cpus);
  say_sandbox(&f);
  say_end(&f);
  *out = f.out;
  return f.rc;
}
