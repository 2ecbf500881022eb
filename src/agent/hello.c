/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake: nothing but HELLO is accepted first, and the answer proves that we hold the lane's secret. */
#include "agent.h"
#include "sha256.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int
hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

static bool
read_secret(uint8_t out[32]) {
  if (al_agent.secret_path == NULL) return false;
  int fd = open(al_agent.secret_path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return false;
  char text[66];
  size_t len = 0;
  ssize_t n;
  while (len < sizeof(text) && (n = read(fd, text + len, sizeof(text) - len)) > 0) len += (size_t) n;
  close(fd);
  if (len != 64 && !(len == 65 && text[64] == '\n')) return false;
  for (size_t i = 0; i < 32; i++) {
    int hi = hex_digit(text[2 * i]), lo = hex_digit(text[2 * i + 1]);
    if (hi < 0 || lo < 0) return false;
    out[i] = (uint8_t) (hi << 4 | lo);
  }
  return true;
}

static void
random_bytes(uint8_t *p, size_t n) {
  while (n > 0) {
    long got = syscall(SYS_getrandom, p, n, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) al_stop_reject(AL_REJECT_SETUP, "the guest has no random numbers");
    p += got;
    n -= (size_t) got;
  }
}

static void
answer(const al_frame_t *f) {
  if (f->type != AL_F_HELLO || f->stream != 0 || f->flags != 0 || memcmp(f->payload, AL_PROTO_MAGIC, 4) != 0)
    al_stop_reject(AL_REJECT_PEER, "expected HELLO: the peer is not an Agent Lane host");
  uint16_t low = al_get16(f->payload + 4), high = al_get16(f->payload + 6);
  if (low > high || low > AL_PROTO_VERSION || high < AL_PROTO_VERSION)
    al_stop_reject(AL_REJECT_VERSION, "this agent speaks protocol version 1 only");
  if (al_agent.attached) al_attach_join();
  uint8_t secret[32];
  if (!read_secret(secret)) al_stop_reject(AL_REJECT_SETUP, "the lane's secret is missing or malformed in the guest");

  const size_t label = sizeof(AL_PROOF_LABEL) - 1, build = sizeof(AL_AGENT_BUILD) - 1;
  uint8_t proof[sizeof(AL_PROOF_LABEL) - 1 + 64], out[74 + sizeof(AL_AGENT_BUILD)];
  memcpy(out, AL_PROTO_MAGIC, 4);
  al_put16(out + 4, AL_PROTO_VERSION);
  al_put32(out + 6, 0);
  random_bytes(out + 10, 32);
  memcpy(proof, AL_PROOF_LABEL, label);
  memcpy(proof + label, f->payload + 8, 32);
  memcpy(proof + label + 32, out + 10, 32);
  al_hmac_sha256(secret, sizeof(secret), proof, sizeof(proof), out + 42);
  memcpy(out + 74, AL_AGENT_BUILD, build);
  explicit_bzero(secret, sizeof(secret));
  al_io_frame(0, AL_F_HELLO_ACK, 0, out, (uint32_t) (74 + build));
}

void
al_hello_wait(void) {
  uint64_t deadline = al_main_now() + (uint64_t) AL_HELLO_MS * 1000000u;
  al_frame_t f;
  while (!al_io_next(&f)) {
    uint64_t now = al_main_now();
    if (now >= deadline) al_stop_reject(AL_REJECT_TIMEOUT, "no HELLO within 30 s");
    struct pollfd p = {.fd = 0, .events = POLLIN};
    if (poll(&p, 1, (int) ((deadline - now) / 1000000u) + 1) <= 0) continue;
    if (al_io_fill() == 0) al_stop_eof(0);
  }
  answer(&f);
  if (!al_io_flush()) al_stop_eof(1);
}
