/* SPDX-License-Identifier: Apache-2.0 */
/* What all transports share: a child process, its stdin and stdout as a pair of streams, or a socket; the wait for the
 * marker, the end. */
#include "transport_int.h"

#include "mem.h"
#include "utf8.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RETRY_MS 300
#define RETRY_MS_MAX 2000
#define SSH_FAILED 255 /* ssh's own exit code; nothing of ours ran in the guest, or a signal ended it */

/* Theory of operation. The transport owns both streams, not the process runner: they stay valid until
 * al_transport_close, whatever becomes of the child, so the channel above never holds a stream that is gone. It learns
 * the end as EOF. Before the marker nothing of the child's output is anybody's; from the marker on nothing of it is the
 * transport's. A busy guest's sshd drops connections while others are logging in; so a child that ends with ssh's own
 * exit code before the marker is run again, a few times, within the deadline. */

static void
free_if_over(al_transport_t *t) {
  if (!t->closing || t->proc_runs || t->job_runs || t->handles > 0) return;
  void (*cb)(void *) = t->close_cb;
  void *data = t->close_data;
  if (t->release) t->release(t);
  al_buf_deinit(&t->preface);
  al_proc_deinit(&t->proc);
  al_free(t);
  cb(data);
}

void
al__transport_init(
  al_transport_t *t, uv_loop_t *loop, const al_transport_cbs_t *cbs, void *data, void (*release)(al_transport_t *)) {
  t->loop = loop;
  t->cbs = *cbs;
  t->data = data;
  t->release = release;
  t->runs_max = AL__RUNS_MAX;
  al_buf_init(&t->preface, AL__PREFACE_MAX);
  t->proc.data = t;
  uv_timer_init(loop, &t->timer);
  t->timer.data = t;
  t->handles = 1;
}

void
al__transport_job(al_transport_t *t, al_worker_t *io, int (*run)(al_job_t *), void (*done)(al_job_t *, int)) {
  t->job_runs = true;
  t->job.data = t;
  al_worker_post(io, &t->job, run, done);
}

bool
al__transport_job_ended(al_transport_t *t) {
  t->job_runs = false;
  if (t->closing) free_if_over(t);
  else return true;
  return false;
}

void
al__transport_fail(al_transport_t *t, int status, const al_err_t *why) {
  if (t->told || t->closing) return;
  t->told = true;
  uv_timer_stop(&t->timer);
  if (t->reads) uv_read_stop((uv_stream_t *) &t->from);
  if (!why && t->err.code == 0) al_err_set(&t->err, status, "%s", uv_strerror(status));
  al_err_t err = why ? *why : t->err;
  t->cbs.on_failed(t, t->data, &err);
}

const char *
al_transport_stderr(al_transport_t *t) {
  size_t len = 0;
  AL_AUTO_FREE char *tail = al_tail_copy(&t->proc.err_tail, &len);
  const char *from = tail ? tail : "";
  if (len >= sizeof t->stderr_text) {
    from += len - (sizeof t->stderr_text - 1);
    len = sizeof t->stderr_text - 1;
  }
  while (len > 0 && (from[len - 1] == '\n' || from[len - 1] == '\r')) len--;
  al_utf8_printable(t->stderr_text, sizeof t->stderr_text, from, len, true);
  return t->stderr_text;
}

static void
fail_start(al_transport_t *t, int code, const char *how) {
  al_err_t err = {0};
  const char *text = al_transport_stderr(t);
  al_err_set(&err, code, "%s%s%.300s", how, text[0] ? ": " : "", text);
  al__transport_fail(t, code, &err);
}

static void
open_now(al_transport_t *t) {
  t->told = true;
  uv_timer_stop(&t->timer);
  if (t->reads) uv_read_stop((uv_stream_t *) &t->from);
  t->reads = false;
  al_buf_deinit(&t->preface);
  t->cbs.on_open(t, t->data, (uv_stream_t *) &t->from, (uv_stream_t *) (t->socket ? &t->from : &t->to));
}

static uint64_t
left(const al_transport_t *t) {
  uint64_t now = uv_now(t->loop);
  return t->end > now ? t->end - now : 0;
}

static void
on_timer(uv_timer_t *timer) {
  al_transport_t *t = timer->data;
  if (t->told || t->closing) return;
  if (t->err.code) {
    al__transport_fail(t, t->err.code, NULL);
  } else if (t->retrying) {
    t->retrying = false;
    int rc = t->again(t);
    if (rc) al__transport_fail(t, rc, NULL);
  } else if (t->marker[0]) {
    fail_start(t, AL_ESTART_TIMEOUT, "waited in vain for the lane agent to start in the guest");
  } else {
    open_now(t);
  }
}

static void
close_handle(al_transport_t *t, uv_handle_t *h);

/* Longer after each run: what drops a connection is gone in a moment, what has not started yet takes seconds. */
static uint64_t
retry_ms(const al_transport_t *t) {
  uint64_t ms = RETRY_MS * (uint64_t) t->runs;
  return ms < RETRY_MS_MAX ? ms : RETRY_MS_MAX;
}

/* The child has ended before its marker, and its output too. */
static void
ended_early(al_transport_t *t) {
  char how[160];
  if (t->again && t->proc.exit_code == SSH_FAILED && t->proc.term_signal == 0 && t->runs < t->runs_max &&
    left(t) > RETRY_MS_MAX) {
    t->retrying = true;
    uv_timer_stop(&t->timer);
    al_proc_deinit(&t->proc);
    al_buf_deinit(&t->preface);
    close_handle(t, (uv_handle_t *) &t->to);
    close_handle(t, (uv_handle_t *) &t->from);
    return;
  }
  snprintf(how, sizeof how, "the lane agent did not start in the guest (exit code %d, signal %d)",
    (int) t->proc.exit_code, t->proc.term_signal);
  fail_start(t, AL_ESTART_FAILED, how);
}

int
al__transport_fail_soon(al_transport_t *t) {
  return uv_timer_start(&t->timer, on_timer, 0, 0);
}

static void
on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf) {
  al_transport_t *t = h->data;
  (void) suggested;
  *buf = uv_buf_init(t->chunk, sizeof t->chunk);
}

static void
on_preface(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
  al_transport_t *t = s->data;
  if (t->told || t->closing || n == 0) return;
  if (n < 0) { /* the reason is on stderr; on_proc_done reads it when the child has ended */
    uv_read_stop(s);
    t->reads = false;
    if (t->socket) t->on_eof(t);
    else if (!t->proc_runs) ended_early(t);
    return;
  }
  int rc = al_buf_append(&t->preface, buf->base, (size_t) n);
  if (rc == -ENOMEM) {
    fail_start(t, rc, "out of memory for what the guest's login prints");
    return;
  }
  if (rc) {
    fail_start(t, AL_ESTART_FAILED, "the guest printed more than 16 KiB before the lane agent started");
    return;
  }
  const uint8_t *at = memmem(t->preface.data, t->preface.len, t->marker, strlen(t->marker));
  if (!at) return;
  if (at + strlen(t->marker) != t->preface.data + t->preface.len)
    fail_start(t, AL_EPROTOCOL_VIOLATION, "the guest spoke before it was asked");
  else open_now(t);
}

static void
on_written(uv_write_t *req, int status) {
  (void) req;
  (void) status; /* a child that does not take the agent ends, or its marker never comes: both are seen there */
}

static void
on_proc_done(al_proc_t *p, int status) {
  al_transport_t *t = p->data;
  t->proc_runs = false;
  if (t->closing) {
    free_if_over(t);
    return;
  }
  if (t->told) return;
  if (status != 0) {
    char how[160];
    snprintf(how, sizeof how, "the transport's program could not be run: %s", uv_strerror(status));
    fail_start(t, al_err_exhausted(status) ? status : AL_ESTART_FAILED, how);
  } else if (t->marker[0] && !t->reads) {
    ended_early(t); /* else bytes, or EOF, are still to be read from the stream */
  }
}

/* One socket pair: *fd is the child's end, the other becomes `mine`. */
static int
make_pair(al_transport_t *t, uv_pipe_t *mine, int *fd) {
  uv_os_sock_t pair[2];
  int rc = uv_socketpair(SOCK_STREAM, 0, pair, UV_NONBLOCK_PIPE, 0);
  if (rc) return rc;
  *fd = pair[1];
  rc = uv_pipe_init(t->loop, mine, 0);
  if (rc) {
    close(pair[0]);
    return rc;
  }
  mine->data = t;
  t->handles++;
  rc = uv_pipe_open(mine, pair[0]);
  if (rc) close(pair[0]);
  return rc;
}

int
al__transport_run(al_transport_t *t, const al_proc_opts_t *opts, const char *first, size_t first_len,
  const char *marker, uint64_t deadline_ms) {
  AL_AUTO_FD int in = -1;
  AL_AUTO_FD int out = -1;
  int rc = make_pair(t, &t->to, &in);
  if (rc == 0) rc = make_pair(t, &t->from, &out);
  if (rc) return rc;
  al_proc_opts_t o = *opts;
  o.in = o.out = AL_PROC_FD;
  o.in_fd = in;
  o.out_fd = out;
  rc = al_proc_start(t->loop, &t->proc, &o, on_proc_done);
  if (rc) return rc;
  t->proc_runs = true;
  t->end = uv_now(t->loop) + deadline_ms;
  t->runs++;
  snprintf(t->marker, sizeof t->marker, "%s", marker ? marker : "");
  if (marker) {
    uv_buf_t b = uv_buf_init((char *) (uintptr_t) first, (unsigned) first_len);
    rc = uv_write(&t->write, (uv_stream_t *) &t->to, &b, 1, on_written);
    if (rc == 0) rc = uv_read_start((uv_stream_t *) &t->from, on_alloc, on_preface);
    t->reads = rc == 0;
  }
  if (rc == 0) rc = uv_timer_start(&t->timer, on_timer, marker ? deadline_ms : 0, 0);
  return rc;
}

int
al__transport_socket(al_transport_t *t, int fd, const char *first, size_t first_len, const char *marker) {
  t->socket = true;
  int rc = uv_pipe_init(t->loop, &t->from, 0);
  if (rc) {
    close(fd);
    return rc;
  }
  t->from.data = t;
  t->handles++;
  rc = uv_pipe_open(&t->from, fd);
  if (rc) {
    close(fd);
    return rc;
  }
  snprintf(t->marker, sizeof t->marker, "%s", marker);
  uv_buf_t b = uv_buf_init((char *) (uintptr_t) first, (unsigned) first_len);
  rc = uv_write(&t->write, (uv_stream_t *) &t->from, &b, 1, on_written);
  if (rc == 0) rc = uv_read_start((uv_stream_t *) &t->from, on_alloc, on_preface);
  t->reads = rc == 0;
  if (rc == 0) rc = uv_timer_start(&t->timer, on_timer, left(t), 0);
  return rc;
}

void
al__transport_again(al_transport_t *t, uint64_t ms, const char *late) {
  uv_update_time(t->loop);
  if (late && left(t) == 0) {
    fail_start(t, AL_ESTART_TIMEOUT, late);
    return;
  }
  t->retrying = true;
  int rc = uv_timer_start(&t->timer, on_timer, ms, 0);
  if (rc) al__transport_fail(t, rc, NULL);
}

int
al__transport_load(const al_lima_t *l, const char *arch, size_t room, al__agent_t *out, al_err_t *err) {
  const char *path = l->agent[strcmp(arch, "aarch64") == 0 ? 1 : 0];
  AL_AUTO_FREE char *file = NULL;
  uint8_t r[16];
  size_t len = 0;
  if (!path[0]) return al_err_set(err, AL_EINTERNAL, "the package has no lane agent for the guest's architecture");
  int rc = al_plat_read_file(-1, path, AL__AGENT_MAX, &file, &len);
  if (rc == 0 && len == 0) rc = -ENODATA;
  if (rc) return al_err_set(err, rc, "the lane agent %s cannot be read: %s", path, strerror(-rc));
  rc = al_plat_random(r, sizeof r);
  if (rc) return al_err_set(err, rc, "no random bytes");
  for (size_t i = 0; i < sizeof r; i++) snprintf(out->token + 2 * i, 3, "%02x", r[i]);
  out->bytes = al_malloc(room + len);
  if (!out->bytes) return al_err_set(err, -ENOMEM, "out of memory");
  memcpy(out->bytes + room, file, len);
  out->len = len;
  out->room = room;
  return 0;
}

static void
on_handle_closed(uv_handle_t *h) {
  al_transport_t *t = h->data;
  t->handles--;
  if (t->retrying && !t->socket && !t->closing && t->handles == 1)
    uv_timer_start(&t->timer, on_timer, retry_ms(t), 0); /* only the timer is left */
  free_if_over(t);
}

static void
close_handle(al_transport_t *t, uv_handle_t *h) {
  if (h->type == UV_UNKNOWN_HANDLE || uv_is_closing(h)) return;
  h->data = t; /* the channel may have had it for itself */
  uv_close(h, on_handle_closed);
}

void
al_transport_close(al_transport_t *t, void (*cb)(void *data), void *data) {
  t->closing = true;
  t->close_cb = cb;
  t->close_data = data;
  uv_timer_stop(&t->timer);
  close_handle(t, (uv_handle_t *) &t->to);
  close_handle(t, (uv_handle_t *) &t->from);
  close_handle(t, (uv_handle_t *) &t->timer);
  if (t->proc_runs) al_proc_kill(&t->proc);
}
