/* SPDX-License-Identifier: Apache-2.0 */
/* Output of commands and bytes of files, out to the host: one chunk a turn, round robin, within credit and pacing. */
#include "agent.h"
#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* A command that writes without pause is left alone for a moment each time its pipe is empty: it need not wake us for
 * each of its writes then, nor we the host, and that is most of the work at such speeds. Its pipe holds what it writes
 * meanwhile. */
#define CALM_NS 200000u
#define CALM_LEAST AL_CHUNK /* bytes in one turn */
#define WIDE_LEAST 16384    /* so many at once, and a larger pipe is worth its making */

static uint32_t moved[AL_STREAMS_MAX][AL_SUBS]; /* in this turn */
static size_t first; /* who comes first in the next round: slot * 2 + (stderr) */

/* END was said before, or is said here; a READ or TREE ends with its last byte. */
static void
end_sub(al_slot_t *s, int sub) {
  if (!al_io_frame(s->id, AL_F_END, (uint8_t) sub, NULL, 0)) al_stop_reject(AL_REJECT_PROTOCOL, "no room for END");
  al_stream_close_fd(s, sub);
}

static ssize_t
get(al_slot_t *s, int sub, uint8_t *p, uint32_t n) {
  if (n == 0) return 0;
  return s->state == AL_SLOT_TREE ? al_tree_fill(s, p, n) : read(s->fd[sub], p, n);
}

/* One chunk of one sub-stream. Returns false when there is nothing more to have now. */
static bool
send_chunk(al_slot_t *s, int sub, uint32_t room) {
  uint32_t n = room < s->credit[sub] ? room : s->credit[sub];
  if (al_slot_is_file(s) && n > s->size - s->sent) n = (uint32_t) (s->size - s->sent);
  uint32_t spliced = s->state == AL_SLOT_RUN ? al_io_splice(s->id, (uint8_t) sub, s->fd[sub], n) : 0;
  if (spliced > 0) {
    s->credit[sub] -= spliced;
    s->ready[sub] = spliced == n;
    moved[s - al_agent.slots][sub] += spliced;
    al_stream_widen(s, sub);
    return true;
  }
  uint8_t *p = al_io_reserve(n + AL_FRAME_HEADER);
  if (p == NULL) return false;
  ssize_t got = get(s, sub, p, n);
  if (s->state == AL_SLOT_DONE) { /* a tree that could not be read */
    al_stream_close_fd(s, sub);
    return false;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    s->ready[sub] = false;
    return false;
  }
  if (got > 0) {
    al_io_commit(s->id, AL_F_DATA, (uint8_t) sub, (uint32_t) got);
    s->credit[sub] -= (uint32_t) got;
    moved[s - al_agent.slots][sub] += (uint32_t) got;
    if (al_slot_is_file(s)) s->sent += (uint64_t) got;
    else s->ready[sub] = (uint32_t) got == n; /* a short read empties a pipe */
    if (got >= WIDE_LEAST && s->state == AL_SLOT_RUN) al_stream_widen(s, sub);
    return true;
  }
  if (s->state == AL_SLOT_READ && (got < 0 || s->sent < s->size)) {
    al_stream_close_fd(s, sub);
    al_stream_finish(s, AL_EXIT_ERROR, EIO, got < 0 ? "read failed" : "file changed while read");
    return false;
  }
  end_sub(s, sub);
  if (al_slot_is_file(s)) {
    s->exit_ns = al_main_now() - s->started_ns;
    al_stream_finish(s, AL_EXIT_CODE, 0, NULL);
  }
  return false;
}

static bool
may_send(const al_slot_t *s, int sub) {
  if (s->fd[sub] < 0) return false;
  if (al_slot_is_file(s)) return s->credit[sub] > 0 || s->sent == s->size;
  return s->state == AL_SLOT_RUN && s->ready[sub] && s->credit[sub] > 0;
}

static void
calm(void) {
  uint64_t now = 0;
  for (size_t i = 0; i < al_agent.slots_high; i++) {
    al_slot_t *s = &al_agent.slots[i];
    for (int sub = AL_SUB_STDOUT; sub <= AL_SUB_STDERR; sub++) {
      bool much = moved[i][sub] >= CALM_LEAST;
      moved[i][sub] = 0;
      if (!much || s->state != AL_SLOT_RUN || s->reaped || s->ready[sub] || s->fd[sub] < 0) continue;
      if (now == 0) now = al_main_now();
      s->calm_ns[sub] = now + CALM_NS;
    }
  }
}

static bool
pump(uint64_t now) {
  bool ended = false, any = true;
  while (any) {
    any = false;
    size_t count = al_agent.slots_high * 2;
    for (size_t k = 0; k < count; k++) {
      size_t at = (first + k) % count;
      al_slot_t *s = &al_agent.slots[at / 2];
      int sub = at % 2 == 0 ? AL_SUB_STDOUT : AL_SUB_STDERR;
      if (!may_send(s, sub)) continue;
      al_io_sender(s->id);
      uint32_t room = al_io_data_room();
      if (room == 0) {
        first = at;
        return ended;
      }
      if (send_chunk(s, sub, room)) {
        any = true;
        if (s->reaped && !s->cancelled) s->grace_ns = now + (uint64_t) s->hold_ms * 1000000u;
      } else if (s->fd[sub] < 0) {
        ended = true;
      }
    }
  }
  return ended;
}

bool
al_pump_output(uint64_t now) {
  bool ended = pump(now);
  calm();
  return ended;
}

/* The main process has ended but somebody else holds its pipes and has been silent for the whole grace. */
void
al_pump_grace(uint64_t now) {
  for (size_t i = 0; i < al_agent.slots_high; i++) {
    al_slot_t *s = &al_agent.slots[i];
    if (s->state != AL_SLOT_RUN || !s->reaped || now < s->grace_ns) continue;
    for (int sub = AL_SUB_STDOUT; sub <= AL_SUB_STDERR; sub++) {
      int waiting = 0;
      if (s->fd[sub] < 0 || s->cancelled) continue;
      if (ioctl(s->fd[sub], FIONREAD, &waiting) == 0 && waiting > 0)
        s->grace_ns = now + (uint64_t) s->hold_ms * 1000000u; /* no credit yet */
    }
    if (now < s->grace_ns) continue;
    for (int sub = AL_SUB_STDOUT; sub <= AL_SUB_STDERR; sub++)
      if (s->fd[sub] >= 0) end_sub(s, sub);
  }
}
