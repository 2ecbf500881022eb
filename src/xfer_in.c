/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers, in: a host file or tree, as a pax archive, to the lane agent, which unpacks it and puts it in place. */
#include "mem.h"
#include "tail.h"
#include "utf8.h"
#include "work.h"
#include "xfer_int.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define AHEAD 262144u     /* bytes that we keep queued in the stream */
#define STOP_MS 2000      /* how long we wait for the guest to clean up after itself */
#define CLEAN_MS 60000    /* how long it may take in the end, which nobody waits for */
#define SAID_MAX 400      /* of what the guest printed, in our message */

typedef struct xfer_in_s {
  al_xfer_t base;
  al_chan_t *c;
  /* the channel may end while the host is still looked at, when there is no stream that would say so */
  al_chan_watch_t watch;
  al_stream_t *s;       /* NULL before the start and after the end */
  al_worker_t *worker;
  al_job_t job;
  bool busy;            /* the job is running or waiting */
  bool produced, ended; /* the archive is complete; END was asked for */
  bool left;            /* the stream is not waited for any more: the guest cleans up by itself */
  bool closing, told_end;
  unsigned handles;
  al_pipe_t pipe;
  uv_timer_t grace;
  al_tar_t tar;
  al_ignore_t *ignore;
  al_tail_t said, clash;
  char *host, *guest;
} xfer_in_t;

static void
destroy(xfer_in_t *x) {
  al__tar_close(&x->tar);
  al_tail_deinit(&x->said);
  al_tail_deinit(&x->clash);
  al_ignore_close(x->ignore);
  al_free(x->host);
  al_free(x->guest);
  al_free(x);
}

static void
one_closed(xfer_in_t *x) {
  if (--x->handles > 0) return;
  x->base.stats = x->tar.stats; /* the thread is through */
  al__tar_close(&x->tar); /* a guest that is not may take a minute more */
  al__xfer_ended(&x->base);
  x->told_end = true;
  al__pipe_deinit(&x->pipe);
  if (!x->s) destroy(x);
}

static void
on_handle_closed(uv_handle_t *h) {
  one_closed(h->data);
}

static void
on_worker_closed(void *data) {
  xfer_in_t *x = data;
  /* The thread is gone: nobody sends to the async any more. */
  uv_close((uv_handle_t *) &x->pipe.async, on_handle_closed);
  uv_close((uv_handle_t *) &x->grace, on_handle_closed);
  one_closed(x);
}

static void
maybe_finish(xfer_in_t *x) {
  if ((x->s && !x->left) || x->busy || x->closing) return;
  x->closing = true;
  al_chan_unwatch(&x->watch);
  x->handles = 3;
  al_worker_close(x->worker, on_worker_closed, x);
}

static void
on_grace(uv_timer_t *t) {
  xfer_in_t *x = t->data;
  x->left = true;
  maybe_finish(x);
}

/* Ends the transfer with an error: the thread stops at its next block, the guest is asked to clean up. */
static void
stop(xfer_in_t *x, const al_err_t *err) {
  if (x->base.err.code) return;
  x->base.err = *err;
  al__pipe_break(&x->pipe);
  if (x->s) {
    al_stream_cancel(x->s, CLEAN_MS);
    uv_update_time(al_chan_loop(x->c));
    uv_timer_start(&x->grace, on_grace, STOP_MS, 0);
  }
  maybe_finish(x);
}

static void
cancel(al_xfer_t *base, const al_err_t *why) {
  xfer_in_t *x = (xfer_in_t *) base;
  if (!x->closing) stop(x, why);
}

static void
on_chan_end(al_chan_watch_t *w, const al_err_t *why) {
  stop((xfer_in_t *) (void *) ((char *) w - offsetof(xfer_in_t, watch)), why);
}

static void
feed(xfer_in_t *x) {
  if (!x->s || x->ended || x->base.err.code) return;
  bool any = false;
  al_err_t err = { 0 };
  for (int64_t queued = (int64_t) al_stream_queued(x->s); queued < AHEAD;) {
    al_block_t *b = al__pipe_take(&x->pipe);
    if (!b) {
      if (x->produced) {
        x->ended = true;
        al_stream_end(x->s);
      }
      break;
    }
    any = true;
    x->base.stats.bytes = b->done;
    x->base.stats.files = b->files;
    x->base.stats.total = b->total;
    queued = al_stream_give(x->s, b->bytes, b->len);
    al_free(b);
    if (queued < 0) {
      al_err_set(&err, AL_ENO_MEMORY, "out of memory while %s was sent", x->host);
      stop(x, &err);
      return;
    }
  }
  if (any) al__xfer_tell(&x->base, al_chan_loop(x->c));
}

static void
on_block(uv_async_t *a) {
  feed(a->data);
}

static void
on_drain(al_stream_t *s, void *data) {
  (void) s;
  feed(data);
}

static void
on_data(al_stream_t *s, void *data, int sub, const uint8_t *p, size_t n) {
  xfer_in_t *x = data;
  /* When that fails there is less to say, nothing else. */
  al_tail_append(sub == AL_SUB_STDOUT ? &x->clash : &x->said, p, n);
  al_stream_consumed(s, sub, n);
}

static void
on_end(al_stream_t *s, void *data, int sub) {
  (void) s;
  (void) data;
  (void) sub;
}

static void
guest_failed(xfer_in_t *x, const char *how) {
  char text[SAID_MAX];
  size_t n = 0;
  AL_AUTO_FREE char *said = al_tail_copy(&x->said, &n);
  al_utf8_printable(text, sizeof text, said ? said : "", said ? n : 0, false);
  al_err_set(&x->base.err, AL_ECOPY_IN_FAILED, "copying %s to %s in the guest: %s", x->host, x->guest,
    text[0] ? text : how);
}

static const char *
kind_name(char kind) {
  return kind == 'd' ? "a directory" : kind == 'f' ? "a file" : kind == 'l' ? "a link" : kind == 'o' ? "no file" : NULL;
}

/* "df" and a path below the target: a directory would have to come where a file is. */
static void
guest_clashes(xfer_in_t *x) {
  size_t n = 0;
  char text[SAID_MAX];
  AL_AUTO_FREE char *said = al_tail_copy(&x->clash, &n);
  const char *comes = said && n >= 2 ? kind_name(said[0]) : NULL, *is = comes ? kind_name(said[1]) : NULL;
  if (!is) {
    guest_failed(x, "something is in the way");
    return;
  }
  al_utf8_printable(text, sizeof text, said + 2, n - 2, false);
  const char *slash = text[0] ? "/" : "";
  al_err_set(&x->base.err, AL_ECOPY_IN_FAILED, "%s%s%s is %s and %s%s%s in the guest is %s: nothing was copied",
    x->host, slash, text, comes, x->guest, slash, text, is);
  al_err_cure(&x->base.err, "Remove one of the two, or copy to another path.");
}

static void
judge(xfer_in_t *x, const al_exit_t *e) {
  char how[64];
  if (x->base.err.code) return;
  if (e->kind == AL_EXIT_CODE && e->value == AL_UNPACK_CLASH) {
    guest_clashes(x);
  } else if (e->kind == AL_EXIT_CODE && e->value != 0) {
    snprintf(how, sizeof how, "exit status %u", e->value);
    guest_failed(x, how);
  } else if (e->kind == AL_EXIT_SIGNAL) {
    snprintf(how, sizeof how, "it was ended there by signal %u", e->value);
    guest_failed(x, how);
  } else if (e->kind == AL_EXIT_ERROR) {
    guest_failed(x, e->text);
  } else if (e->kind < 0 && e->err.code == AL_EEXEC_FAILED) {
    guest_failed(x, e->err.msg);
  } else if (e->kind < 0) {
    x->base.err = e->err;
  }
}

static void
on_exit(al_stream_t *s, void *data, const al_exit_t *e) {
  xfer_in_t *x = data;
  (void) s;
  x->s = NULL;
  if (x->told_end) {
    destroy(x);
    return;
  }
  if (x->closing) return;
  uv_timer_stop(&x->grace);
  judge(x, e);
  al__pipe_break(&x->pipe); /* a thread that is not through has nobody to write to */
  maybe_finish(x);
}

static void
on_written(al_job_t *job, int status) {
  xfer_in_t *x = job->data;
  x->busy = false;
  if (status == 0) {
    x->produced = true;
    feed(x);
    maybe_finish(x);
  } else if (x->base.err.code) {
    maybe_finish(x);
  } else if (x->tar.err.code) {
    stop(x, &x->tar.err);
  } else {
    guest_failed(x, "it ended before everything was sent"); /* with status 0: only then is there no error yet */
    maybe_finish(x);
  }
}

static int
run_write(al_job_t *job) {
  xfer_in_t *x = job->data;
  return al__tar_write(&x->tar);
}

static void
on_looked(al_job_t *job, int status) {
  static const al_stream_cbs_t cbs = { .on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_exit = on_exit };
  xfer_in_t *x = job->data;
  x->busy = false;
  if (status < 0 && !x->base.err.code) x->base.err = x->tar.err;
  if (!x->base.err.code) {
    const char *const argv[] = { x->tar.is_dir ? "tree" : "file", x->guest, NULL };
    al_exec_req_t req = { .argv = argv, .cwd = "/", .user = "agent", .with_stdin = true, .unpack = true };
    if (al_stream_exec(x->c, &req, &cbs, x, &x->s, &x->base.err) < 0) x->s = NULL;
  }
  if (x->s) {
    x->busy = true;
    al_worker_post(x->worker, &x->job, run_write, on_written);
  }
  maybe_finish(x);
}

static int
run_look(al_job_t *job) {
  xfer_in_t *x = job->data;
  return al__tar_look(&x->tar);
}

int
al_xfer_in(al_chan_t *c, const char *host_path, const char *guest_path, const char *const *ignore,
  const al_xfer_cbs_t *cbs, void *data, al_xfer_t **out, al_err_t *err) {
  int r = al_guest_path_check(guest_path, strlen(guest_path), err);
  if (r < 0) return r;
  if (al__xfer_tmp_in(guest_path))
    return al_err_set(err, AL_EGUEST_PATH_INVALID,
      "The guest path \"%.200s\" has the name of what a copy has not put in place.", guest_path);
  if (!host_path[0]) return al_err_set(err, AL_ESOURCE_MISSING, "the host path is empty");
  xfer_in_t *x = al_calloc(1, sizeof *x);
  if (!x) return al_err_set(err, AL_ENO_MEMORY, "out of memory");
  x->base = (al_xfer_t){ .cbs = *cbs, .data = data, .cancel = cancel };
  x->c = c;
  al_tail_init(&x->said, 8192);
  al_tail_init(&x->clash, 2 + AL_PATH_MAX);
  x->host = al_strdup(host_path);
  x->guest = al_strdup(guest_path);
  x->tar = (al_tar_t){ .host_path = x->host, .pipe = &x->pipe, .fd = -1 };
  if (x->guest) x->tar.name = strrchr(x->guest, '/') + 1;
  x->job.data = x;
  x->tar.count = cbs->on_progress != NULL;
  if (ignore && (r = al_ignore_open(ignore, &x->ignore, err)) < 0) {
    destroy(x);
    return r;
  }
  x->tar.ignore = x->ignore;
  r = x->host && x->guest ? al_worker_open(al_chan_loop(c), &x->worker) : UV_ENOMEM;
  if (r < 0) {
    destroy(x);
    return al_err_set(err, r == UV_ENOMEM ? AL_ENO_MEMORY : r, "the copy could not be started: %s", uv_strerror(r));
  }
  r = al__pipe_init(al_chan_loop(c), &x->pipe, on_block);
  if (r < 0) {
    al_worker_close(x->worker, NULL, NULL);
    destroy(x);
    return al_err_set(err, r, "the copy could not be started: %s", uv_strerror(r));
  }
  uv_timer_init(al_chan_loop(c), &x->grace);
  x->grace.data = x->pipe.async.data = x;
  x->watch.cb = on_chan_end;
  al_chan_watch(c, &x->watch);
  x->busy = true;
  al_worker_post(x->worker, &x->job, run_look, on_looked);
  *out = &x->base;
  return 0;
}
