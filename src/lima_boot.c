/* SPDX-License-Identifier: Apache-2.0 */
/* One boot: runs `limactl start` in the background, follows the host agent's events, polls until the guest's sshd says
 * its banner, or, with a port, until the warden has made its socket. */
#include "lima_int.h"

#include "lines.h"
#include "mem.h"
#include "utf8.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Theory of operation. `limactl start` waits for signs that come late, or not at all in a lane, so nobody waits for it.
 * ha.stdout.log gives the ssh port. The listener on that port must be this lane's QEMU, or on vz its host agent, in whose
 * process Lima has the guest's network; asked once before the first connection (nobody can bind it meanwhile). The network stack of QEMU accepts before the guest
 * listens, so only bytes prove anything. While the guest has no network a try is stuck (its next packet is seconds
 * away), so a new one is made every half second. A try that is closed at once was refused by the guest's kernel: from
 * then on the guest answers, so tries follow quickly, and one that is *not* refused has reached sshd, which may be slow
 * on a busy machine and would only get slower by being asked again: it is waited for. One timer drives it all; its
 * ticks read a local file of a few lines.
 *
 * A lane with a port needs no ssh: once the warden's socket is there the transport waits for the guest by itself. What
 * can go wrong from then on (Lima, QEMU, a guest that hangs) is still told best from here, so the watch goes on until
 * the lane is ready. */

#define TICK_MS 20
#define TRIES 2
#define PACE_MS 500u
#define PACE_SHARE 12 /* the pace is never less than this part of the time since the first try */
#define REFUSED_PACE_MS 60
#define PATIENCE_MS 10000
#define PEER_MS 40
#define CHILD_MS (12u * 60 * 1000)
#define EVENT_LINE_MAX 65536u
#define EVENT_BYTES_MAX (1u << 20)

typedef enum { EVENTS, PEER, BANNER, SOCKET, GUEST, OVER } phase_t;

typedef struct try_s {
  al_boot_t *b;
  uv_tcp_t tcp;
  uv_connect_t connect;
  bool open; /* until its close callback */
  uint64_t began;
  char banner[64], chunk[64];
  size_t len;
} try_t;

struct al_boot_s {
  al_lima_t *l;
  al_lane_spec_t spec;
  al_boot_cb cb;
  void *data;
  al_proc_t proc;
  bool proc_ended, job_runs, tick_open, closing;
  uv_timer_t tick;
  try_t tries[TRIES];
  al_job_t job;
  al_err_t job_err;
  int events_fd;
  uint64_t events_at;
  al_lines_t lines;
  char event_error[300];
  bool exiting, bad_port, refused;
  uint16_t port;
  phase_t phase;
  uint64_t deadline, first_try, next_try; /* next_try: also when the port's owner is asked for again */
  void (*close_cb)(void *data);
  void *close_data;
};

static void
free_if_over(al_boot_t *b) {
  if (!b->closing || !b->proc_ended || b->job_runs || b->tick_open) return;
  for (int i = 0; i < TRIES; i++) {
    if (b->tries[i].open) return;
  }
  void (*cb)(void *) = b->close_cb;
  void *data = b->close_data;
  if (b->events_fd >= 0) close(b->events_fd);
  al_lines_deinit(&b->lines);
  al_proc_deinit(&b->proc);
  al_free(b);
  cb(data);
}

static void
on_tcp_closed(uv_handle_t *h) {
  try_t *t = h->data;
  t->open = false;
  free_if_over(t->b);
}

static void
close_try(try_t *t) {
  if (t->open && !uv_is_closing((uv_handle_t *) &t->tcp)) uv_close((uv_handle_t *) &t->tcp, on_tcp_closed);
}

static void
close_tries(al_boot_t *b) {
  for (int i = 0; i < TRIES; i++) close_try(&b->tries[i]);
}

static void
over(al_boot_t *b, int status, const al_err_t *err) {
  b->phase = OVER;
  uv_timer_stop(&b->tick);
  close_tries(b);
  b->cb(b, b->data, status, err, status == 0 ? b->port : 0);
}

static void
fail(al_boot_t *b, const al_err_t *err) {
  al_err_t copy = *err;
  if (!copy.lane[0]) snprintf(copy.lane, sizeof copy.lane, "%s", b->spec.name);
  over(b, copy.code, &copy);
}

/* ---- why it failed ---- */

/* The start came to nothing: the warden's refusal says most, then Lima's own last words, then the host agent's. */
static void
fail_start(al_boot_t *b, const char *how) {
  al_err_t err = {0};
  char warden[300], agent[300], console[160];
  al__lima_log_message(b->spec.dir, "warden.log", warden, sizeof warden);
  static const char refused[] = "warden: refused: ";
  if (strncmp(warden, refused, sizeof refused - 1) == 0) {
    al_err_set(&err, AL_EWARDEN_REFUSED, "the warden refused to start QEMU: %s", warden + sizeof refused - 1);
    fail(b, &err);
    return;
  }
  al__lima_log_message(b->spec.dir, "ha.stderr.log", agent, sizeof agent);
  const char *event = b->event_error;
  static const char idle[] = "warden: not started: ";
  bool not_started = strncmp(warden, idle, sizeof idle - 1) == 0;
  al__lima_console_line(b->spec.dir, console, sizeof console);
  al_err_set(&err, AL_ESTART_FAILED, "%s%s%s%s%s%s%s%s%s", how, event[0] ? "; Lima's host agent reported: " : "", event,
    not_started ? "; the warden did not start QEMU: " : "", not_started ? warden + sizeof idle - 1 : "",
    console[0] ? "; the guest's last words: " : "", console, agent[0] ? "; its log ends with: " : "", agent);
  fail(b, &err);
}

static void
on_start_ended(al_proc_t *p, int status) {
  al_boot_t *b = p->data;
  b->proc_ended = true;
  if (b->closing) {
    free_if_over(b);
    return;
  }
  al_err_t err = {0};
  if (b->phase != OVER && al__lima_child_result(p, status, AL_ESTART_FAILED, "limactl start", &err) != 0)
    fail_start(b, err.msg);
}

static void
fail_late(al_boot_t *b) {
  static const char *const what[] = {
    "Lima to say the ssh port", "the VM to listen on the ssh port", "ssh in the guest to answer",
    "the warden to make the channel's socket", "the lane agent to start in the guest", ""};
  al_err_t err = {0};
  char agent[200], console[160];
  al__lima_log_message(b->spec.dir, "ha.stderr.log", agent, sizeof agent);
  al__lima_console_line(b->spec.dir, console, sizeof console);
  al_err_set(&err, AL_ESTART_TIMEOUT, "waited in vain for %s%s%s%s%s", what[b->phase],
    console[0] ? "; the guest's last words: " : "", console, agent[0] ? "; the last in Lima's host agent log: " : "",
    agent);
  fail(b, &err);
}

/* ---- the host agent's events ---- */

static int
on_event(void *data, const uint8_t *line, size_t len, bool cut) {
  al_boot_t *b = data;
  al_val_t *v = NULL;
  if (cut || len < 2 || line[0] != '{') return 0;
  int rc = al_json_parse((const char *) line, len, &v, NULL);
  if (rc) return rc == -ENOMEM ? rc : 0; /* no event; nothing follows from it */
  const al_val_t *status = v->kind == AL_MAP ? al_val_get(v, "status") : NULL;
  if (status && status->kind == AL_MAP) {
    int64_t port = 0;
    bool exiting = false;
    if (al_val_get_int(status, "sshLocalPort", 0, 1, 65535, &port, NULL) != 0) b->bad_port = true;
    else if (port && !b->port) b->port = (uint16_t) port;
    if (al_val_get_bool(status, "exiting", false, &exiting, NULL) == 0 && exiting) b->exiting = true;
    const al_val_t *errors = al_val_get(status, "errors");
    if (errors && errors->kind == AL_LIST && errors->len > 0 && errors->items[errors->len - 1]->kind == AL_TEXT) {
      const al_val_t *last = errors->items[errors->len - 1];
      al_utf8_printable(b->event_error, sizeof b->event_error, last->text, last->len, false);
    }
  }
  al_val_free(v);
  return 0;
}

/* 0, or why no event can be read any more. */
static int
read_events(al_boot_t *b) {
  uint8_t buf[8192];
  if (b->events_fd < 0) {
    char path[sizeof b->spec.dir + 24];
    struct stat st;
    snprintf(path, sizeof path, "%s/ha.stdout.log", b->spec.dir);
    b->events_fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (b->events_fd < 0) return al_err_exhausted(-errno) ? -errno : 0; /* else it is not there yet */
    if (fstat(b->events_fd, &st) != 0 || !S_ISREG(st.st_mode)) {
      close(b->events_fd);
      b->events_fd = -1;
      return 0;
    }
  }
  while (b->events_at < EVENT_BYTES_MAX) {
    ssize_t n = pread(b->events_fd, buf, sizeof buf, (off_t) b->events_at);
    if (n <= 0) return 0;
    b->events_at += (uint64_t) n;
    int rc = al_lines_feed(&b->lines, buf, (size_t) n, on_event, b);
    if (rc) return rc;
  }
  return 0;
}

/* ---- whose port it is ---- */

static int
check_peer(al_job_t *job) {
  al_boot_t *b = job->data;
  al_ident_t who;
  b->job_err = (al_err_t) {0};
  int rc = al_plat_tcp_listener(b->port, &who);
  if (rc == -ENOENT) return -EAGAIN; /* not bound yet; on vz it is once the guest has an address */
  if (rc == 0) {
    al__lima_procs_t *procs = al_malloc(sizeof *procs);
    if (!procs) return al_err_set(&b->job_err, -ENOMEM, "out of memory");
    rc = al__lima_scan(b->spec.dir, b->spec.name, procs);
    bool vz = strcmp(b->l->vm_type, "vz") == 0, ours = false;
    if (rc < 0) al_err_set(&b->job_err, rc, "the processes of this user could not be listed: %s", strerror(-rc));
    for (size_t i = 0; rc == 0 && i < procs->count; i++) {
      const al__lima_proc_t *p = &procs->list[i];
      ours |= p->kind == (vz ? AL__PROC_HOSTAGENT : AL__PROC_QEMU) && p->id.pid == who.pid && p->id.start == who.start;
    }
    al_free(procs);
    if (rc < 0) return rc;
    if (!ours && al_plat_ident_alive(&who) == 0) return -EAGAIN; /* it has ended since, and perhaps was ours */
    if (!ours) {
      return al_err_set(&b->job_err, AL_EPEER_UNPROVEN,
        "port %u, which Lima gave for this lane, is held by process %ld (%.200s), not by the lane's %s", b->port,
        (long) who.pid, who.exe, vz ? "host agent" : "QEMU");
    }
  } else if (rc == -EPERM) {
    return al_err_set(&b->job_err, AL_EPEER_UNPROVEN,
      "port %u, which Lima gave for this lane, is held by another user's process", b->port);
  } else if (rc != -ENOSYS) {
    return al_err_set(
      &b->job_err, al_err_exhausted(rc) ? rc : AL_EPEER_UNPROVEN, "it cannot be told who listens on port %u: %s", b->port, strerror(-rc));
  }
  /* Lima reads _config again at every start; what appeared there since the check must not be in this lane. */
  return al__lima_config_check(b->l->home, &b->job_err);
}

static void
peer_checked(al_job_t *job, int status) {
  al_boot_t *b = job->data;
  b->job_runs = false;
  if (b->closing) {
    free_if_over(b);
    return;
  }
  if (b->phase == OVER) return;
  if (status == 0 || status == -EAGAIN) {
    b->phase = status == 0 ? BANNER : PEER;
    b->first_try = uv_now(b->l->loop);
    b->next_try = b->first_try + (status == 0 ? 0 : PEER_MS);
    return;
  }
  if (b->job_err.code == 0) al_err_set(&b->job_err, status, "%s", uv_strerror(status));
  fail(b, &b->job_err);
}

static void
ask_peer(al_boot_t *b) {
  b->phase = PEER;
  b->job_runs = true;
  b->job.data = b;
  al_worker_post(b->l->io, &b->job, check_peer, peer_checked);
}

/* ---- the banner ---- */

static void
on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf) {
  try_t *t = h->data;
  (void) suggested;
  *buf = uv_buf_init(t->chunk, sizeof t->chunk);
}

static void
on_banner(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
  try_t *t = s->data;
  if (t->b->phase != BANNER || n == 0) return;
  if (n < 0) {
    t->b->refused = true;
    t->b->next_try = uv_now(t->b->l->loop) + REFUSED_PACE_MS;
    close_tries(t->b);
    return;
  }
  size_t room = sizeof t->banner - t->len, take = (size_t) n < room ? (size_t) n : room;
  memcpy(t->banner + t->len, buf->base, take);
  t->len += take;
  size_t have = t->len < 4 ? t->len : 4;
  if (memcmp(t->banner, "SSH-", have) != 0) close_try(t);
  else if (have == 4) over(t->b, 0, NULL);
}

static void
on_connected(uv_connect_t *req, int status) {
  try_t *t = req->data;
  if (t->b->phase != BANNER || uv_is_closing((uv_handle_t *) &t->tcp)) return;
  if (status != 0 || uv_read_start((uv_stream_t *) &t->tcp, on_alloc, on_banner) != 0) close_try(t);
}

/* Uses a free place, or frees the one of the older try and comes back at the next tick. */
static void
try_banner(al_boot_t *b, uint64_t now) {
  struct sockaddr_in at = {
    .sin_family = AF_INET, .sin_port = htons(b->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  try_t *t = &b->tries[0];
  for (int i = 1; i < TRIES && t->open; i++) {
    if (!b->tries[i].open || b->tries[i].began < t->began) t = &b->tries[i];
  }
  for (int i = 0; i < TRIES; i++) {
    if (b->refused && b->tries[i].open && now - b->tries[i].began < PATIENCE_MS) return;
  }
  if (t->open) {
    close_try(t);
    return;
  }
  uint64_t pace = (now - b->first_try) / PACE_SHARE;
  b->next_try = now + (pace > PACE_MS ? pace : PACE_MS);
  t->len = 0;
  t->began = now;
  t->b = b;
  if (uv_tcp_init(b->l->loop, &t->tcp) != 0) return;
  t->open = true;
  t->tcp.data = t->connect.data = t;
  if (uv_tcp_connect(&t->connect, &t->tcp, (const struct sockaddr *) &at, on_connected) != 0) close_try(t);
}

static void
fail_events(al_boot_t *b, int rc) {
  al_err_t err = {0};
  al_err_set(&err, rc, "the events of Lima's host agent could not be read: %s", uv_strerror(rc));
  fail(b, &err);
}

static void
look_for_socket(al_boot_t *b) {
  char path[sizeof b->spec.dir + 24];
  struct stat st;
  snprintf(path, sizeof path, "%s/" AL__LIMA_SOCKET, b->spec.dir);
  if (lstat(path, &st) != 0) return;
  b->phase = GUEST;
  b->cb(b, b->data, 0, NULL, 0);
}

static void
on_tick(uv_timer_t *timer) {
  al_boot_t *b = timer->data;
  uint64_t now = uv_now(b->l->loop);
  if (b->phase == OVER) return;
  int rc = read_events(b);
  if (rc) fail_events(b, rc);
  else if (b->exiting) fail_start(b, "Lima's host agent gave up");
  else if (b->bad_port) fail_start(b, "Lima's host agent reported an ssh port that is none");
  else if (now >= b->deadline) fail_late(b);
  else if (b->phase == SOCKET) look_for_socket(b);
  else if (b->phase == EVENTS && b->port) ask_peer(b);
  else if (b->phase == PEER && !b->job_runs && now >= b->next_try) ask_peer(b);
  else if (b->phase == BANNER && now >= b->next_try) try_banner(b, now);
}

int
al_lima_boot(
  al_lima_t *l, const al_lane_spec_t *spec, uint64_t deadline_ms, al_boot_cb on_booted, void *data, al_boot_t **out) {
  al_boot_t *b = al_calloc(1, sizeof *b);
  if (!b) return -ENOMEM;
  b->l = l;
  b->spec = *spec;
  b->cb = on_booted;
  b->data = data;
  b->phase = spec->port ? SOCKET : EVENTS;
  b->events_fd = -1;
  b->proc.data = b;
  al_lines_init(&b->lines, EVENT_LINE_MAX);
  const char *const argv[] = {
    l->limactl, "--tty=false", "--log-format", "json", "start", "--timeout", "10m", b->spec.name, NULL};
  int rc = al__lima_spawn(l, &b->spec, &b->proc, argv, CHILD_MS, 0, on_start_ended);
  if (rc) {
    al_lines_deinit(&b->lines);
    al_free(b);
    return rc;
  }
  uv_update_time(l->loop);
  b->deadline = uv_now(l->loop) + deadline_ms;
  uv_timer_init(l->loop, &b->tick);
  b->tick.data = b;
  b->tick_open = true;
  uv_timer_start(&b->tick, on_tick, TICK_MS, TICK_MS);
  *out = b;
  return 0;
}

uint16_t
al_lima_boot_settle(al_boot_t *b) {
  if (b->phase != OVER) {
    read_events(b);
    b->phase = OVER;
    uv_timer_stop(&b->tick);
  }
  return b->port;
}

static void
on_tick_closed(uv_handle_t *h) {
  al_boot_t *b = h->data;
  b->tick_open = false;
  free_if_over(b);
}

void
al_lima_boot_close(al_boot_t *b, void (*cb)(void *data), void *data) {
  b->closing = true;
  b->phase = OVER;
  b->close_cb = cb;
  b->close_data = data;
  uv_timer_stop(&b->tick);
  close_tries(b);
  if (!b->proc_ended) al_proc_kill(&b->proc);
  uv_close((uv_handle_t *) &b->tick, on_tick_closed);
}
