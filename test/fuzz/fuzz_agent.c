/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of the guest's agent: arbitrary bytes and frames of a host, cut anywhere, while its commands do what they like.
 * It may reject, and says why; what it says is well-formed, and it keeps no descriptor of an ended stream. */
#include "fuzz.h"
#include "sim.h"

#define OPS_MAX 400

static uint64_t acked, taken; /* taken: bytes of frames but ACK that came out */
static uint8_t out[1 << 19];
static size_t out_len;
static uint32_t last_id;

static void
plan_of(uint32_t key, sim_plan_t *p) {
  *p = (sim_plan_t) {.out = {(key % 7) * 9000 + key % 5, key % 3 * 70000}, .in_limit = key & 1 ? 5000 : UINT64_MAX,
    .ignores_term = key & 2, .holder = key % 11 == 0, .endless = key % 13 == 0, .shrinks = key & 4, .exit_code = (int) (key & 255)};
}

static void
frame(uint32_t stream, uint8_t type, uint8_t flags, const void *p, size_t n, size_t cut) {
  uint8_t bytes[AL_FRAME_HEADER + 4096];
  if (n > 4096) n = 4096;
  al_frame_header(bytes, stream, type, flags, (uint32_t) n);
  if (n > 0) memcpy(bytes + AL_FRAME_HEADER, p, n);
  n += AL_FRAME_HEADER;
  size_t first = cut < n ? cut : n;
  sim_agent_give(bytes, first);
  if (first < n) sim_agent_turn();
  sim_agent_give(bytes + first, n - first);
}

/* What came out so far, frame by frame. */
static void
hear(bool acknowledge) {
  out_len += sim_agent_get(out + out_len, sizeof out - out_len);
  size_t at = 0;
  for (;;) {
    al_frame_t f;
    const char *why = "";
    int n = al_frame_parse(out + at, out_len - at, &f, &why);
    MUST(n >= 0, why);
    if (n == 0) break;
    at += (size_t) n;
    if (f.type != AL_F_ACK) taken += (uint64_t) n;
    MUST((f.type < AL_F_EXEC) == (f.stream == 0), "a frame on the wrong stream");
    MUST(f.type != AL_F_DATA || f.flags == 1 || f.flags == 2, "data on a wrong sub-stream");
  }
  memmove(out, out + at, out_len -= at);
  if (!acknowledge || taken == acked) return;
  uint8_t p[8];
  al_put64(p, acked = taken);
  frame(0, AL_F_ACK, 0, p, 8, 0);
}

/* A request that the agent takes, but for what the input changes in it. */
static void
request(fuzz_in_t *in, uint32_t what) {
  uint8_t p[600], number[16], flags[4];
  size_t n = 0, digits = (size_t) snprintf((char *) number, sizeof number, "%u", fuzz_take(in, 1));
  al_put32(flags, what >> 4 & 7);
  if (what & 1) {
    char path[24];
    int len = snprintf(path, sizeof path, what & 32 ? "/d/%s" : "/f/%s", (const char *) number);
    n += al_tlv_put(p + n, sizeof p - n, AL_TLV_PATH, path, (uint32_t) len);
  } else {
    n += al_tlv_put(p + n, sizeof p - n, AL_TLV_FLAGS, flags, 4);
    n += al_tlv_put(p + n, sizeof p - n, AL_TLV_ARG, "command", 7);
    n += al_tlv_put(p + n, sizeof p - n, AL_TLV_ENV, "A=b", 3);
    n += al_tlv_put(p + n, sizeof p - n, AL_TLV_ARG, number, (uint32_t) digits);
  }
  for (uint32_t k = what & 8 ? fuzz_take(in, 1) % 4 : 0; k > 0; k--) p[fuzz_take(in, 1) % n] = (uint8_t) fuzz_take(in, 1);
  uint8_t type = !(what & 1) ? AL_F_EXEC : what & 32 ? AL_F_TREE : AL_F_READ;
  if (what & 2) {
    frame(++last_id, type, AL_FLAG_MORE & (uint8_t) ~what, p, n / 2, 5);
    frame(last_id, type, 0, p + n / 2, n - n / 2, 0);
  } else {
    frame(++last_id, type, 0, p, n, what & 4 ? 13 : 0);
  }
}

static void
op(fuzz_in_t *in) {
  static const uint8_t types[] = {AL_F_DATA, AL_F_END, AL_F_CREDIT, AL_F_SIGNAL, AL_F_RESIZE, AL_F_RESET, AL_F_CANCEL, AL_F_PING,
    AL_F_CONFIG, AL_F_ACK, AL_F_EXEC, AL_F_READ, AL_F_REJECT, AL_F_CLOCK, AL_F_TREE};
  static const size_t sizes[] = {0, 0, 4, 4, 4, 0, 4, 8, 0, 8, 0, 0, 5, 8, 0};
  uint32_t what = fuzz_take(in, 1);
  switch (what % 8) {
    case 0: {
      size_t n = fuzz_take(in, what & 64 ? 2 : 1);
      if (n > in->n) n = in->n;
      sim_agent_give(in->p, n);
      in->p += n, in->n -= n;
      break;
    }
    case 1: request(in, fuzz_take(in, 1)); break;
    case 2: sim_now += (uint64_t) fuzz_take(in, 2) * 1000000u; break;
    case 3: sim_agent_commands(); break;
    case 4: hear(what & 16); break;
    case 5:
    case 6: {
      uint8_t kind = (uint8_t) fuzz_take(in, 1), p[4096] = {0}, type = types[kind % sizeof types];
      uint32_t stream = type < AL_F_EXEC ? 0 : last_id - (kind & 16 ? fuzz_take(in, 1) % 8 : 0);
      size_t n = sizes[kind % sizeof types];
      if (n == 0 && type != AL_F_END && type != AL_F_RESET) n = fuzz_take(in, kind & 32 ? 2 : 1) % 4096;
      for (size_t i = 0; i < n && i < 24; i++) p[i] = (uint8_t) fuzz_take(in, 1);
      /* Small numbers are the legal ones. */
      if (type == AL_F_CREDIT && (kind & 64)) p[3] = 0, p[2] &= 7;
      if (type == AL_F_SIGNAL && (kind & 64)) p[1] = p[2] = p[3] = 0, p[0] &= 63;
      frame(stream, type, type == AL_F_CREDIT || type == AL_F_DATA ? (uint8_t) (what >> 5) & 3 : 0, p, n, kind & 128 ? 7 : 0);
      break;
    }
    default: break;
  }
  sim_agent_turn();
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_in_t in = {data, size};
  uint8_t hello[40] = AL_PROTO_MAGIC;
  sim_seed = fuzz_take(&in, 1);
  sim_uv_reset();
  sim_any_stdin = true;
  sim_agent_reset(1 << 18, plan_of);
  acked = taken = 0;
  out_len = last_id = 0;
  if (sim_seed & 1) {
    al_put16(hello + 4, 1);
    al_put16(hello + 6, AL_PROTO_VERSION);
    frame(0, AL_F_HELLO, 0, hello, sizeof hello, 20);
    sim_agent_turn();
    hear(true);
    MUST(taken > 0, "the right HELLO is refused");
  }
  for (unsigned i = 0; i < OPS_MAX && in.n > 0; i++) op(&in);
  hear(false);
  MUST(!sim_broken, sim_broken);
  MUST(sim_agent_code <= 5 && (!sim_agent_code || sim_agent_text[0]), "rejected without a reason");
  sim_agent_hang_up();
  for (int i = 0; i < 3; i++) sim_agent_turn();
  MUST(!sim_agent_turn(), "it outlives its channel");
  MUST(!sim_broken, sim_broken);
  return 0;
}
