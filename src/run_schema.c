/* SPDX-License-Identifier: Apache-2.0 */
/* Run manifests: which members each event has, and of what kind. */
#include "run_int.h"

#include "mem.h"
#include <stdio.h>
#include <string.h>

/* The same as docs/run-manifest.schema.json, in a form that can be walked along a value: t text, i a whole number from
 * 0, b true or false, h a SHA-256, n a lane's name, 'a|b' one of these texts, [x] a list of x, {key:x key:x} a map of
 * exactly these; 0 behind a kind: or null; + behind a key: from schema 2 on, before it was not there. A test holds the two
 * against each other. */
#define COMMANDS "{started:i ended:i interrupted:i exits:[{code:i count:i}]}"
#define FILES "[{path:t bytes:i sha256:h}]"
#define TIMELINE "[{state:t atMs:i}]"
#define FRAME(event, rest) "{n:i prev:h atMs:i event:'" event "' " rest " sha256:h}"

static const struct {
  const char *event, *schema;
} events[] = {
  {"ready",
    FRAME("ready",
      "schema:i lane:n row:i versions:{agentLane:t0 lima:t vmType:t vm:t0 kernel:t0 host:t}"
      " owner:{pid:i program:t0 environment:t}"
      " image:{id:t arch:t manifestSha256:h diskSha256:h0 kernelSha256:h0 untrustedSetup:b"
      " signature+:{manifestSha256:h keyId:t0 key:t0}0 parents:[{id:t manifestSha256:h}]}"
      " options:{cpus:i memoryMiB:i diskGiB:i timeoutMinutes:i startTimeoutSeconds:i syncInTimeoutSeconds:i"
      " queueTimeoutSeconds:i maxConcurrentVms:i maxCopyOutBytes:i maxCopyOutTotalBytes:i maxBufferedBytes:i"
      " maxDiskGrowthBytes:i maxHostLogBytes:i minHostFreeBytes:i onLowSpace:'close|event' network:'open|none'"
      " accelerator:'auto|tcg' transport:'auto|shell|port' guestSudo:b worktreePath:t image:t0"
      " imageKeys+:[t]0 limactlPath:t allowUnknownLima:b keepManifestDays:i}"
      " used:{accelerator:t transport:'shell|port' agentUser:t sshPort:i} environment:[t] moreEnvironment:i"
      " configurationSha256:h0 arguments:[t]0 enforced:[{what:t enforced:b0 by:t}] timeline:" TIMELINE)},
  {"copied",
    FRAME("copied",
      "process:i kind:'file|tree' from:t to:t entries:i bytes:i skipped:i changed:i unlisted:i files:" FILES
      " commands:" COMMANDS)},
  {"files", FRAME("files", "files:" FILES)},
  {"counted", FRAME("counted", "commands:" COMMANDS)},
  {"attached", FRAME("attached", "process:i program:t0")},
  {"closing",
    FRAME("closing",
      "process:i code:t reason:t commands:" COMMANDS " copies:{copies:i bytes:i} missed:i")},
  {"end", FRAME("end", "by:'owner|sweep|command' process:i code:t0 reason:t")},
};

typedef struct walk_s {
  const char *at;    /* in the schema */
  int64_t number;    /* of the schema that the event is of */
  const char *wrong; /* NULL: nothing yet */
  char path[120];
} walk_t;

static void
wrong(walk_t *w, const char *what) {
  if (!w->wrong) w->wrong = what;
}

static void
check(walk_t *w, const al_val_t *v);

static bool
is_hash(const al_val_t *v) {
  return v->kind == AL_TEXT && v->len == AL_SHA256_HEX - 1 && strspn(v->text, "0123456789abcdef") == v->len;
}

static bool
is_one_of(const char *list, size_t len, const al_val_t *v) {
  if (v->kind != AL_TEXT || v->len == 0) return false;
  for (const char *p = list; p < list + len;) {
    size_t n = strcspn(p, "|'");
    if (n == v->len && memcmp(p, v->text, n) == 0) return true;
    p += n + 1;
  }
  return false;
}

/* Behind the bracket that closes the one at `p`. */
static const char *
behind(const char *p) {
  int depth = 0;
  do {
    depth += *p == '{' || *p == '[';
    depth -= *p == '}' || *p == ']';
    p++;
  } while (depth > 0);
  return p;
}

/* Behind the kind at `p`, but before the 0 that may follow. */
static const char *
kind_end(const char *p) {
  return *p == '{' || *p == '[' ? behind(p) : *p == '\'' ? strchr(p + 1, '\'') + 1 : p + 1;
}

static void
check_list(walk_t *w, const al_val_t *v) {
  const char *begin = w->at + 1, *end = behind(w->at);
  if (v->kind != AL_LIST) wrong(w, "is no list");
  for (size_t i = 0; v->kind == AL_LIST && i < v->len && !w->wrong; i++) {
    w->at = begin;
    check(w, v->items[i]);
  }
  w->at = end;
}

static void
check_map(walk_t *w, const al_val_t *v) {
  size_t known = 0, before = strlen(w->path);
  const char *end = behind(w->at);
  if (v->kind != AL_MAP) wrong(w, "is no object");
  w->at++;
  while (!w->wrong && *w->at != '}') {
    char key[32];
    size_t n = strcspn(w->at, "+:");
    bool later = w->at[n] == '+' && w->number < 2;
    snprintf(key, sizeof key, "%.*s", (int) n, w->at);
    w->at += strcspn(w->at, ":") + 1;
    if (later) { /* one that has it all the same has a member too many */
      w->at = kind_end(w->at);
      w->at += *w->at == '0';
      w->at += strspn(w->at, " ");
      continue;
    }
    snprintf(w->path + before, sizeof w->path - before, "%s%s", before ? "." : "", key);
    const al_val_t *member = NULL;
    for (size_t i = 0; i < v->len && !member; i++)
      if (strcmp(v->keys[i], key) == 0) member = v->items[i];
    if (!member) wrong(w, "is missing");
    else check(w, member);
    known++;
    while (*w->at == ' ') w->at++;
    if (!w->wrong) w->path[before] = 0;
  }
  if (!w->wrong && v->len != known) wrong(w, "has a member that is not in the schema");
  w->at = end;
}

static void
check_scalar(walk_t *w, const al_val_t *v) {
  size_t len = 0;
  switch (*w->at++) {
    case 't':
      if (v->kind != AL_TEXT) wrong(w, "is no text");
      break;
    case 'i':
      if (v->kind != AL_INT || v->i < 0) wrong(w, "is no whole number from 0");
      break;
    case 'b':
      if (v->kind != AL_BOOL) wrong(w, "is neither true nor false");
      break;
    case 'h':
      if (!is_hash(v)) wrong(w, "is no SHA-256");
      break;
    case 'n':
      if (v->kind != AL_TEXT || !al_name_valid(v->text)) wrong(w, "is no name of a lane");
      break;
    case '\'':
      len = strcspn(w->at, "'");
      if (!is_one_of(w->at, len, v)) wrong(w, "is none of the texts that it may be");
      w->at += len + 1;
      break;
    default: AL_ASSERT(false && "a kind that the schema does not have");
  }
}

static void
check(walk_t *w, const al_val_t *v) {
  const char *begin = w->at, *end = kind_end(begin);
  if (*end == '0' && v->kind == AL_NULL) {
    w->at = end + 1;
    return;
  }
  if (*begin == '{') check_map(w, v);
  else if (*begin == '[') check_list(w, v);
  else check_scalar(w, v);
  if (*w->at == '0') w->at++;
}

bool
al__run_schema(const al_val_t *event, char *why, size_t cap) {
  const al_val_t *type = event->kind == AL_MAP ? al_val_get(event, "event") : NULL;
  const al_val_t *number = type ? al_val_get(event, "schema") : NULL;
  walk_t w = {.number = number && number->kind == AL_INT ? number->i : AL_RUN_SCHEMA};
  for (size_t i = 0; type && type->kind == AL_TEXT && i < sizeof events / sizeof *events; i++) {
    if (strcmp(events[i].event, type->text)) continue;
    w.at = events[i].schema;
    check(&w, event);
    if (!w.wrong) return true;
    snprintf(why, cap, "%s %s", w.path[0] ? w.path : "it", w.wrong);
    return false;
  }
  snprintf(why, cap, "it is no event that this version knows");
  return false;
}
