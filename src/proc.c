/* SPDX-License-Identifier: Apache-2.0 */
/* Process runner: spawn, feed, collect, stop. */
#include "proc.h"
#include "mem.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

/* Theory of operation. A run is over when the child has exited, every pipe the runner reads has seen EOF, and every
 * handle is closed; only then does on_done come, from the last close callback. Two things could keep that from
 * happening and have a timer each: a child that does not end (deadline: TERM to its group, after the grace KILL, and if
 * even that does not help we give up), and a grandchild that inherited our pipes and lives on (drain: a short time
 * after the exit the pipes are closed under it). In AL_PROC_PIPE mode EOF on stdout is seen by the caller, not by us;
 * after the exit we look whether anything is left to read, and wait for the caller no longer than the drain time. */

#define GIVE_UP_MS 10000 /* after KILL: a child in uninterruptible sleep must not hold us for ever */
#define DRAIN_TICK_MS 20
#define READ_CHUNK 65536

_Static_assert(UV_ENOENT == -ENOENT && UV_ETIMEDOUT == -ETIMEDOUT, "libuv's codes must be -errno");

typedef enum { RUNNING, TERMINATING, KILLING } stage_t;

typedef struct al_proc_priv_s priv_t;

struct al_proc_priv_s {
  al_proc_t *p;
  al_proc_cb on_done;
  uv_loop_t *loop;
  uv_process_t process;
  uv_pipe_t in, out, err;
  uv_timer_t timer; /* deadline, then grace, then giving up */
  uv_timer_t drain;
  uv_write_t write;
  uv_shutdown_t shutdown;
  uv_buf_t input;
  al_proc_io_t in_mode, out_mode;
  bool has_err;                     /* the runner reads stderr */
  bool spawned, exited, out_eof, err_eof, finishing, killed;
  stage_t stage;
  int handles; /* initialised and not closed yet */
  int status;
  uint64_t drain_end;
  char chunk[READ_CHUNK]; /* of both pipes: libuv fills and hands it over in one go */
};

static void
one_closed(priv_t *v) {
  if (--v->handles > 0) return;
  al_proc_t *p = v->p;
  p->priv = NULL;
  p->in = p->outp = NULL;
  int status = v->status;
  al_proc_cb on_done = v->on_done;
  al_free(v->input.base);
  al_free(v);
  on_done(p, status);
}

static void
on_close(uv_handle_t *handle) {
  one_closed(handle->data);
}

/* `data` of the pipes that the caller uses is the caller's. */
static void
on_close_in(uv_handle_t *handle) {
  one_closed((priv_t *) (void *) ((char *) handle - offsetof(priv_t, in)));
}

static void
on_close_out(uv_handle_t *handle) {
  one_closed((priv_t *) (void *) ((char *) handle - offsetof(priv_t, out)));
}

static void
close_handle(priv_t *v, void *handle) {
  uv_handle_t *h = handle;
  uv_close_cb cb = handle == &v->in ? on_close_in : handle == &v->out ? on_close_out : on_close;

  /* Without a type it was never initialised. */
  if (h->type != UV_UNKNOWN_HANDLE && !uv_is_closing(h)) uv_close(h, cb);
}

static void
finish(priv_t *v) {
  if (v->finishing) return;
  v->finishing = true;
  close_handle(v, &v->process);
  close_handle(v, &v->in);
  close_handle(v, &v->out);
  close_handle(v, &v->err);
  close_handle(v, &v->timer);
  close_handle(v, &v->drain);
}

/* True when the caller of AL_PROC_PIPE has nothing more to get from stdout: it has had its EOF, or there is none but
 * EOF and it does not listen. */
static bool
caller_has_all(priv_t *v) {
  uv_os_fd_t fd;
  char c;

  if (v->killed || uv_is_closing((uv_handle_t *) &v->out) || uv_fileno((uv_handle_t *) &v->out, &fd)) return true;
  ssize_t n = recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
  bool drained = n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  return drained && !uv_is_active((uv_handle_t *) &v->out);
}

static void
check_done(priv_t *v) {
  if (!v->exited || v->finishing) return;
  bool out_over = v->out_mode == AL_PROC_NULL || v->out_mode == AL_PROC_FD ||
    (v->out_mode == AL_PROC_BUFFER ? v->out_eof : caller_has_all(v));
  bool err_over = !v->has_err || v->err_eof;
  if (out_over && err_over) finish(v);
}

/* The child leads its own session and group, so -pid is exactly what it started and nothing else. Only ever called
 * while the child is not reaped, or in the very turn of the loop in which it was: its number cannot be anybody
 * else's. */
static void
signal_group(priv_t *v, int signo) {
  if (v->process.pid > 1) (void) kill(-v->process.pid, signo);
}

static void
on_timer(uv_timer_t *timer);

static void
set_stage(priv_t *v, stage_t stage) {
  if (v->exited || v->finishing || stage <= v->stage) return;
  v->stage = stage;
  signal_group(v, stage == KILLING ? SIGKILL : SIGTERM);
  uv_timer_start(&v->timer, on_timer, stage == KILLING ? GIVE_UP_MS : AL_PROC_KILL_GRACE_MS, 0);
}

static void
fail(priv_t *v, int status) {
  if (v->status == 0) v->status = status;
}

static void
on_timer(uv_timer_t *timer) {
  priv_t *v = timer->data;

  if (v->stage == RUNNING) {
    fail(v, UV_ETIMEDOUT);
    set_stage(v, TERMINATING);
  } else if (v->stage == TERMINATING) {
    set_stage(v, KILLING);
  } else {
    fail(v, UV_ETIMEDOUT);
    finish(v);
  }
}

static void
on_drain(uv_timer_t *timer) {
  priv_t *v = timer->data;

  if (uv_now(v->loop) >= v->drain_end) finish(v);
  else check_done(v);
}

static void
on_exit(uv_process_t *process, int64_t exit_code, int term_signal) {
  priv_t *v = process->data;

  v->exited = true;
  v->p->exit_code = exit_code;
  v->p->term_signal = term_signal;
  uv_timer_stop(&v->timer);
  /* Who was to be stopped is stopped with all it started; after an ordinary exit grandchildren are left alone. */
  if (v->stage != RUNNING) signal_group(v, SIGKILL);
  v->drain_end = uv_now(v->loop) + AL_PROC_DRAIN_MS;
  uv_timer_start(&v->drain, on_drain, DRAIN_TICK_MS, DRAIN_TICK_MS);
  check_done(v);
}

static void
on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf) {
  priv_t *v = handle->data;

  (void) suggested;
  *buf = uv_buf_init(v->chunk, sizeof v->chunk);
}

static void
on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
  priv_t *v = stream->data;
  bool is_out = stream == (uv_stream_t *) &v->out;

  if (n == 0) return;
  if (n < 0) {
    if (is_out) v->out_eof = true;
    else v->err_eof = true;
    close_handle(v, stream);
    check_done(v);
    return;
  }
  int rc =
    is_out ? al_buf_append(&v->p->out, buf->base, (size_t) n) : al_tail_append(&v->p->err_tail, buf->base, (size_t) n);
  if (rc == 0) return;
  fail(v, rc);
  if (is_out) v->out_eof = true;
  else v->err_eof = true;
  close_handle(v, stream);
  if (v->exited) finish(v);
  else set_stage(v, KILLING);
}

static void
on_shutdown(uv_shutdown_t *req, int status) {
  (void) status;
  close_handle(req->data, &((priv_t *) req->data)->in);
}

/* The child need not read its input; that it did not is no failure of the run. */
static void
on_written(uv_write_t *req, int status) {
  priv_t *v = req->data;

  if (status || v->finishing || uv_shutdown(&v->shutdown, (uv_stream_t *) &v->in, on_shutdown)) close_handle(v, &v->in);
}

static void
feed(priv_t *v) {
  v->write.data = v->shutdown.data = v;
  if (v->input.len == 0 || uv_write(&v->write, (uv_stream_t *) &v->in, &v->input, 1, on_written))
    close_handle(v, &v->in);
}

static int
init_pipe(priv_t *v, uv_pipe_t *pipe, uv_stdio_container_t *io, int flags) {
  int rc = uv_pipe_init(v->loop, pipe, 0);

  if (rc) return rc;
  pipe->data = v;
  v->handles++;
  io->flags = (uv_stdio_flags) (UV_CREATE_PIPE | flags);
  io->data.stream = (uv_stream_t *) pipe;
  return 0;
}

static void
hand_over(uv_stdio_container_t *io, int fd) {
  io->flags = UV_INHERIT_FD;
  io->data.fd = fd;
}

static int
init_stdio(priv_t *v, const al_proc_opts_t *opts, uv_stdio_container_t io[3]) {
  int rc = 0;

  for (int i = 0; i < 3; i++) io[i].flags = UV_IGNORE; /* /dev/null */
  if (v->in_mode == AL_PROC_FD) hand_over(&io[0], opts->in_fd);
  else if (v->in_mode != AL_PROC_NULL) rc = init_pipe(v, &v->in, &io[0], UV_READABLE_PIPE);
  if (v->out_mode == AL_PROC_FD) hand_over(&io[1], opts->out_fd);
  else if (!rc && v->out_mode != AL_PROC_NULL) rc = init_pipe(v, &v->out, &io[1], UV_WRITABLE_PIPE);
  if (!rc && v->has_err) rc = init_pipe(v, &v->err, &io[2], UV_WRITABLE_PIPE);
  if (!v->has_err) hand_over(&io[2], opts->stderr_fd);
  return rc;
}

/* Arrays that uv_spawn wants non-const; it does not change them. */
static int
spawn(priv_t *v, const al_proc_opts_t *opts) {
  uv_stdio_container_t io[3];
  char **argv, **env;

  int rc = init_stdio(v, opts, io);
  if (rc) return rc;
  memcpy(&argv, &opts->argv, sizeof argv);
  memcpy(&env, &opts->env, sizeof env);
  uv_process_options_t how = {
    .exit_cb = on_exit,
    .file = opts->file,
    .args = argv,
    .env = env,
    .cwd = opts->cwd,
    .flags = UV_PROCESS_DETACHED,
    .stdio_count = 3,
    .stdio = io,
  };
  /* The handle must be closed even when this fails, which also brings the failure to on_done. */
  v->handles++;
  v->process.data = v;
  return uv_spawn(v->loop, &v->process, &how);
}

static bool
opts_valid(const al_proc_opts_t *o) {
  bool piped = o->in == AL_PROC_PIPE || o->out == AL_PROC_PIPE || o->in == AL_PROC_FD || o->out == AL_PROC_FD;

  return o->file && o->file[0] == '/' && o->argv && o->argv[0] && o->env && (o->deadline_ms > 0 || piped) &&
    o->stderr_fd >= -1 && (o->out != AL_PROC_BUFFER || o->out_cap > 0) &&
    (o->input_len == 0 || (o->in == AL_PROC_BUFFER && o->input));
}

static void
run(priv_t *v, const al_proc_opts_t *opts) {
  al_proc_t *p = v->p;

  int rc = spawn(v, opts);
  v->spawned = rc == 0;
  if (!rc) {
    p->ident.pid = v->process.pid;
    /* A child that is a zombie already keeps its number and no more; it cannot be mistaken for another. */
    if (al_plat_ident(v->process.pid, &p->ident)) p->ident = (al_ident_t) {.pid = v->process.pid};
  }
  if (!rc && v->out_mode == AL_PROC_BUFFER) rc = uv_read_start((uv_stream_t *) &v->out, on_alloc, on_read);
  if (!rc && v->has_err) rc = uv_read_start((uv_stream_t *) &v->err, on_alloc, on_read);
  if (rc) {
    if (v->spawned) signal_group(v, SIGKILL);
    v->status = rc;
    finish(v);
    return;
  }
  if (v->in_mode == AL_PROC_BUFFER) feed(v);
  if (v->in_mode == AL_PROC_PIPE) p->in = &v->in;
  if (v->out_mode == AL_PROC_PIPE) p->outp = &v->out;
  if (opts->deadline_ms) uv_timer_start(&v->timer, on_timer, opts->deadline_ms, 0);
}

/* libuv writes to a child's stdin without MSG_NOSIGNAL, so a child that closed it would end us. Node ignores SIGPIPE
 * and other programs handle it as they like; only where it would kill is it blocked, and only on the loop's thread. The
 * child starts with an empty mask all the same. */
static void
survive_sigpipe(void) {
  struct sigaction act;
  sigset_t set;

  if (sigaction(SIGPIPE, NULL, &act) || (act.sa_flags & SA_SIGINFO) || act.sa_handler != SIG_DFL) return;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
}

int
al_proc_start(uv_loop_t *loop, al_proc_t *p, const al_proc_opts_t *opts, al_proc_cb on_done) {
  void *data = p->data;

  *p = (al_proc_t) {.data = data};
  if (!opts_valid(opts)) return -EINVAL;
  al_buf_init(&p->out, opts->out_cap);
  al_tail_init(&p->err_tail, AL_PROC_STDERR_TAIL);
  priv_t *v = al_calloc(1, sizeof *v);
  if (!v) return -ENOMEM;
  if (opts->input_len && !(v->input.base = al_memdup(opts->input, opts->input_len))) {
    al_free(v);
    return -ENOMEM;
  }
  v->input.len = opts->input_len;
  v->p = p;
  v->on_done = on_done;
  v->loop = loop;
  v->in_mode = opts->in;
  v->out_mode = opts->out;
  v->has_err = opts->stderr_fd < 0;
  p->priv = v;
  /* uv_now is as old as the loop's last turn; a deadline counts from here. */
  uv_update_time(loop);
  uv_timer_init(loop, &v->timer);
  uv_timer_init(loop, &v->drain);
  v->timer.data = v->drain.data = v;
  v->handles = 2;
  survive_sigpipe();
  run(v, opts);
  return 0;
}

void
al_proc_stop(al_proc_t *p) {
  if (p->priv) set_stage(p->priv, TERMINATING);
}

void
al_proc_kill(al_proc_t *p) {
  priv_t *v = p->priv;

  if (!v) return;
  v->killed = true;
  if (v->exited) finish(v);
  else set_stage(v, KILLING);
}

void
al_proc_deinit(al_proc_t *p) {
  al_buf_deinit(&p->out);
  al_tail_deinit(&p->err_tail);
}
