/* SPDX-License-Identifier: Apache-2.0 */
/* The channel's two buffers: frames in, frames out, and the pacing of the whole channel. */
#include "agent.h"
#include "pacing.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define IN_SIZE (2u * (AL_FRAME_HEADER + AL_FRAME_MAX))
#define OUT_SIZE 262144u
#define OUT_DATA_MAX 65536u /* no DATA is added behind this much: control frames must not wait long */

#define SPLICE_LEAST 16384u /* fewer are copied faster than moved */
#define FRAMED_PLACES 32    /* pages in `framed`: one more than `held` has, which is 16 */

#define CRUMB 32768u

#define ACK_CALM 196608u /* while more comes each moment the host is told this late: each ACK is a packet of the transport's */

#define BULK_LEAST 1024u /* in bulk a call for so few is cheaper than the reading of what lies behind them */

static uint8_t in_buf[IN_SIZE];
static size_t in_off, in_len;
static bool is_port; /* a virtio port gives a page at a time, however much there is */
static uint64_t in_total, in_acked;
/* Of a large DATA frame, what has not come yet: it is handed out, or moved to its command, as it comes. */
static struct { uint32_t stream, left; uint8_t flags; } coming;
static bool no_splice_in;
/* The last frame was handed out in parts: of the next one the header is read alone, so that its bytes can be moved. */
static bool in_bulk;

static uint8_t out_buf[OUT_SIZE];
static size_t out_off, out_len;
static uint64_t out_total, out_acked;
static al_pacing_t pacing = {.most = AL_PACING_DEFAULT, .alone = AL_PACING_ALONE_GUEST, .slow_ns = AL_PACING_SLOW_NS};
/* On the way from a command's pipe into the channel: its bytes, then behind their header. Empty between calls. */
static int held[2] = {-1, -1}, framed[2] = {-1, -1};

/* The rest of a frame goes from the channel into its command's pipe without being copied here, where both are pipes.
 * Returns whether something went. */
static bool
splice_in(void) {
  if (coming.left < (in_bulk ? 1 : SPLICE_LEAST) || in_len > 0 || is_port || no_splice_in) return false;
  int to = al_stream_sink(coming.stream, coming.flags, coming.left);
  if (to < 0) return false;
  ssize_t moved = splice(0, NULL, to, NULL, coming.left, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
  no_splice_in = moved < 0 && errno == EINVAL;
  if (moved <= 0) return false; /* whatever it was, reading finds it again */
  coming.left -= (uint32_t) moved;
  in_total += (uint64_t) moved;
  al_stream_sunk(coming.stream, (uint32_t) moved);
  return true;
}

int
al_io_fill(void) {
  if (splice_in()) return 1;
  if (in_off > 0) {
    memmove(in_buf, in_buf + in_off, in_len);
    in_off = 0;
  }
  size_t most = in_bulk && coming.left == 0 && in_len < AL_FRAME_HEADER ? AL_FRAME_HEADER : sizeof(in_buf);
  ssize_t n;
  bool any = false;
  do {
    n = read(0, in_buf + in_len, most - in_len);
    if (n > 0) in_len += (size_t) n;
    any = any || n > 0;
  } while (is_port && n > 0 && in_len < sizeof(in_buf));
  if (any) return 1; /* what else there is comes up again */
  return n < 0 && (errno == EAGAIN || errno == EINTR) ? -1 : 0;
}

/* Takes `n` bytes off the buffer. */
static void
taken(size_t n) {
  in_off += n;
  in_len -= n;
}

/* What has come of a large DATA frame, as a frame of its own. */
static bool
next_part(al_frame_t *f) {
  uint32_t n = in_len < coming.left ? (uint32_t) in_len : coming.left;
  *f = (al_frame_t) {.stream = coming.stream, .type = AL_F_DATA, .flags = coming.flags, .len = n, .payload = in_buf + in_off};
  coming.left -= n;
  in_total += n;
  taken(n);
  return n > 0;
}

/* Whether the frame that has begun is one that can be handed out in parts; then its header is done with. */
static bool
begin_part(void) {
  const uint8_t *p = in_buf + in_off;
  if (in_len < AL_FRAME_HEADER || is_port || no_splice_in) return false;
  uint32_t stream = al_get32(p), len = al_get32(p + 8);
  in_bulk = p[4] == AL_F_DATA && len >= (in_bulk ? BULK_LEAST : SPLICE_LEAST) && al_stream_sink(stream, p[5], len) >= 0;
  if (!in_bulk) return false;
  coming.stream = stream, coming.left = len, coming.flags = p[5];
  in_total += AL_FRAME_HEADER;
  taken(AL_FRAME_HEADER);
  return true;
}

bool
al_io_next(al_frame_t *f) {
  if (coming.left > 0) return next_part(f);
  const char *why = "malformed frame";
  int n = al_frame_parse(in_buf + in_off, in_len, f, &why);
  if (n == AL_FRAME_MORE) return begin_part() && next_part(f);
  if (n < 0) al_stop_reject(AL_REJECT_PROTOCOL, why);
  taken((size_t) n);
  if (f->type != AL_F_ACK) in_total += (uint64_t) n;
  /* Two of the largest fill the buffer: what comes next is read as in bulk, or it would be like that for ever. */
  if (in_len == 0 && f->type == AL_F_DATA && f->len >= SPLICE_LEAST && !is_port && !no_splice_in)
    in_bulk = al_stream_sink(f->stream, f->flags, f->len) >= 0;
  return true;
}

bool
al_io_bulk(uint64_t *total) {
  *total = in_total;
  return in_bulk;
}

uint8_t *
al_io_reserve(size_t payload) {
  size_t need = AL_FRAME_HEADER + payload;
  if (need > OUT_SIZE - out_len) return NULL;
  if (out_off + out_len + need > OUT_SIZE) {
    memmove(out_buf, out_buf + out_off, out_len);
    out_off = 0;
  }
  return out_buf + out_off + out_len + AL_FRAME_HEADER;
}

void
al_io_commit(uint32_t stream, uint8_t type, uint8_t flags, uint32_t len) {
  al_frame_header(out_buf + out_off + out_len, stream, type, flags, len);
  out_len += AL_FRAME_HEADER + len;
  if (type != AL_F_ACK) out_total += AL_FRAME_HEADER + len;
}

bool
al_io_frame(uint32_t stream, uint8_t type, uint8_t flags, const void *payload, uint32_t len) {
  uint8_t *p = al_io_reserve(len);
  if (p == NULL) return false;
  if (len > 0) memcpy(p, payload, len);
  al_io_commit(stream, type, flags, len);
  return true;
}

/* Crumbs are not worth a frame; but what a host has read and need not acknowledge must not stop us. */
static uint32_t
least(uint32_t most) {
  uint32_t half = (most - AL_ACK_EVERY) / 2;
  return half < CRUMB ? half : CRUMB;
}

void
al_io_sender(uint32_t stream) {
  if (pacing.sender != stream) al_pacing_sent(&pacing, stream, al_main_now());
}

uint32_t
al_io_data_room(void) {
  uint64_t unacked = out_total - out_acked;
  if (out_len >= OUT_DATA_MAX) return 0;
  uint32_t most = pacing.most;
  /* Reading the clock costs an emulated guest much: only where it matters who is alone. */
  if (most < pacing.alone && unacked + AL_FRAME_HEADER + AL_CHUNK > most) most = al_pacing_most(&pacing, al_main_now());
  if (unacked + AL_FRAME_HEADER + least(most) > most) {
    if (pacing.full_ns == 0) al_pacing_full(&pacing, out_total, al_main_now());
    return 0;
  }
  uint64_t room = most - AL_FRAME_HEADER - unacked;
  return room > AL_CHUNK ? AL_CHUNK : (uint32_t) room;
}

void
al_io_acked(uint64_t total) {
  if (total <= out_acked || total > out_total)
    al_stop_reject(AL_REJECT_PROTOCOL, "ACK of bytes that were not sent, or of no more than before");
  out_acked = total;
  if (pacing.full_ns != 0) al_pacing_acked(&pacing, total, al_main_now());
}

bool
al_io_ack(void) {
  uint64_t more = in_total - in_acked;
  if (more < AL_ACK_EVERY || (more < ACK_CALM && al_calm_goes_on())) return false;
  uint8_t p[8];
  al_put64(p, in_total);
  if (!al_io_frame(0, AL_F_ACK, 0, p, sizeof(p))) return false;
  in_acked = in_total;
  return true;
}

/* Where the kernel cannot do it, splice says so or the pipes are missing, and bytes are copied. */
void
al_io_init(bool port) {
  is_port = port;
  if (!port) (void) fcntl(0, F_SETPIPE_SZ, (int) AL_PIPE); /* where it is a pipe, it holds what is on the way */
  int size = FRAMED_PLACES * (int) sysconf(_SC_PAGESIZE);
  if (pipe2(framed, O_CLOEXEC | O_NONBLOCK) != 0) return;
  if (fcntl(framed[0], F_SETPIPE_SZ, size) >= size && pipe2(held, O_CLOEXEC | O_NONBLOCK) == 0) return;
  held[0] = -1;
  close(framed[0]);
  close(framed[1]);
}

/* The header must say how many bytes follow, and whoever has opened the command's pipe anew may take some of them away
 * from us; so they go through a pipe of our own, and from there behind their header into another. So both go at once,
 * sixteen pages being what the kernel sends in one piece, and the host is woken once. What does not go out of that at
 * once is copied, and waits where all frames wait. */
uint32_t
al_io_splice(uint32_t stream, uint8_t flags, int pipe, uint32_t most) {
  if (held[0] < 0 || out_len > 0 || most < SPLICE_LEAST) return 0;
  ssize_t moved = splice(pipe, NULL, held[1], NULL, most, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
  if (moved <= 0) return 0;
  uint32_t n = (uint32_t) moved, left = AL_FRAME_HEADER + n;
  uint8_t header[AL_FRAME_HEADER];
  if (n < SPLICE_LEAST) {
    uint8_t *p = al_io_reserve(n); /* there is room: nothing waits */
    if (p == NULL || read(held[0], p, n) != moved) al_stop_eof(0);
    al_io_commit(stream, AL_F_DATA, flags, n);
    return n;
  }
  al_frame_header(header, stream, AL_F_DATA, flags, n);
  out_total += left;
  if (write(framed[1], header, sizeof(header)) != sizeof(header) ||
      splice(held[0], NULL, framed[1], NULL, n, SPLICE_F_NONBLOCK | SPLICE_F_MOVE) != moved)
    al_stop_eof(0); /* it was empty, and has more places than the other */
  while (left > 0 && (moved = splice(framed[0], NULL, 1, NULL, left, SPLICE_F_NONBLOCK | SPLICE_F_MOVE)) > 0)
    left -= (uint32_t) moved; /* a broken channel is found when the rest is written */
  out_off = 0;
  while (left > 0) {
    moved = read(framed[0], out_buf + out_len, left);
    if (moved <= 0) al_stop_eof(0);
    out_len += (size_t) moved;
    left -= (uint32_t) moved;
  }
  return n;
}

bool
al_io_pending(void) {
  return out_len > 0;
}

bool
al_io_flush(void) {
  while (out_len > 0) {
    ssize_t n = write(1, out_buf + out_off, out_len);
    if (n == 0) return true; /* a virtio port with a full queue: poll says when */
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    out_off += (size_t) n;
    out_len -= (size_t) n;
  }
  out_off = 0;
  return true;
}

void
al_io_drain(int ms) {
  uint64_t deadline = al_main_now() + (uint64_t) ms * 1000000u;
  while (al_io_flush() && out_len > 0) {
    uint64_t now = al_main_now();
    if (now >= deadline) return;
    struct pollfd p = {.fd = 1, .events = POLLOUT};
    poll(&p, 1, (int) ((deadline - now) / 1000000u) + 1);
    if (p.revents & (POLLERR | POLLNVAL)) return;
  }
}
