/* SPDX-License-Identifier: Apache-2.0 */
/* The run manifest along a lane's life: made when it is ready, added to by copies out, sealed at its end. */
#include "lane_manifest.h"

#include "ask.h"
#include "mem.h"
#include "run_log.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Theory of operation. Everything is written on the site's worker, in the order in which it is posted. A command costs a
 * few counters and no write; they are written with each copy out, once a minute, and at the end. Nothing that is written after `ready`
 * may fail what it tells of: the files are in place, the lane is gone. What could not be written is counted, told as a
 * warning, and the number stands in the `closing` event. */

#define COUNT_MS 60000
#define FILES_PER_LINE 64u /* so that a line of the longest names fits */

void
al_manifest_state(al_lane_t *lane, int state) {
  lane->manifest.at_ms[state] = al_plat_wall_ms();
}

void
al_manifest_command(al_lane_t *lane, bool interrupted, int exit_code) {
  al_manifest_t *m = &lane->manifest;
  if (interrupted) {
    m->interrupted++;
    return;
  }
  m->ended++;
  m->exits[(unsigned) exit_code & 0xff]++;
}

static void
missed(al_lane_t *lane, const char *what, const char *why) {
  char text[AL_ERR_MSG_MAX];
  lane->manifest.missed++;
  snprintf(text, sizeof text, "%.200s is not in the run manifest: %.400s", what, why);
  al_val_t *v = al_val_map();
  if (al_val_set(v, "option", al_val_text("manifest"))) al_val_free(v);
  else al_lane_emit_with(lane, "warning", text, v);
}

/* What an addition came to; true when it is written, or need not be. */
static bool
is_told(int status, const al_err_t *err, char why[AL_ERR_MSG_MAX]) {
  if (status >= 0) return true; /* 1: whoever ends the lane has sealed it already */
  const char *text = status == -ENOENT ? "it is not there any more" : err->code ? err->msg : uv_strerror(status);
  snprintf(why, AL_ERR_MSG_MAX, "%s", text);
  return false;
}

/* ---- ready ---- */

typedef struct ready_s {
  al_job_t job;
  al_lane_t *lane;
  al_val_t *event;
  al_ready_facts_t facts;
  al_err_t err;
  al_lima_cb cb;
} ready_t;

static int
write_ready(al_job_t *job) {
  ready_t *r = job->data;
  int rc = al_manifest_ready_look(r->event, &r->facts, &r->err);
  return rc ? rc : al_run_begin(r->facts.home, r->facts.row.name, r->event, &r->err);
}

static void
ready_written(al_job_t *job, int status) {
  ready_t *r = job->data;
  al_lane_t *lane = r->lane;
  al_err_t err = r->err;
  al_lima_cb cb = r->cb;
  if (status && !err.code) al_err_set(&err, status, "the run manifest could not be written: %s", uv_strerror(status));
  al_val_free(r->event);
  al_free(r);
  lane->manifest.written = status == 0;
  cb(lane, status, &err);
}

static void
begin(al_lane_t *lane) {
  ready_t *r = al_calloc(1, sizeof *r);
  al_lima_cb cb = lane->manifest.ready_cb;
  al_err_t err = {0};
  if (r) r->event = al_manifest_ready_event(lane);
  if (!r || !r->event) {
    al_free(r);
    al_err_set(&err, -ENOMEM, "out of memory for the run manifest");
    cb(lane, -ENOMEM, &err);
    return;
  }
  r->lane = lane;
  r->cb = cb;
  r->job.data = r;
  r->facts = (al_ready_facts_t) {
    .home = &lane->site->home, .package_dir = lane->engine->package_dir, .row = lane->row};
  memcpy(r->facts.kernel, lane->spec.image.kernel, sizeof r->facts.kernel);
  al_worker_post(lane->site->io, &r->job, write_ready, ready_written);
}

void
al_manifest_ready(al_lane_t *lane, al_lima_cb cb) {
  lane->manifest.ready_cb = cb;
  lane->manifest.waits = lane->driver->vm_asking;
  if (!lane->manifest.waits) begin(lane);
}

/* ---- the version of QEMU ---- */

typedef struct vm_s {
  al_job_t job;
  al_site_t *site;
  al_driver_t *driver;
  char program[sizeof ((al_lima_t *) 0)->qemu], line[AL_ASK_LINE];
} vm_t;

static int
ask_vm(al_job_t *job) {
  vm_t *q = job->data;
  return al_ask_version(q->program, q->line);
}

static void
vm_asked(al_job_t *job, int status) {
  vm_t *q = job->data;
  al_engine_t *e = q->site->engine;
  al_driver_t *d = q->driver;
  d->vm_asking = false;
  if (status == 0) snprintf(d->vm_version, sizeof d->vm_version, "%.*s", (int) sizeof d->vm_version - 1, q->line);
  al_free(q);
  for (al_lane_t *l = e->lanes, *next; l; l = next) {
    next = l->next;
    if (l->driver != d || !l->manifest.waits) continue;
    l->manifest.waits = false;
    begin(l);
  }
  e->busy--;
  al_engine_check_end(e);
}

void
al_manifest_ask_vm(al_site_t *site, al_driver_t *d) {
  if (d->vm_asking || d->vm_version[0] || !d->lima.qemu[0]) return;
  vm_t *q = al_calloc(1, sizeof *q);
  if (!q) return; /* the manifest says that it is not known */
  q->site = site;
  q->driver = d;
  q->job.data = q;
  snprintf(q->program, sizeof q->program, "%s", d->lima.qemu);
  d->vm_asking = true;
  site->engine->busy++;
  al_worker_post(site->store, &q->job, ask_vm, vm_asked);
}

/* ---- copies out ---- */

typedef struct copied_s {
  al_job_t job;
  al_op_t *op;
  const al_home_t *home;
  char name[AL_NAME_LEN + 1];
  al_val_t *event;
  al_buf_t files;
  al_err_t err;
  void (*cb)(al_op_t *op);
} copied_t;

static int
add_file(al_val_t *list, const al_copied_t *f) {
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "path", al_val_text(f->path)) | al_val_set(v, "bytes", al_val_int((int64_t) f->bytes)) |
    al_val_set(v, "sha256", al_val_text(f->sha256));
  if (!rc) return al_val_add(list, v);
  al_val_free(v);
  return rc;
}

/* The next files, at most FILES_PER_LINE, into `event`. */
static int
put_files(al_val_t *event, const al_buf_t *files, size_t *at) {
  al_copied_t f;
  al_val_t *list = al_val_list();
  int rc = list ? 0 : -ENOMEM;
  while (!rc && list->len < FILES_PER_LINE && al_copied_next(files, at, &f)) rc = add_file(list, &f);
  if (!rc) return al_val_set(event, "files", list);
  al_val_free(list);
  return rc;
}

static int
write_copied(al_job_t *job) {
  copied_t *c = job->data;
  al_val_t *events[AL_COPIED_FILES / FILES_PER_LINE + 2] = {c->event};
  size_t at = 0, n = 1;
  int rc = put_files(c->event, &c->files, &at);
  while (!rc && at < c->files.len) {
    al_val_t *v = events[n++] = al_val_map();
    rc = al_val_set(v, "event", al_val_text("files"));
    if (!rc) rc = put_files(v, &c->files, &at);
  }
  if (!rc) rc = al_run_add(c->home, c->name, (const al_val_t *const *) events, n, &c->err);
  for (size_t i = 1; i < n; i++) al_val_free(events[i]);
  return rc;
}

static void
copied_written(al_job_t *job, int status) {
  copied_t *c = job->data;
  al_op_t *op = c->op;
  void (*cb)(al_op_t *op) = c->cb;
  char why[AL_ERR_MSG_MAX];
  /* A lane of another version has none, and who is attached to it is not to blame. */
  bool none = op->lane->attached && status == -ENOENT;
  if (status == 1) missed(op->lane, "a copy out", "the lane had ended by then");
  else if (!none && !is_told(status, &c->err, why)) missed(op->lane, "a copy out", why);
  al_val_free(c->event);
  al_buf_deinit(&c->files);
  al_free(c);
  cb(op);
}

static al_val_t *
copied_event(const al_op_t *op, al_xfer_t *x, const al_xfer_stats_t *stats, uint64_t unlisted) {
  const char *from, *to;
  al_xfer_paths(x, &from, &to);
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "event", al_val_text("copied")); /* before the others */
  rc |= al_val_set(v, "process", al_val_int(op->lane->engine->self.pid)) |
    al_val_set(v, "kind", al_val_text(op->kind == AL_OP_TREE ? "tree" : "file")) |
    al_val_set(v, "from", al_val_text(from)) | al_val_set(v, "to", al_val_text(to)) |
    al_val_set(v, "entries", al_val_int((int64_t) (stats->files - stats->skipped))) |
    al_val_set(v, "bytes", al_val_int((int64_t) stats->bytes)) |
    al_val_set(v, "skipped", al_val_int((int64_t) stats->skipped)) |
    al_val_set(v, "changed", al_val_int((int64_t) stats->changed)) |
    al_val_set(v, "unlisted", al_val_int((int64_t) unlisted)) | al_val_set(v, "files", al_val_list()) |
    al_val_set(v, "commands", al_manifest_commands(op->lane));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

void
al_manifest_copied(al_op_t *op, al_xfer_t *x, const al_xfer_stats_t *stats, void (*cb)(al_op_t *op)) {
  al_lane_t *lane = op->lane;
  uint64_t unlisted = 0;
  lane->manifest.copies++;
  lane->manifest.copied_bytes += stats->bytes;
  copied_t *c = al_calloc(1, sizeof *c);
  if (c) al_xfer_take_files(x, &c->files, &unlisted);
  if (c) c->event = copied_event(op, x, stats, unlisted);
  if (!c || !c->event) {
    if (c) al_buf_deinit(&c->files);
    al_free(c);
    missed(lane, "a copy out", "there was no memory for it");
    cb(op);
    return;
  }
  c->op = op;
  c->cb = cb;
  c->home = &lane->site->home;
  c->job.data = c;
  memcpy(c->name, lane->spec.name, sizeof c->name);
  al_worker_post(lane->site->io, &c->job, write_copied, copied_written);
}

/* ---- one event ---- */

typedef struct note_s {
  al_job_t job;
  const al_home_t *home;
  al_site_t *site;
  char name[AL_NAME_LEN + 1];
  al_val_t *event;
  bool last;
  al_err_t err;
  const char *what;
  al_lane_t *lane;           /* NULL: nobody waits for it */
  void (*cb)(al_lane_t *lane);
  int64_t row;               /* of a lane that is not ours: closed then */
  char reason[256];
  al_registry_cb closed;
  void *data;
} note_t;

static int
write_note(al_job_t *job) {
  note_t *n = job->data;
  if (n->last) return al_run_end(n->home, n->name, n->event, &n->err);
  const al_val_t *const events[] = {n->event};
  return al_run_add(n->home, n->name, events, 1, &n->err);
}

static void
note_free(note_t *n) {
  al_val_free(n->event);
  al_free(n);
}

/* `event` is taken. NULL when out of memory. */
static note_t *
note_new(al_site_t *site, const char *name, al_val_t *event) {
  note_t *n = event ? al_calloc(1, sizeof *n) : NULL;
  if (!n) {
    al_val_free(event);
    return NULL;
  }
  n->site = site;
  n->home = &site->home;
  n->event = event;
  n->job.data = n;
  snprintf(n->name, sizeof n->name, "%s", name);
  return n;
}

static void
lane_noted(al_job_t *job, int status) {
  note_t *n = job->data;
  al_lane_t *lane = n->lane;
  void (*cb)(al_lane_t *lane) = n->cb;
  char why[AL_ERR_MSG_MAX];
  if (!is_told(status, &n->err, why)) missed(lane, n->what, why);
  note_free(n);
  cb(lane);
}

static void
post(al_lane_t *lane, note_t *n, const char *what, void (*cb)(al_lane_t *lane)) {
  n->lane = lane;
  n->what = what;
  n->cb = cb;
  al_worker_post(lane->site->io, &n->job, write_note, lane_noted);
}

/* ---- what nobody waits for ---- */

static void
noted(al_job_t *job, int status) {
  note_t *n = job->data;
  al_engine_t *e = n->site->engine;
  (void) status; /* of another process's lane: its owner's matter; counts: they come again */
  note_free(n);
  e->busy--;
  al_engine_check_end(e);
}

/* `event` is taken. */
static void
post_alone(al_lane_t *lane, al_val_t *event) {
  note_t *n = note_new(lane->site, lane->spec.name, event);
  if (!n) return;
  lane->engine->busy++;
  al_worker_post(lane->site->io, &n->job, write_note, noted);
}

void
al_manifest_count(al_lane_t *lane) {
  al_manifest_t *m = &lane->manifest;
  uint64_t now = al_plat_mono_ms(), sum = m->started + m->ended + m->interrupted;
  if (!m->written || lane->state != AL_LANE_READY || sum == m->counted || now - m->counted_ms < COUNT_MS) return;
  m->counted = sum;
  m->counted_ms = now;
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "event", al_val_text("counted")); /* before the other */
  rc |= al_val_set(v, "commands", al_manifest_commands(lane));
  if (rc) al_val_free(v);
  else post_alone(lane, v);
}

void
al_manifest_attached(al_lane_t *lane) {
  const al_engine_t *e = lane->engine;
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "event", al_val_text("attached")); /* before the others */
  rc |= al_val_set(v, "process", al_val_int(e->self.pid)) |
    al_val_set(v, "program", e->self.exe[0] ? al_val_text(e->self.exe) : al_val_null());
  if (rc) {
    al_val_free(v);
    return;
  }
  post_alone(lane, v);
}

/* ---- the end ---- */

static al_val_t *
closing_event(const al_lane_t *lane) {
  const al_manifest_t *m = &lane->manifest;
  al_val_t *v = al_val_map(), *copies = al_val_map();
  int rc = al_val_set(v, "event", al_val_text("closing")); /* before the others */
  rc |= al_val_set(copies, "copies", al_val_int((int64_t) m->copies)) |
    al_val_set(copies, "bytes", al_val_int((int64_t) m->copied_bytes));
  rc |= al_val_set(v, "process", al_val_int(lane->engine->self.pid)) |
    al_val_set(v, "code", al_val_text(al_err_name(lane->cause.code))) |
    al_val_set(v, "reason", al_val_text(lane->cause.msg)) | al_val_set(v, "commands", al_manifest_commands(lane)) |
    al_val_set(v, "copies", copies) | al_val_set(v, "missed", al_val_int((int64_t) m->missed));
  if (!rc) return v;
  al_val_free(v);
  return NULL;
}

bool
al_manifest_closing(al_lane_t *lane, void (*cb)(al_lane_t *lane)) {
  note_t *n = lane->manifest.written ? note_new(lane->site, lane->spec.name, closing_event(lane)) : NULL;
  if (n) post(lane, n, "what ran", cb);
  else if (lane->manifest.written) missed(lane, "what ran", "there was no memory for it");
  return n != NULL;
}

void
al_manifest_end(al_lane_t *lane, void (*cb)(al_lane_t *lane)) {
  if (!lane->manifest.written) {
    cb(lane);
    return;
  }
  al_val_t *v = al_run_end_event("owner", lane->engine->self.pid, al_err_name(lane->cause.code), lane->cause.msg);
  note_t *n = note_new(lane->site, lane->spec.name, v);
  if (n) {
    n->last = true;
    post(lane, n, "the end", cb);
    return;
  }
  missed(lane, "the end", "there was no memory for it");
  cb(lane);
}

/* ---- a lane of somebody else's ---- */

static void
row_noted(al_job_t *job, int status) {
  note_t *n = job->data;
  (void) status; /* a later sweep writes it (sweep_tidy.c): a lane that is gone does not stay open for that */
  al_registry_move(&n->site->registry, n->row, AL_LANE_CLOSING, AL_LANE_CLOSED, n->reason, n->closed, n->data);
  note_free(n);
}

void
al_manifest_close_row(al_site_t *site, const al_lane_row_t *row, const char *by, const char *reason, bool proven,
  al_registry_cb cb, void *data) {
  al_val_t *v = proven ? al_run_end_event(by, site->engine->self.pid, NULL, reason) : NULL;
  note_t *n = note_new(site, row->name, v);
  if (!n) {
    int to = proven ? AL_LANE_CLOSED : AL_LANE_STUCK;
    al_registry_move(&site->registry, row->id, AL_LANE_CLOSING, to, reason, cb, data);
    return;
  }
  n->last = true;
  n->row = row->id;
  n->closed = cb;
  n->data = data;
  snprintf(n->reason, sizeof n->reason, "%s", reason);
  al_worker_post(site->io, &n->job, write_note, row_noted);
}
