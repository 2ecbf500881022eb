/* SPDX-License-Identifier: Apache-2.0 */
/* The link: one keeper at a time over a socket pair, and the list of lanes that each of them is told. */
#include "keeper_link.h"
#include "mem.h"
#include "proc.h"
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Theory of operation. The list holds every lane that was told and not dropped. A connection is one keeper: the socket
 * pair, whose other end is its standard input, and the short-lived process that leaves it behind (it is no child of
 * ours, see keeper/main.c; so its end is seen as the end of the stream). It counts from HELLO on; then all of the list is
 * written to it. When it ends another one is started, at once the first time, then more and more seldom, as long as there
 * is something to keep. A keep is answered by the keeper's ACK; by the failure of a keeper to start, which fails all that
 * wait; or when its time is over. */

#define KEEP_MS 5000
#define HELLO_MS 4000 /* before KEEP_MS is over, so that who waits hears why */
#define AGAIN_MS 250
#define AGAIN_MAX_MS 5000
#define SETTLED_MS 1000 /* one that lived for longer is replaced at once */

typedef struct entry_s {
  al_keeper_keep_t rec;
  uv_write_t write;
  bool writing;      /* rec is libuv's */
  bool kept;         /* some keeper has said so */
  bool dropped;
  al_keeper_cb cb;   /* of who still waits */
  void *data;
  uint64_t deadline; /* monotonic */
  struct entry_s *next;
} entry_t;

typedef struct conn_s {
  al_keeper_link_t *l;
  uv_pipe_t pipe;
  al_proc_t proc;
  bool piped, starting, said_hello;
  uint64_t deadline; /* of HELLO */
  uint64_t hello_at;
  unsigned char in[sizeof(al_keeper_ack_t)];
  size_t have;
} conn_t;

typedef struct drop_s {
  uv_write_t write;
  al_keeper_drop_t rec;
} drop_t;

struct al_keeper_link_s {
  uv_loop_t *loop;
  al_keeper_opts_t opts;
  uv_timer_t timer;
  conn_t *conn;
  bool up, wanted, closing;
  unsigned failures, starts;
  uint64_t again_at; /* 0: at once */
  uint32_t seq;
  al_ident_t keeper;
  al_err_t err;      /* why the last one did not start */
  entry_t *entries;
  void (*closed)(void *data);
  void *closed_data;
};

_Static_assert(sizeof(al_keeper_hello_t) == sizeof(al_keeper_ack_t), "the keeper's records are of one size");

static void
turn(al_keeper_link_t *l);

/* ---- entries ---- */

static void
release(al_keeper_link_t *l, entry_t *e) {
  e->dropped = true;
  if (e->writing) return; /* when it is written */
  for (entry_t **at = &l->entries; *at; at = &(*at)->next) {
    if (*at != e) continue;
    *at = e->next;
    break;
  }
  al_free(e);
}

/* Answers who waits; a lane that is not kept is forgotten. */
static void
settle(al_keeper_link_t *l, entry_t *e, int status, const al_err_t *err) {
  al_keeper_cb cb = e->cb;
  void *data = e->data;
  e->cb = NULL;
  if (status == 0) e->kept = true;
  else if (!e->kept) release(l, e);
  if (cb) cb(data, status, err);
}

static bool
fail_waiting(al_keeper_link_t *l, int status, const al_err_t *err, uint64_t until) {
  bool any = false;
  for (entry_t *e = l->entries; e;) {
    bool over = !e->dropped && e->cb && e->deadline <= until;
    if (over) settle(l, e, status, err);
    e = over ? l->entries : e->next; /* the callback may have changed the list */
    any |= over;
  }
  return any;
}

static void
on_told(uv_write_t *req, int status) {
  entry_t *e = req->data;
  al_keeper_link_t *l = ((conn_t *) req->handle->data)->l;
  (void) status; /* a write that fails is a connection that ends */
  e->writing = false;
  if (e->dropped) release(l, e);
}

static void
tell(al_keeper_link_t *l, entry_t *e) {
  if (e->writing || e->dropped) return;
  uv_buf_t buf = uv_buf_init((char *) &e->rec, sizeof e->rec);
  e->rec.head = (al_keeper_head_t) {AL_KEEPER_MAGIC, sizeof e->rec, AL_KEEPER_KEEP, ++l->seq};
  e->write.data = e;
  e->writing = uv_write(&e->write, (uv_stream_t *) &l->conn->pipe, &buf, 1, on_told) == 0;
}

/* ---- one connection ---- */

static void
conn_over(conn_t *c) {
  if (c->piped || c->starting) return;
  al_keeper_link_t *l = c->l;
  al_free(c);
  if (l->conn != c) return;
  l->conn = NULL;
  turn(l);
}

static void
on_pipe_closed(uv_handle_t *h) {
  conn_t *c = h->data;
  c->piped = false;
  conn_over(c);
}

/* This keeper is over, or never was. `why` NULL: it had started. */
static void
lose(conn_t *c, const al_err_t *why) {
  al_keeper_link_t *l = c->l;
  if (uv_is_closing((uv_handle_t *) &c->pipe)) return;
  l->up = false;
  /* One that is given up must not take the link's end for ours. */
  if (c->said_hello && !l->closing) (void) al_plat_ident_kill(&l->keeper, SIGKILL);
  uv_close((uv_handle_t *) &c->pipe, on_pipe_closed);
  if (c->starting) al_proc_kill(&c->proc);
  bool settled = c->said_hello && al_plat_mono_ms() >= c->hello_at + SETTLED_MS;
  uint64_t pause = (uint64_t) AGAIN_MS << (l->failures < 5 ? l->failures : 5);
  if (pause > AGAIN_MAX_MS) pause = AGAIN_MAX_MS;
  l->failures = settled ? 0 : l->failures + 1;
  l->again_at = settled ? 0 : al_plat_mono_ms() + pause;
  if (!why || l->closing) return;
  l->err = *why;
  (void) fail_waiting(l, why->code, &l->err, UINT64_MAX);
}

/* `rc`: what the system said, or AL_EKEEPER_FAILED. */
static void
lose_unstarted(conn_t *c, int rc, const char *what) {
  al_err_t err = {0};
  al_err_set(&err, al_err_exhausted(rc) ? rc : AL_EKEEPER_FAILED, "the keeper did not start: %s", what);
  lose(c, &err);
}

static void
on_hello(conn_t *c, const al_keeper_hello_t *r) {
  al_keeper_link_t *l = c->l;
  int rc = r->pid > 1 ? al_plat_ident((pid_t) r->pid, &l->keeper) : -ESRCH;
  if (rc) {
    lose_unstarted(c, rc, strerror(-rc));
    return;
  }
  c->said_hello = true;
  c->hello_at = al_plat_mono_ms();
  l->up = true;
  bool again = l->starts++ > 0;
  for (entry_t *e = l->entries; e; e = e->next) tell(l, e);
  if (again && l->opts.on_restart) l->opts.on_restart(l->opts.data, &l->keeper);
}

static void
on_ack(conn_t *c, const al_keeper_ack_t *r) {
  al_keeper_link_t *l = c->l;
  al_err_t err = {0};
  entry_t *e = l->entries;
  while (e && (e->rec.head.seq != r->head.seq || e->dropped)) e = e->next;
  if (!e) return;
  /* That an end has begun is no refusal: an expired lane is told again to a new keeper. */
  if (r->status) al_err_set(&err, AL_EKEEPER_FAILED, "the keeper does not take the lane: %s", strerror(-r->status));
  settle(l, e, r->status ? err.code : 0, r->status ? &err : NULL);
}

/* False when it is no record. */
static bool
take(conn_t *c) {
  al_keeper_ack_t ack;
  al_keeper_hello_t hello;
  memcpy(&ack, c->in, sizeof ack);
  memcpy(&hello, c->in, sizeof hello);
  if (ack.head.type == AL_KEEPER_HELLO && !c->said_hello) on_hello(c, &hello);
  else if (ack.head.type == AL_KEEPER_ACK && c->said_hello) on_ack(c, &ack);
  else return false;
  return true;
}

static void
on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
  conn_t *c = s->data;
  (void) buf;
  if (n == 0) return;
  if (n < 0) {
    if (c->said_hello) lose(c, NULL);
    else if (!c->starting) lose_unstarted(c, AL_EKEEPER_FAILED, "it ended at once; see keeper.log in the home's log directory");
    else (void) uv_read_stop(s); /* what the process says comes with its end */
    return;
  }
  c->have += (size_t) n;
  if (c->have < sizeof c->in) return;
  c->have = 0;
  const al_keeper_head_t *head = (const al_keeper_head_t *) (const void *) c->in;
  if (head->magic != AL_KEEPER_MAGIC || head->size != sizeof c->in || !take(c)) lose(c, NULL);
}

static void
on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf) {
  conn_t *c = h->data;
  (void) suggested;
  *buf = uv_buf_init((char *) c->in + c->have, (unsigned) (sizeof c->in - c->have));
}

/* The process that leaves the keeper behind has ended. */
static void
on_left(al_proc_t *p, int status) {
  conn_t *c = p->data;
  char text[400] = "";
  size_t len = 0;
  bool bad = status || p->exit_code || p->term_signal;
  AL_AUTO_FREE char *tail = bad && !status ? al_tail_copy(&p->err_tail, &len) : NULL;
  c->starting = false;
  if (status) snprintf(text, sizeof text, "%s", uv_strerror(status));
  else if (tail) snprintf(text, sizeof text, "%.*s", (int) (len < 300 ? len : 300), tail);
  al_proc_deinit(p);
  if (bad && !c->said_hello && !uv_is_closing((uv_handle_t *) &c->pipe)) {
    lose_unstarted(c, status, text[0] ? text : "it ended without a word");
  } else if (!bad && !c->said_hello && !uv_is_active((uv_handle_t *) &c->pipe)) {
    lose_unstarted(c, AL_EKEEPER_FAILED, "it ended at once; see keeper.log in the home's log directory");
  }
  conn_over(c);
}

static int
start_process(conn_t *c, const char *program, int fd) {
  al_keeper_link_t *l = c->l;
  char owner[48];
  snprintf(owner, sizeof owner, "%ld:%" PRIu64, (long) l->opts.owner->pid, l->opts.owner->start);
  const char *const argv[] = {program, "--agent-lane-keeper", AL_KEEPER_VERSION, "--owner", owner, "--home",
    l->opts.home->root, NULL};
  const char *const env[] = {"PATH=/usr/bin:/bin", "LC_ALL=C", NULL};
  al_proc_opts_t o = {.file = program, .argv = argv, .env = env, .cwd = l->opts.home->run, .in = AL_PROC_FD,
    .in_fd = fd, .out = AL_PROC_NULL, .stderr_fd = -1, .deadline_ms = HELLO_MS};
  c->proc.data = c;
  int rc = al_proc_start(l->loop, &c->proc, &o, on_left);
  c->starting = rc == 0;
  return rc;
}

/* 0, or why there is no connection; then nothing of it is left but what is closing. */
static int
connect_new(al_keeper_link_t *l, al_err_t *err) {
  char program[1024];
  int fds[2];
  int rc = al_home_install(l->opts.home, l->opts.program, program, sizeof program, err);
  if (rc) return rc;
  if ((rc = al_plat_socketpair(fds)) != 0) return al_err_set(err, rc, "no socket pair: %s", strerror(-rc));
  conn_t *c = al_calloc(1, sizeof *c);
  if (!c || (rc = uv_pipe_init(l->loop, &c->pipe, 0)) != 0) {
    al_free(c);
    close(fds[0]);
    close(fds[1]);
    return al_err_set(err, -ENOMEM, "out of memory");
  }
  c->l = l;
  c->pipe.data = c;
  c->piped = true;
  c->deadline = al_plat_mono_ms() + HELLO_MS;
  l->conn = c;
  rc = uv_pipe_open(&c->pipe, fds[0]);
  if (rc) close(fds[0]);
  if (!rc) rc = uv_read_start((uv_stream_t *) &c->pipe, on_alloc, on_read);
  if (!rc) rc = start_process(c, program, fds[1]);
  close(fds[1]);
  if (rc) al_err_set(err, rc, "%s", uv_strerror(rc));
  return rc;
}

/* ---- turns ---- */

static void
on_timer(uv_timer_t *t) {
  turn(t->data);
}

static void
on_timer_closed(uv_handle_t *h) {
  al_keeper_link_t *l = h->data;
  for (entry_t *e = l->entries; e;) {
    entry_t *next = e->next;
    al_free(e);
    e = next;
  }
  void (*closed)(void *data) = l->closed;
  void *data = l->closed_data;
  al_free(l);
  if (closed) closed(data);
}

static void
start_another(al_keeper_link_t *l) {
  al_err_t why = {0}, err = {0};
  l->wanted = false;
  int rc = connect_new(l, &why);
  if (rc == 0) return;
  al_err_set(&err, al_err_exhausted(rc) ? rc : AL_EKEEPER_FAILED, "the keeper did not start: %s", why.msg);
  if (l->conn) {
    lose(l->conn, &err);
    return;
  }
  l->failures++;
  l->again_at = al_plat_mono_ms() + AGAIN_MAX_MS;
  l->err = err;
  (void) fail_waiting(l, err.code, &l->err, UINT64_MAX);
}

/* When something is to be looked at again, of itself. */
static void
arm(al_keeper_link_t *l) {
  uint64_t now = al_plat_mono_ms(), at = UINT64_MAX;
  for (entry_t *e = l->entries; e; e = e->next) {
    if (e->cb && e->deadline < at) at = e->deadline;
  }
  if (l->conn && !l->conn->said_hello && l->conn->deadline < at) at = l->conn->deadline;
  if (!l->conn && l->entries && l->again_at < at) at = l->again_at;
  uv_update_time(l->loop);
  if (at == UINT64_MAX) uv_timer_stop(&l->timer);
  else uv_timer_start(&l->timer, on_timer, at > now ? at - now : 1, 0);
}

static void
turn(al_keeper_link_t *l) {
  uint64_t now = al_plat_mono_ms();
  if (l->closing) {
    if (!l->conn && !uv_is_closing((uv_handle_t *) &l->timer)) uv_close((uv_handle_t *) &l->timer, on_timer_closed);
    return;
  }
  if (l->conn && !l->conn->said_hello && now >= l->conn->deadline) lose_unstarted(l->conn, AL_EKEEPER_FAILED, "it did not say so in time");
  al_err_t late = {0};
  al_err_set(&late, AL_EKEEPER_FAILED, "the keeper did not confirm the lane in time%s%s", l->err.msg[0] ? "; " : "",
    l->err.msg);
  if (fail_waiting(l, late.code, &late, now) && l->up) lose(l->conn, NULL); /* it does not answer */
  if (!l->conn && (l->entries || l->wanted) && now >= l->again_at) start_another(l);
  arm(l);
}

al_keeper_link_t *
al_keeper_link_open(uv_loop_t *loop, const al_keeper_opts_t *opts) {
  al_keeper_link_t *l = al_calloc(1, sizeof *l);
  if (!l) return NULL;
  l->loop = loop;
  l->opts = *opts;
  uv_timer_init(loop, &l->timer);
  l->timer.data = l;
  return l;
}

void
al_keeper_link_start(al_keeper_link_t *l) {
  if (l->conn || l->closing) return;
  l->wanted = true;
  uv_timer_start(&l->timer, on_timer, 0, 0);
}

const al_ident_t *
al_keeper_ident(const al_keeper_link_t *l) {
  return l->up ? &l->keeper : NULL;
}

void
al_keeper_keep(al_keeper_link_t *l, const al_keeper_keep_t *lane, al_keeper_cb cb, void *data) {
  al_err_t err = {0};
  entry_t *e = l->closing ? NULL : al_calloc(1, sizeof *e);
  if (!e) { /* the one exception: who has no memory is told at once */
    al_err_set(&err, l->closing ? UV_ECANCELED : -ENOMEM, l->closing ? "the engine is shutting down" : "out of memory");
    cb(data, err.code, &err);
    return;
  }
  e->rec = *lane;
  e->cb = cb;
  e->data = data;
  e->deadline = al_plat_mono_ms() + KEEP_MS;
  e->next = l->entries;
  l->entries = e;
  if (l->up) tell(l, e);
  if (!l->conn) l->again_at = 0;
  uv_timer_start(&l->timer, on_timer, 0, 0); /* starts one, and looks at the deadline */
}

static void
on_dropped(uv_write_t *req, int status) {
  (void) status;
  al_free(req->data);
}

void
al_keeper_drop(al_keeper_link_t *l, const char *name) {
  entry_t *e = l->entries;
  while (e && (e->dropped || strcmp(e->rec.name, name) != 0)) e = e->next;
  if (!e) return;
  e->cb = NULL;
  release(l, e);
  drop_t *d = l->up ? al_calloc(1, sizeof *d) : NULL;
  if (!d) return; /* what stays with the keeper is looked for in vain, and that is all */
  d->rec.head = (al_keeper_head_t) {AL_KEEPER_MAGIC, sizeof d->rec, AL_KEEPER_DROP, 0};
  snprintf(d->rec.name, sizeof d->rec.name, "%s", name);
  d->write.data = d;
  uv_buf_t buf = uv_buf_init((char *) &d->rec, sizeof d->rec);
  if (uv_write(&d->write, (uv_stream_t *) &l->conn->pipe, &buf, 1, on_dropped) != 0) al_free(d);
}

void
al_keeper_link_close(al_keeper_link_t *l, void (*cb)(void *data), void *data) {
  al_err_t err = {0};
  l->closed = cb;
  l->closed_data = data;
  al_err_set(&err, UV_ECANCELED, "the engine is shutting down");
  (void) fail_waiting(l, err.code, &err, UINT64_MAX);
  l->closing = true;
  if (l->conn) lose(l->conn, NULL);
  turn(l);
}
