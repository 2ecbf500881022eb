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

int
al__enforced_say(al_val_t *list, al_promise_t what, al_held_t held, const char *fmt, ...) {
  static const char *const names[] = {
#define NAME(name, text) text,
    AL_PROMISE_MAP(NAME)
#undef NAME
  };
  char by[400];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(by, sizeof by, fmt, ap);
  va_end(ap);
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "what", al_val_text(names[what])) |
    al_val_set(v, "enforced", held == AL_HELD_UNKNOWN ? al_val_null() : al_val_bool(held == AL_HELD_YES)) |
    al_val_set(v, "by", al_val_text(by));
  return rc | al_val_add(list, v);
}

int
al__enforced_always(al_val_t *list) {
  return al__enforced_say(list, AL_PROMISE_COPIES, AL_HELD_YES, "no link is followed on either side, nothing goes into .git, "
    "each copy and all together have a bound in bytes") |
    al__enforced_say(list, AL_PROMISE_DOMAINS, AL_HELD_NO, "there is no list of allowed domains yet: network is all or nothing") |
    al__enforced_say(list, AL_PROMISE_CREDENTIALS, AL_HELD_NO, "what is given to a lane as a variable or a file can be read by "
      "everything in it") |
    al__enforced_say(list, AL_PROMISE_GIT, AL_HELD_NO, "Sandcastle runs git am and git bundle --all on the host, outside every VM: "
      "`agent-lane doctor` in the repository says whether that is a danger there");
}

#define NO AL_HELD_NO
#define YES AL_HELD_YES
#define UNKNOWN AL_HELD_UNKNOWN
#define say(f, ...) ((f)->rc |= al__enforced_say((f)->out, __VA_ARGS__))

static void
say_network(facts_t *f) {
  const char *netdev = argument(f, "-netdev");
  if (strcmp(f->row->network, "none")) {
    say(f, AL_PROMISE_NETWORK, NO, "network: \"open\" was asked for: the guest reaches what this machine reaches: services on "
      "its loopback (also a Docker that listens on TCP), the local network, the internet");
  } else if (!netdev) {
    say(f, AL_PROMISE_NETWORK, UNKNOWN, "the warden has not written QEMU's arguments down");
  } else {
    bool shut = strstr(netdev, "restrict=on") && strstr(netdev, "ipv6=off");
    say(f, AL_PROMISE_NETWORK, shut ? YES : NO, "QEMU runs with -netdev %.300s", netdev);
  }
}

static void
say_files(facts_t *f) {
  static const char *const shares[] = {"-virtfs", "-fsdev"};
  const al_val_t *mounts = f->settings ? al_val_get(f->settings, "mounts") : NULL;
  for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
    const char *share = argument(f, shares[i]);
    if (!share) continue;
    say(f, AL_PROMISE_FILES, NO, "QEMU runs with %s %.300s", shares[i], share);
    return;
  }
  if (!mounts) say(f, AL_PROMISE_FILES, UNKNOWN, "there is no lima.yaml to read");
  else if (strcmp(mounts->text, "[]")) say(f, AL_PROMISE_FILES, NO, "Lima mounts %.300s", mounts->text);
  else say(f, AL_PROMISE_FILES, YES, "no mount in Lima's configuration%s", f->argv ? ", no shared directory in QEMU's" : "");
}

static void
say_sockets(facts_t *f) {
  static const char *const wanted[] = {"forwardAgent: false", "forwardX11: false", "loadDotSSHPubKeys: false"};
  const al_val_t *ssh = f->settings ? al_val_get(f->settings, "ssh") : NULL;
  bool off = ssh != NULL;
  for (size_t i = 0; off && i < sizeof wanted / sizeof *wanted; i++) off = strstr(ssh->text, wanted[i]) != NULL;
  if (!f->settings) say(f, AL_PROMISE_SOCKETS, UNKNOWN, "there is no lima.yaml to read");
  else if (!off) say(f, AL_PROMISE_SOCKETS, NO, "Lima's configuration forwards something of ssh's, or takes the user's keys");
  else say(f, AL_PROMISE_SOCKETS, YES, "Lima forwards no agent and takes no key of ~/.ssh; nothing of the environment is handed on");
}

static void
say_size(facts_t *f, al_promise_t what, const char *option, int64_t want) {
  const char *value = argument(f, option);
  long long got = 0;
  if (!value) say(f, what, UNKNOWN, "the warden has not written QEMU's arguments down");
  else say(f, what, sscanf(value, "%lld", &got) == 1 && got == want ? YES : NO, "QEMU runs with %s %.200s", option, value);
}

static void
say_sandbox(facts_t *f) {
  const char *sandbox = argument(f, "-sandbox");
  if (sandbox) say(f, AL_PROMISE_SYSCALLS, strncmp(sandbox, "on", 2) ? NO : YES, "seccomp: -sandbox %.300s", sandbox);
  else say(f, AL_PROMISE_SYSCALLS, f->argv ? NO : UNKNOWN, "no -sandbox was written down");
}

static void
say_end(facts_t *f) {
  const al_val_t *warden = process(f, "warden"), *v = warden ? al_val_get(warden, "pid") : NULL;
  int alive = al_plat_ident_alive(&f->row->owner);
  if (v) say(f, AL_PROMISE_END, YES, "the warden (process %lld) kills QEMU", (long long) v->i);
  else say(f, AL_PROMISE_END, process(f, "qemu") ? NO : UNKNOWN, "no warden runs for this lane");
  if (v) say(f, AL_PROMISE_CONSOLE, YES, "the warden keeps the last 1 MiB at most of each");
  else say(f, AL_PROMISE_CONSOLE, UNKNOWN, "no warden runs for this lane");
  if (f->row->keeper.pid && al_plat_ident_alive(&f->row->keeper) == 1)
    say(f, AL_PROMISE_LIFETIME, YES, "its keeper (process %d) ends it, also without its owner", (int) f->row->keeper.pid);
  else if (alive == 1)
    say(f, AL_PROMISE_LIFETIME, YES, "its owner (process %d) ends it; no keeper would go on without", (int) f->row->owner.pid);
  else say(f, AL_PROMISE_LIFETIME, NO, "neither its owner nor a keeper lives: the next sweep ends it");
}

int
al_enforced(const al_lane_row_t *row, const al_val_t *argv, const al_val_t *settings, const al_val_t *processes,
  al_val_t **out) {
  facts_t f = {.row = row, .argv = argv, .settings = settings, .processes = processes, .out = al_val_list()};
  if (!f.out) return -ENOMEM;
  say_network(&f);
  say_files(&f);
  say_sockets(&f);
  say_size(&f, AL_PROMISE_MEMORY, "-m", row->memory_mib);
  say_size(&f, AL_PROMISE_CPUS, "-smp", row->cpus);
  say_sandbox(&f);
  say_end(&f);
  f.rc |= al__enforced_always(f.out);
  *out = f.out;
  return f.rc;
}
