/* SPDX-License-Identifier: Apache-2.0 */
/* The channel's two buffers: frames in, frames out, and the pacing of the whole channel. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define IN_SIZE (2u * (AL_FRAME_HEADER + AL_FRAME_MAX))
#define OUT_SIZE 262144u
#define OUT_DATA_MAX 65536u /* no DATA is added behind this much: control frames must not wait long */

#define SPLICE_LEAST 16384u /* fewer are copied faster than moved */

static uint8_t in_buf[IN_SIZE];
static size_t in_off, in_len;
static uint64_t in_total, in_acked;

static uint8_t out_buf[OUT_SIZE];
static size_t out_off, out_len;
static uint64_t out_total, out_acked;
static int held[2] = {-1, -1}; /* on the way from a command's pipe into the channel; empty between calls */

int
al_io_fill(void) {
  if (in_off > 0) {
    memmove(in_buf, in_buf + in_off, in_len);
    in_off = 0;
  }
  ssize_t n = read(0, in_buf + in_len, sizeof(in_buf) - in_len);
  if (n > 0) {
    in_len += (size_t) n;
    return 1;
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
  return 0;
}

bool
al_io_next(al_frame_t *f) {
  const char *why = "malformed frame";
  int n = al_frame_parse(in_buf + in_off, in_len, f, &why);
  if (n == AL_FRAME_MORE) return false;
  if (n < 0) al_stop_reject(AL_REJECT_PROTOCOL, why);
  in_off += (size_t) n;
  in_len -= (size_t) n;
  if (f->type != AL_F_ACK) in_total += (uint64_t) n;
  return true;
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

uint32_t
al_io_data_room(void) {
  uint64_t unacked = out_total - out_acked;
  if (out_len >= OUT_DATA_MAX || unacked + AL_FRAME_HEADER + AL_PACING_ROOM > AL_PACING_MAX) return 0;
  uint64_t room = AL_PACING_MAX - AL_FRAME_HEADER - unacked;
  return room > AL_CHUNK ? AL_CHUNK : (uint32_t) room;
}

void
al_io_acked(uint64_t total) {
  if (total <= out_acked || total > out_total)
    al_stop_reject(AL_REJECT_PROTOCOL, "ACK of bytes that were not sent, or of no more than before");
  out_acked = total;
}

void
al_io_ack(void) {
  if (in_total - in_acked < AL_ACK_EVERY) return;
  uint8_t p[8];
  al_put64(p, in_total);
  if (al_io_frame(0, AL_F_ACK, 0, p, sizeof(p))) in_acked = in_total;
}

/* Where the kernel cannot do it, splice says so or the pipe is missing, and bytes are copied. */
void
al_io_init(void) {
  if (pipe2(held, O_CLOEXEC | O_NONBLOCK) != 0) held[0] = held[1] = -1;
  else (void) fcntl(held[0], F_SETPIPE_SZ, (int) AL_PIPE);
}

/* The header must say how many bytes follow, and whoever has opened the command's pipe anew may take some of them away
 * from us; so they go through a pipe of our own. What does not go out of that at once is copied, and waits where all
 * frames wait. */
uint32_t
al_io_splice(uint32_t stream, uint8_t flags, int pipe, uint32_t most) {
  int waiting = 0;
  if (held[0] < 0 || out_len > 0 || most < SPLICE_LEAST) return 0;
  if (ioctl(pipe, FIONREAD, &waiting) != 0 || waiting < (int) SPLICE_LEAST) return 0;
  ssize_t moved = splice(pipe, NULL, held[1], NULL, most, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
  if (moved <= 0) return 0;
  uint32_t n = (uint32_t) moved, left = n;
  al_frame_header(out_buf, stream, AL_F_DATA, flags, n);
  out_off = 0;
  out_len = AL_FRAME_HEADER;
  out_total += AL_FRAME_HEADER + n;
  (void) al_io_flush(); /* a broken channel is found when the rest is written */
  while (left > 0 && out_len == 0) {
    moved = splice(held[0], NULL, 1, NULL, left, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    if (moved <= 0) break;
    left -= (uint32_t) moved;
  }
  while (left > 0) {
    moved = read(held[0], out_buf + out_off + out_len, left);
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
