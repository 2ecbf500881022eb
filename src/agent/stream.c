/* SPDX-License-Identifier: Apache-2.0 */
/* The table of streams: what each frame of the host may do to one, and how one ends. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define AREA_SIZE (AL_OPEN_MAX + 4096u)
#define AREA_KEEP 16384u /* more than this of an area in use is given back to the kernel at the end */

_Static_assert(AL_WINDOW_BULK <= AL_OPEN_MAX, "one area serves the open request, then stdin");

/* A stream's open request, then its stdin. Only pages that were written to take memory. */
static uint8_t areas[AL_STREAMS_MAX][AREA_SIZE] __attribute__((aligned(4096)));
static bool area_dirty[AL_STREAMS_MAX];

void
al_stream_init(void) {
  /* Else the first byte of an area takes two megabytes, and giving a part back does not return the rest. */
  (void) madvise(areas, sizeof(areas), MADV_NOHUGEPAGE);
}

static size_t
index_of(const al_slot_t *s) {
  return (size_t) (s - al_agent.slots);
}

uint8_t *
al_stream_area(const al_slot_t *s) {
  return areas[index_of(s)];
}

void
al_stream_dirty(const al_slot_t *s) {
  area_dirty[index_of(s)] = true;
}

static al_slot_t *
find(uint32_t id) {
  for (size_t i = 0; i < al_agent.slots_high; i++)
    if (al_agent.slots[i].state != AL_SLOT_FREE && al_agent.slots[i].id == id) return &al_agent.slots[i];
  return NULL;
}

static al_slot_t *
claim(uint32_t id) {
  size_t max = al_agent.attached ? AL_ATTACH_STREAMS : AL_STREAMS_MAX;
  for (size_t i = 0; i < max; i++) {
    al_slot_t *s = &al_agent.slots[i];
    if (s->state != AL_SLOT_FREE) continue;
    *s = (al_slot_t) {.state = AL_SLOT_OPENING, .id = id, .fd = {-1, -1, -1}, .tty = -1,
      .cgroup = {.dir = -1, .events = -1, .memory = -1}};
    if (i >= al_agent.slots_high) al_agent.slots_high = i + 1;
    al_agent.last_id = id;
    return s;
  }
  al_stop_reject(AL_REJECT_PROTOCOL, "more streams than allowed");
}

void
al_stream_widen(al_slot_t *s, int sub) {
  if (s->wide[sub]) return;
  s->wide[sub] = true;
  (void) fcntl(s->fd[sub], F_SETPIPE_SZ, (int) AL_PIPE);
}

void
al_stream_close_fd(al_slot_t *s, int sub) {
  if (s->fd[sub] >= 0) close(s->fd[sub]);
  s->fd[sub] = -1;
  s->ready[sub] = false;
}

static void
release(al_slot_t *s) {
  if (s->state == AL_SLOT_TREE) al_tree_close(s);
  for (int i = 0; i < AL_SUBS; i++) al_stream_close_fd(s, i);
  al_pty_close(s);
  al_cgroup_give(&s->cgroup);
  size_t i = index_of(s);
  if (area_dirty[i]) madvise(areas[i], AREA_SIZE, MADV_DONTNEED);
  area_dirty[i] = false;
  s->state = AL_SLOT_FREE;
  while (al_agent.slots_high > 0 && al_agent.slots[al_agent.slots_high - 1].state == AL_SLOT_FREE)
    al_agent.slots_high--;
}

void
al_stream_finish(al_slot_t *s, uint32_t kind, uint32_t value, const char *text) {
  s->exit_kind = kind;
  s->exit_value = value;
  size_t n = text != NULL ? strnlen(text, sizeof(s->exit_text) - 1) : 0;
  if (n > 0) memcpy(s->exit_text, text, n);
  s->exit_text[n] = 0;
  s->state = AL_SLOT_DONE;
}

void
al_stream_reaped(pid_t pid, int status, uint64_t now) {
  for (size_t i = 0; i < al_agent.slots_high; i++) {
    al_slot_t *s = &al_agent.slots[i];
    if (s->state != AL_SLOT_RUN || s->reaped || s->pid != pid) continue;
    s->reaped = true;
    al_pty_close(s);
    s->exit_ns = now - s->started_ns;
    s->grace_ns = now + (uint64_t) s->hold_ms * 1000000u;
    al_cancel_reaped(s, now);
    al_fail_t *f = al_spawn_fail(i);
    if (f->err != 0) {
      s->exit_kind = AL_EXIT_ERROR;
      s->exit_value = (uint32_t) f->err;
      memcpy(s->exit_text, f->text, sizeof(s->exit_text));
      s->exit_text[sizeof(s->exit_text) - 1] = 0;
    } else {
      s->exit_kind = WIFSIGNALED(status) ? AL_EXIT_SIGNAL : AL_EXIT_CODE;
      s->exit_value = (uint32_t) (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    return;
  }
}

static void
area_append(al_slot_t *s, size_t cap, const uint8_t *p, size_t n) {
  uint8_t *area = al_stream_area(s);
  if (s->area_len == 0) s->area_off = 0;
  if (s->area_off + s->area_len + n > cap) {
    memmove(area, area + s->area_off, s->area_len);
    s->area_off = 0;
  }
  memcpy(area + s->area_off + s->area_len, p, n);
  s->area_len += n;
  if (s->area_off + s->area_len > AREA_KEEP) area_dirty[index_of(s)] = true;
}

/* The reader is gone: what it did not take counts as taken, so that the host never waits for it. */
static void
drop_stdin(al_slot_t *s) {
  s->eaten += (uint32_t) s->area_len;
  s->area_len = 0;
  s->deaf = !s->host_ended;
  al_stream_close_fd(s, AL_SUB_STDIN);
}

void
al_stream_feed(al_slot_t *s) {
  s->ready[AL_SUB_STDIN] = false;
  while (s->area_len > 0) {
    ssize_t n = write(s->fd[AL_SUB_STDIN], al_stream_area(s) + s->area_off, s->area_len);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) {
      drop_stdin(s);
      return;
    }
    s->last_in = al_stream_area(s)[s->area_off + (size_t) n - 1];
    s->area_off += (size_t) n;
    s->area_len -= (size_t) n;
    s->eaten += (uint32_t) n;
    if (s->area_len > 0) al_stream_widen(s, AL_SUB_STDIN);
  }
  if (s->host_ended) al_stream_close_fd(s, AL_SUB_STDIN);
}

/* What the pipe takes at once need not be copied. Returns the bytes that are done with. */
static size_t
feed_directly(al_slot_t *s, const uint8_t *p, size_t n) {
  ssize_t done;
  do done = write(s->fd[AL_SUB_STDIN], p, n);
  while (done < 0 && errno == EINTR);
  if (done < 0 && errno != EAGAIN) {
    s->eaten += (uint32_t) n;
    drop_stdin(s);
    return n;
  }
  if (done <= 0) return 0;
  s->last_in = p[done - 1];
  s->eaten += (uint32_t) done;
  return (size_t) done;
}

static void
on_exec(const al_frame_t *f) {
  al_slot_t *s = NULL;
  if (f->flags & ~AL_FLAG_MORE) al_stop_reject(AL_REJECT_PROTOCOL, "unknown flag of EXEC");
  if (f->stream > al_agent.last_id) s = claim(f->stream);
  else if ((s = find(f->stream)) == NULL || s->state != AL_SLOT_OPENING)
    al_stop_reject(AL_REJECT_PROTOCOL, "EXEC with a stream id that was used before");
  if (s->area_len + f->len > AL_OPEN_MAX) s->too_big = true;
  else area_append(s, AL_OPEN_MAX, f->payload, f->len);
  if (!(f->flags & AL_FLAG_MORE)) al_request_exec(s, index_of(s));
}

static void
on_read(const al_frame_t *f) {
  if (f->flags != 0) al_stop_reject(AL_REJECT_PROTOCOL, "unknown flag of READ or TREE");
  if (f->stream <= al_agent.last_id) al_stop_reject(AL_REJECT_PROTOCOL, "READ or TREE with a stream id that was used before");
  if (f->type == AL_F_TREE) al_tree_open(claim(f->stream), f->payload, f->len);
  else al_read_open(claim(f->stream), f->payload, f->len);
}

static void
on_data(al_slot_t *s, const al_frame_t *f) {
  if (f->flags != AL_SUB_STDIN) al_stop_reject(AL_REJECT_PROTOCOL, "DATA on a sub-stream that is not stdin");
  if (s->state == AL_SLOT_DONE) return;
  if (s->state != AL_SLOT_RUN) al_stop_reject(AL_REJECT_PROTOCOL, "DATA on a stream that takes none");
  if (f->len > s->credit[AL_SUB_STDIN]) al_stop_reject(AL_REJECT_PROTOCOL, "DATA beyond the window");
  if (s->host_ended) al_stop_reject(AL_REJECT_PROTOCOL, "DATA after END");
  s->credit[AL_SUB_STDIN] -= f->len;
  if (s->fd[AL_SUB_STDIN] < 0) {
    s->eaten += f->len;
    return;
  }
  size_t done = s->area_len == 0 ? feed_directly(s, f->payload, f->len) : 0;
  if (s->fd[AL_SUB_STDIN] < 0) return;
  area_append(s, AL_WINDOW_BULK, f->payload + done, f->len - done);
}

int
al_stream_sink(uint32_t stream, uint8_t flags, uint32_t len) {
  const al_slot_t *s = find(stream);
  bool takes = s != NULL && s->state == AL_SLOT_RUN && flags == AL_SUB_STDIN && s->tty < 0 && !s->host_ended &&
    s->area_len == 0 && len <= s->credit[AL_SUB_STDIN];
  return takes ? s->fd[AL_SUB_STDIN] : -1;
}

void
al_stream_sunk(uint32_t stream, uint32_t n) {
  al_slot_t *s = find(stream);
  s->credit[AL_SUB_STDIN] -= n;
  s->eaten += n;
  al_stream_widen(s, AL_SUB_STDIN);
  if (s->bulk) return;
  s->bulk = true;
  s->eaten += AL_WINDOW_BULK - AL_WINDOW_DEFAULT;
}

static void
on_end(al_slot_t *s, const al_frame_t *f) {
  if (f->flags != AL_SUB_STDIN) al_stop_reject(AL_REJECT_PROTOCOL, "END of a sub-stream that is not stdin");
  if (s->state == AL_SLOT_DONE) return;
  if (s->state != AL_SLOT_RUN || s->host_ended)
    al_stop_reject(AL_REJECT_PROTOCOL, "END of a stdin that has ended or is none");
  s->host_ended = true;
  if (s->fd[AL_SUB_STDIN] < 0) return;
  if (s->tty >= 0) {
    uint8_t eof[2];
    size_t n = al_pty_eof(s, eof);
    area_append(s, AREA_SIZE, eof, n);
  }
  al_stream_feed(s);
}

static void
on_credit(al_slot_t *s, const al_frame_t *f) {
  uint32_t n = al_get32(f->payload);
  if (f->flags != AL_SUB_STDOUT && (f->flags != AL_SUB_STDERR || al_slot_is_file(s)))
    al_stop_reject(AL_REJECT_PROTOCOL, "CREDIT for a sub-stream that the guest does not send on");
  if (s->state == AL_SLOT_DONE) return;
  if (n == 0) al_stop_reject(AL_REJECT_PROTOCOL, "CREDIT of nothing");
  if (n > AL_WINDOW_MAX || s->credit[f->flags] + n > AL_WINDOW_MAX)
    al_stop_reject(AL_REJECT_PROTOCOL, "CREDIT beyond the largest window");
  s->credit[f->flags] += n;
}

static void
on_signal(al_slot_t *s, const al_frame_t *f) {
  uint32_t signo = al_get32(f->payload);
  if (signo < 1 || signo > 64 || f->flags > AL_SIGNAL_TREE) al_stop_reject(AL_REJECT_PROTOCOL, "SIGNAL out of range");
  al_cancel_signal(s, (int) signo, f->flags == AL_SIGNAL_TREE);
}

static void
on_cancel(al_slot_t *s, const al_frame_t *f) {
  if (f->flags != 0) al_stop_reject(AL_REJECT_PROTOCOL, "unknown flag of CANCEL");
  s->cancelled = true;
  al_cancel_begin(s, al_get32(f->payload), al_main_now());
}

static void
on_reset(al_slot_t *s) {
  al_cancel_signal(s, SIGKILL, true);
  release(s);
}

void
al_stream_frame(const al_frame_t *f) {
  if (f->stream == 0 || (f->stream & AL_STREAM_FROM_GUEST))
    al_stop_reject(AL_REJECT_PROTOCOL, "a stream's frame with an id that the host may not use");
  if (f->type == AL_F_EXEC) {
    on_exec(f);
    return;
  }
  if (f->type == AL_F_READ || f->type == AL_F_TREE) {
    on_read(f);
    return;
  }
  if (f->stream > al_agent.last_id) al_stop_reject(AL_REJECT_PROTOCOL, "a frame for a stream that was never opened");
  al_slot_t *s = find(f->stream);
  if (s == NULL) return; /* it ended or was reset while the frame was under way */
  if (s->state == AL_SLOT_OPENING && f->type != AL_F_RESET && f->type != AL_F_SIGNAL && f->type != AL_F_RESIZE)
    al_stop_reject(AL_REJECT_PROTOCOL, "a frame for a request that is not whole");
  switch (f->type) {
  case AL_F_DATA: on_data(s, f); break;
  case AL_F_END: on_end(s, f); break;
  case AL_F_CREDIT: on_credit(s, f); break;
  case AL_F_SIGNAL: on_signal(s, f); break;
  case AL_F_RESIZE: al_pty_resize(s, al_get16(f->payload), al_get16(f->payload + 2)); break;
  case AL_F_RESET: on_reset(s); break;
  case AL_F_CANCEL: on_cancel(s, f); break;
  default: al_stop_reject(AL_REJECT_PROTOCOL, "a frame that only the guest may send");
  }
}

static bool
say_exit(const al_slot_t *s) {
  uint8_t p[24 + AL_FAIL_TEXT];
  size_t n = strnlen(s->exit_text, AL_FAIL_TEXT);
  al_put32(p, s->exit_kind);
  al_put32(p + 4, s->exit_value);
  al_put64(p + 8, s->exit_ns);
  al_put64(p + 16, s->sent);
  memcpy(p + 24, s->exit_text, n);
  return al_io_frame(s->id, AL_F_EXIT, s->oom ? AL_EXIT_OOM : 0, p, (uint32_t) (24 + n));
}

static bool
credit_due(const al_slot_t *s, bool with_ack) {
  return s->eaten >= (s->bulk && !with_ack ? AL_CREDIT_LATEST : AL_CREDIT_EVERY);
}

void
al_stream_control(bool with_ack) {
  for (size_t i = 0; i < al_agent.slots_high; i++) {
    al_slot_t *s = &al_agent.slots[i];
    if (s->state == AL_SLOT_RUN) {
      uint8_t p[4];
      if (s->deaf && al_io_frame(s->id, AL_F_END, AL_SUB_STDIN, NULL, 0)) s->deaf = false;
      al_put32(p, s->eaten);
      if (credit_due(s, with_ack) && al_io_frame(s->id, AL_F_CREDIT, AL_SUB_STDIN, p, 4)) {
        s->credit[AL_SUB_STDIN] += s->eaten;
        s->eaten = 0;
      }
      if (s->reaped && s->fd[AL_SUB_STDOUT] < 0 && s->fd[AL_SUB_STDERR] < 0 && al_cancel_over(s)) {
        s->oom = al_cgroup_oom(&s->cgroup);
        s->state = AL_SLOT_DONE;
      }
    }
    if (s->state != AL_SLOT_DONE || !say_exit(s)) continue;
    (void) al_io_flush(); /* the host need not wait for the tidying; a broken channel is found by the next flush */
    release(s);
    al_pipes_ahead();
  }
}
