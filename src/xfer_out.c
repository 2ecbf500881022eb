/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, out: one regular file of the guest, or a directory, streamed into a temporary one on the host and renamed
 * into place. */
#include "mem.h"
#include "work.h"
#include "xfer_int.h"
#include <errno.h>
#include <string.h>

/* Disk work happens on a thread of the transfer's own, in the order it is posted: open, one job after another that
 * writes what has come meanwhile, commit, and the clean-up last. Waking the thread for each frame would cost more than
 * the copying. The credit of what is written goes back to the guest then, so that at most a window is in memory. */

#define LINUX_ELOOP 40 /* the guest's numbers; the others that are named here are the same everywhere */

typedef struct xfer_out_s xfer_out_t;

typedef struct block_s {
  uint8_t *p;
  size_t len, room;
} block_t;

/* What becomes of the bytes: a file or a tree. */
typedef struct kind_s {
  int (*start)(al_chan_t *c, const char *path, const char *user, const al_stream_cbs_t *cbs, void *data,
    al_stream_t **out, al_err_t *err);
  void (*init)(xfer_out_t *x, const al_xfer_limits_t *limits);
  /* on the thread */
  int (*open)(xfer_out_t *x);
  int (*take)(xfer_out_t *x); /* `now`; sets `bytes` and `entries` */
  int (*commit)(xfer_out_t *x);
  void (*clean)(xfer_out_t *x);
  /* on the loop */
  void (*refused)(xfer_out_t *x, const al_exit_t *e);
  void (*tell)(xfer_out_t *x); /* the statistics, once it is in place */
  bool bounded; /* every byte counts for the maximum; of a tree its parser counts */
} kind_t;

struct xfer_out_s {
  al_xfer_t base;
  const kind_t *kind;
  al_stream_t *s;    /* NULL after the end */
  al_worker_t *worker;
  al_job_t open, take, commit, clean;
  unsigned jobs;     /* posted and not done, `clean` not counted */
  bool opened, taking; /* `open` has been posted; `take` is */
  bool complete;     /* everything has come: `commit` is to be posted behind the last of it */
  bool closing;
  block_t now, next; /* what is being written, the thread's while `taking`; what came since */
  uint64_t bytes, entries; /* written so far; likewise */
  uv_loop_t *loop;
  uint64_t got;      /* bytes that came, of records too */
  uint64_t max, *left; /* of this call; of its lane, NULL = no bound */
  char *guest, *host, *root;
  al_noted_t noted;  /* likewise */
  union {            /* the thread's while jobs > 0 */
    al_target_t target;
    al_tree_out_t tree;
  } to;
  const al_place_t *place; /* of it */
};

static void
destroy(xfer_out_t *x) {
  al_free(x->guest);
  al_free(x->host);
  al_free(x->root);
  al_free(x->now.p);
  al_free(x->next.p);
  al_buf_deinit(&x->noted.files);
  al_free(x);
}

static void
on_worker_closed(void *data) {
  xfer_out_t *x = data;
  al__xfer_ended(&x->base);
  destroy(x);
}

static int
run_clean(al_job_t *job) {
  xfer_out_t *x = job->data;
  x->kind->clean(x);
  return 0;
}

static void
on_cleaned(al_job_t *job, int status) {
  xfer_out_t *x = job->data;
  (void) status;
  al_worker_close(x->worker, on_worker_closed, x);
}

static void
maybe_finish(xfer_out_t *x) {
  if (x->s || x->jobs > 0 || x->closing) return;
  x->closing = true;
  al_worker_post(x->worker, &x->clean, run_clean, on_cleaned);
}

static void
stop(xfer_out_t *x, const al_err_t *err) {
  if (!x->base.err.code) x->base.err = *err;
  if (x->s) al_stream_reset(x->s, &x->base.err); /* on_exit goes on */
}

static void
cancel(al_xfer_t *base, const al_err_t *why) {
  xfer_out_t *x = (xfer_out_t *) base;
  /* After the stream's end the file is being put in place, which takes no time worth cancelling. */
  if (x->s) stop(x, why);
}

static void
job_done(xfer_out_t *x, int status) {
  x->jobs--;
  if (status < 0) stop(x, &x->place->err);
}

static int
run_open(al_job_t *job) {
  xfer_out_t *x = job->data;
  return x->kind->open(x);
}

static int
run_commit(al_job_t *job) {
  xfer_out_t *x = job->data;
  return x->place->err.code ? x->place->err.code : x->kind->commit(x);
}

static int
run_take(al_job_t *job) {
  xfer_out_t *x = job->data;
  return x->place->err.code ? x->place->err.code : x->kind->take(x);
}

static void
on_step_done(al_job_t *job, int status) {
  xfer_out_t *x = job->data;
  job_done(x, status);
  maybe_finish(x);
}

static void
on_committed(al_job_t *job, int status) {
  xfer_out_t *x = job->data;
  if (status == 0) x->kind->tell(x);
  on_step_done(job, status);
}

static void
post_open(xfer_out_t *x) {
  if (x->opened) return;
  x->opened = true;
  x->jobs++;
  al_worker_post(x->worker, &x->open, run_open, on_step_done);
}

static void
on_taken(al_job_t *job, int status);

/* The next thing for the thread, when it has nothing of ours. */
static void
go_on(xfer_out_t *x) {
  if (x->taking || x->base.err.code) return;
  if (x->next.len > 0) {
    block_t b = x->now;
    x->now = x->next;
    x->next = b;
    x->next.len = 0;
    x->taking = true;
    x->jobs++;
    al_worker_post(x->worker, &x->take, run_take, on_taken);
  } else if (x->complete) {
    x->complete = false;
    x->jobs++;
    al_worker_post(x->worker, &x->commit, run_commit, on_committed);
  }
}

static void
on_taken(al_job_t *job, int status) {
  xfer_out_t *x = job->data;
  x->taking = false;
  job_done(x, status);
  if (x->s) al_stream_consumed(x->s, AL_SUB_STDOUT, x->now.len);
  if (status == 0) {
    x->base.stats.bytes = x->bytes;
    x->base.stats.files = x->entries;
  }
  go_on(x);
  if (x->s && !x->base.err.code) al__xfer_tell(&x->base, x->loop);
  maybe_finish(x);
}

static int
append(block_t *b, const uint8_t *p, size_t n) {
  if (n > b->room - b->len) {
    size_t room = b->room * 2 > b->len + n ? b->room * 2 : b->len + n;
    uint8_t *more = al_realloc(b->p, room);
    if (!more) return -ENOMEM;
    b->p = more;
    b->room = room;
  }
  memcpy(b->p + b->len, p, n);
  b->len += n;
  return 0;
}

static void
on_data(al_stream_t *s, void *data, int sub, const uint8_t *p, size_t n) {
  xfer_out_t *x = data;
  al_err_t err = { 0 };
  (void) s;
  (void) sub;
  x->got += n;
  if (x->kind->bounded && x->got > x->max) {
    al_err_set(
      &err, AL_EFILE_TOO_LARGE, "%s in the guest is larger than %llu bytes", x->guest, (unsigned long long) x->max);
    stop(x, &err);
    return;
  }
  if (x->left && *x->left < n) {
    al_err_set(&err, AL_ECOPY_OUT_LIMIT, "%s in the guest is more than its lane may still copy out", x->guest);
    stop(x, &err);
    return;
  }
  if (x->left) *x->left -= n;
  if (append(&x->next, p, n) < 0) {
    al_err_set(&err, AL_ENO_MEMORY, "out of memory while %s was received", x->guest);
    stop(x, &err);
    return;
  }
  post_open(x);
  go_on(x);
}

static void
on_end(al_stream_t *s, void *data, int sub) {
  (void) s;
  (void) data;
  (void) sub;
}

static void
on_exit(al_stream_t *s, void *data, const al_exit_t *e) {
  xfer_out_t *x = data;
  uint64_t got = x->got;
  (void) s;
  x->s = NULL;
  if (x->base.err.code) {
    maybe_finish(x);
    return;
  }
  if (e->kind == AL_EXIT_ERROR) {
    x->kind->refused(x, e);
  } else if (e->kind < 0) {
    x->base.err = e->err;
    if (e->err.code == AL_EEXEC_FAILED)
      al_err_set(&x->base.err, AL_ECOPY_OUT_FAILED, "%s in the guest: %s", x->guest, e->err.msg);
  } else if (e->value != 0) {
    al_err_set(&x->base.err, AL_ECOPY_OUT_FAILED, "%s in the guest ended with status %u", x->guest, e->value);
  } else if (e->length != got) {
    al_err_set(&x->base.err, AL_ECOPY_OUT_FAILED, "%s came incomplete: the guest announced %llu bytes and sent %llu",
      x->guest, (unsigned long long) e->length, (unsigned long long) got);
  } else {
    post_open(x);
    x->complete = true;
    go_on(x);
  }
  maybe_finish(x);
}

static int
start(al_chan_t *c, const kind_t *kind, const char *guest_path, const char *host_path, const char *root,
  const al_xfer_limits_t *limits, const al_xfer_cbs_t *cbs, void *data, xfer_out_t **out, al_err_t *err) {
  static const al_stream_cbs_t stream_cbs = { .on_data = on_data, .on_end = on_end, .on_exit = on_exit };
  int r = al_guest_path_check(guest_path, strlen(guest_path), err);
  if (r < 0) return r;
  if (host_path[0] != '/')
    return al_err_set(err, AL_EHOST_PATH_INVALID, "the target %s is refused: it is not absolute", host_path);
  xfer_out_t *x = al_calloc(1, sizeof *x);
  if (!x) return al_err_set(err, AL_ENO_MEMORY, "out of memory");
  x->base = (al_xfer_t){ .cbs = *cbs, .data = data, .cancel = cancel };
  x->kind = kind;
  x->loop = al_chan_loop(c);
  x->max = limits && limits->max_bytes ? limits->max_bytes : AL_COPY_OUT_MAX;
  x->left = limits ? limits->left : NULL;
  x->open.data = x->take.data = x->commit.data = x->clean.data = x;
  al_buf_init(&x->noted.files, 0);
  x->base.noted = &x->noted;
  kind->init(x, limits);
  x->guest = al_strdup(guest_path);
  x->host = al_strdup(host_path);
  x->root = al_strdup(root);
  x->noted.guest = x->guest;
  x->noted.host = x->host;
  r = x->guest && x->host && (x->root || !root) ? al_worker_open(al_chan_loop(c), &x->worker) : UV_ENOMEM;
  if (r < 0) {
    destroy(x);
    return al_err_set(err, r == UV_ENOMEM ? AL_ENO_MEMORY : r, "the copy could not be started: %s", uv_strerror(r));
  }
  r = kind->start(c, guest_path, "agent", &stream_cbs, x, &x->s, err);
  if (r < 0) {
    al_worker_close(x->worker, NULL, NULL);
    destroy(x);
    return r;
  }
  *out = x;
  return 0;
}

/* What the guest's errors mean for either kind. */
static void
refused(xfer_out_t *x, const al_exit_t *e) {
  al_err_t *err = &x->base.err;
  switch (e->value) {
    case ENOENT: al_err_set(err, AL_EGUEST_FILE_MISSING, "%s does not exist in the guest", x->guest); break;
    case LINUX_ELOOP:
      al_err_set(err, AL_EIS_LINK, "%s in the guest is a symbolic link, or one is in its path", x->guest);
      break;
    default: al_err_set(err, AL_ECOPY_OUT_FAILED, "%s in the guest: %s", x->guest, e->text); break;
  }
}

/* ---- a file ---- */

static void
file_init(xfer_out_t *x, const al_xfer_limits_t *limits) {
  (void) limits;
  al__target_init(&x->to.target);
  al__noted_begin(&x->noted);
  x->place = &x->to.target.place;
}

static int
file_open(xfer_out_t *x) {
  return al__target_open(&x->to.target, x->host, x->root);
}

static int
file_take(xfer_out_t *x) {
  x->bytes += x->now.len;
  al__noted_bytes(&x->noted, x->now.p, x->now.len);
  return al__target_write(&x->to.target, x->now.p, x->now.len);
}

static int
file_commit(xfer_out_t *x) {
  if (al__noted_end(&x->noted, x->guest, x->bytes))
    return al_err_set(&x->to.target.place.err, AL_ENO_MEMORY, "out of memory for the hash of %s", x->guest);
  return al__target_commit(&x->to.target);
}

static void
file_clean(xfer_out_t *x) {
  al__target_deinit(&x->to.target);
}

static void
file_refused(xfer_out_t *x, const al_exit_t *e) {
  al_err_t *err = &x->base.err;
  switch (e->value) {
    case ENOTDIR: al_err_set(err, AL_EGUEST_FILE_MISSING, "%s does not exist in the guest", x->guest); break;
    case EISDIR: al_err_set(err, AL_ENOT_A_FILE, "%s in the guest is a directory", x->guest); break;
    case EINVAL:
    case ENXIO: al_err_set(err, AL_ENOT_A_FILE, "%s in the guest is not a regular file", x->guest); break;
    default: refused(x, e); break;
  }
}

static void
file_tell(xfer_out_t *x) {
  x->base.stats.files = 1;
}

static const kind_t file_kind = { .start = al_stream_read,
  .init = file_init,
  .open = file_open,
  .take = file_take,
  .commit = file_commit,
  .clean = file_clean,
  .refused = file_refused,
  .tell = file_tell,
  .bounded = true };

int
al_xfer_out(al_chan_t *c, const char *guest_path, const char *host_path, const char *root,
  const al_xfer_limits_t *limits, const al_xfer_cbs_t *cbs, void *data, al_xfer_t **out, al_err_t *err) {
  xfer_out_t *x = NULL;
  int r = start(c, &file_kind, guest_path, host_path, root, limits, cbs, data, &x, err);
  if (r == 0) *out = &x->base;
  return r;
}

/* ---- a tree ---- */

static void
tree_init(xfer_out_t *x, const al_xfer_limits_t *limits) {
  al_tree_out_t *t = &x->to.tree;
  al__tree_init(t);
  x->place = &t->place;
  t->noted = &x->noted;
  t->parse.max_bytes = x->max;
  t->parse.max_entries = limits && limits->max_entries ? limits->max_entries : AL_TREE_ENTRIES;
  t->parse.max_depth = limits && limits->max_depth ? limits->max_depth : AL_TREE_DEPTH;
  if (t->parse.max_depth > AL_TREE_DEPTH_MAX) t->parse.max_depth = AL_TREE_DEPTH_MAX;
  t->executables = limits && limits->executables;
}

static int
tree_open(xfer_out_t *x) {
  return al__tree_open(&x->to.tree, x->host, x->root);
}

static int
tree_take(xfer_out_t *x) {
  al_tree_out_t *t = &x->to.tree;
  int r = al__tree_take(t, x->now.p, x->now.len);
  x->bytes = t->parse.bytes;
  x->entries = t->parse.entries;
  return r;
}

static int
tree_commit(xfer_out_t *x) {
  return al__tree_commit(&x->to.tree);
}

static void
tree_clean(xfer_out_t *x) {
  al__tree_deinit(&x->to.tree);
}

static void
tree_refused(xfer_out_t *x, const al_exit_t *e) {
  al_err_t *err = &x->base.err;
  switch (e->value) {
    case EINVAL: al_err_set(err, AL_ETREE_REFUSED, "%s in the guest: %s", x->guest, e->text); break;
    case E2BIG: al_err_set(err, AL_ETREE_TOO_LARGE, "%s in the guest: %s", x->guest, e->text); break;
    case ENOTDIR: al_err_set(err, AL_ENOT_A_DIRECTORY, "%s in the guest is not a directory", x->guest); break;
    default: refused(x, e); break;
  }
}

static void
tree_tell(xfer_out_t *x) {
  const al_tree_t *t = &x->to.tree.parse;
  al_xfer_stats_t *stats = &x->base.stats;
  stats->bytes = t->bytes;
  stats->files = t->entries;
  stats->changed = t->changed;
  stats->skipped = t->skipped;
  memcpy(stats->skipped_path, t->skipped_path, sizeof stats->skipped_path);
}

static const kind_t tree_kind = { .start = al_stream_tree,
  .init = tree_init,
  .open = tree_open,
  .take = tree_take,
  .commit = tree_commit,
  .clean = tree_clean,
  .refused = tree_refused,
  .tell = tree_tell };

int
al_xfer_tree(al_chan_t *c, const char *guest_path, const char *host_path, const char *root,
  const al_xfer_limits_t *limits, const al_xfer_cbs_t *cbs, void *data, al_xfer_t **out, al_err_t *err) {
  xfer_out_t *x = NULL;
  int r = start(c, &tree_kind, guest_path, host_path, root, limits, cbs, data, &x, err);
  if (r == 0) *out = &x->base;
  return r;
}
