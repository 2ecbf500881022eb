/* SPDX-License-Identifier: Apache-2.0 */
/* The request inspect: everything that is known of one lane, and which of its limits something holds up right now. */
#include "admin.h"
#include "mem.h"
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

static int
enforced(const al_lane_row_t *row, const al_val_t *argv, const al_val_t *settings, const al_val_t *processes,
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

static int
fill(al_admin_t *a, al_val_t **settings, al_val_t **argv, al_val_t **processes) {
  const al_home_t *home = &a->site->home;
  al_look_t look = {.processes = 0};
  al_val_t *held = NULL;
  snprintf(look.name, sizeof look.name, "%s", a->name);
  int rc = al_lima_look(home, &look, 1);
  if (rc && rc != -ENOMEM)
    return al_err_set(&a->err, rc, "the processes of this user could not be listed: %s", strerror(-rc));
  if (!rc) rc = al_lima_settings(home, a->name, settings, &a->err);
  if (!rc) rc = al_lima_argv(home, a->name, argv, &a->err);
  if (!rc) rc = al_lima_processes(home, a->name, processes, &a->err);
  if (rc) return rc;
  rc = enforced(&a->row, *argv, *settings, *processes, &held);
  rc |= al_val_set(a->value, "lane", al_admin_row(&a->row, &look)) | al_val_set(a->value, "enforced", held);
  return rc;
}

static int
inspect(al_job_t *job) {
  al_admin_t *a = job->data;
  al_val_t *settings = NULL, *argv = NULL, *processes = NULL;
  int rc = fill(a, &settings, &argv, &processes);
  rc |= al_val_set(a->value, "processes", processes ? processes : al_val_list()) |
    al_val_set(a->value, "settings", settings ? settings : al_val_null()) |
    al_val_set(a->value, "arguments", argv ? argv : al_val_null());
  if (rc && !a->err.code) al_err_set(&a->err, -ENOMEM, "inspect: out of memory for the answer");
  return a->err.code;
}

static void
inspected(al_job_t *job, int status) {
  al_admin_end(job->data, status);
}

static al_val_t *
change_value(const al_history_t *h) {
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "atMs", al_val_int(h->at_ms)) |
    al_val_set(v, "from", h->from < 0 ? al_val_null() : al_val_text(al_lane_state_name(h->from))) |
    al_val_set(v, "to", al_val_text(al_lane_state_name(h->to))) | al_val_set(v, "reason", al_val_text(h->reason));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

static void
history_read(void *data, int status, const al_err_t *err, const al_history_t *rows, size_t count) {
  al_admin_t *a = data;
  al_val_t *list = al_val_list();
  int rc = list ? 0 : -ENOMEM;
  if (status < 0) a->err = *err;
  for (size_t i = 0; i < count && !rc; i++) rc = al_val_add(list, change_value(&rows[i]));
  a->value = al_val_map();
  rc |= al_val_set(a->value, "history", list);
  if (rc && !a->err.code) al_err_set(&a->err, -ENOMEM, "inspect: out of memory for the answer");
  if (a->err.code) al_admin_end(a, a->err.code);
  else al_worker_post(a->site->store, &a->job, inspect, inspected);
}

static void
found(al_admin_t *a) {
  al_registry_history(&a->site->registry, a->name, history_read, a);
}

void
al_do_inspect(al_engine_t *e, al_request_t *r) {
  al_admin_find(e, r, al_calloc(1, sizeof(al_admin_t)), "inspect", found);
}
