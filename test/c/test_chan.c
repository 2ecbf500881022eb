/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the channel against a scripted peer: the proof, every violation, what is dropped, pacing, credits, liveness, the end. */
#include "chan_test.h"
#include "sha256.h"
#include <poll.h>

/* One stream as its user sees it. */
typedef struct user_s {
  al_stream_t *s;
  size_t got[3];
  unsigned ends[3], drains;
  bool done, consume;
  al_exit_t exit;
  void (*act)(struct user_s *u); /* done once, in the next callback */
  rig_t *r;
} user_t;

static void
act(user_t *u) {
  void (*f)(user_t *) = u->act;
  u->act = NULL;
  if (f) f(u);
}

static void
on_data(al_stream_t *s, void *data, int sub, const uint8_t *p, size_t n) {
  user_t *u = data;
  (void) p;
  assert_false(u->done);
  u->got[sub] += n;
  if (u->consume) al_stream_consumed(s, sub, n);
  act(u);
}

static void
on_end(al_stream_t *s, void *data, int sub) {
  (void) s;
  ((user_t *) data)->ends[sub]++;
}

static void
on_drain(al_stream_t *s, void *data) {
  (void) s;
  ((user_t *) data)->drains++;
}

static void
on_exit_(al_stream_t *s, void *data, const al_exit_t *x) {
  user_t *u = data;
  assert_false(u->done);
  assert_false(u->r->closed);
  u->done = true;
  u->exit = *x;
  act(u);
  al_stream_consumed(s, 1, 0); /* whatever is called on it now does nothing */
  assert_int_equal(al_stream_write(s, "x", 1), 0);
  al_stream_reset(s, NULL);
}

static const al_stream_cbs_t cbs = { .on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_exit = on_exit_ };

static void
put(rig_t *r, uint32_t stream, uint8_t type, uint8_t flags, const void *p, size_t n) {
  uint8_t frame[AL_FRAME_HEADER + AL_FRAME_MAX] = { 0 };
  al_frame_header(frame, stream, type, flags, (uint32_t) n);
  if (p && n) memcpy(frame + AL_FRAME_HEADER, p, n);
  for (size_t at = 0; at < AL_FRAME_HEADER + n;) {
    ssize_t k = send(r->peer, frame + at, AL_FRAME_HEADER + n - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (k > 0) at += (size_t) k;
    else if (r->closed || errno != EAGAIN) return;
    else rig_idle(r, 1);
  }
}

static void
put32(rig_t *r, uint32_t stream, uint8_t type, uint8_t flags, uint32_t v) {
  uint8_t p[4];
  al_put32(p, v);
  put(r, stream, type, flags, p, sizeof p);
}

static void
put64(rig_t *r, uint8_t type, uint64_t v) {
  uint8_t p[8];
  al_put64(p, v);
  put(r, 0, type, 0, p, sizeof p);
}

static void
put_exit(rig_t *r, uint32_t stream, uint32_t kind, uint32_t value, const char *text) {
  uint8_t p[1048] = { 0 };
  al_put32(p, kind);
  al_put32(p + 4, value);
  al_put64(p + 8, 77);
  memcpy(p + 24, text, strlen(text));
  put(r, stream, AL_F_EXIT, 0, p, 24 + strlen(text));
}

/* What the host has written, frame by frame. */
typedef struct got_s {
  uint8_t buf[1 << 20];
  size_t len, at;
  uint64_t counted; /* bytes of frames other than ACK, as a guest counts them */
} got_t;

static got_t got;

static void
fill(rig_t *r) {
  rig_idle(r, 2);
  if (got.at > 0) {
    memmove(got.buf, got.buf + got.at, got.len - got.at);
    got.len -= got.at;
    got.at = 0;
  }
  ssize_t n = recv(r->peer, got.buf + got.len, sizeof got.buf - got.len, MSG_DONTWAIT);
  if (n > 0) got.len += (size_t) n;
}

/* The next frame within `ms`, or false. */
static bool
next(rig_t *r, al_frame_t *f, int ms) {
  const char *why = NULL;
  for (uint64_t until = uv_hrtime() / 1000000 + (uint64_t) ms;;) {
    int n = al_frame_parse(got.buf + got.at, got.len - got.at, f, &why);
    if (n < 0) fail_msg("the host wrote a bad frame: %s", why);
    if (n > 0) {
      got.at += (size_t) n;
      if (f->type != AL_F_ACK) got.counted += (uint64_t) n;
      return true;
    }
    if (uv_hrtime() / 1000000 >= until) return false;
    fill(r);
  }
}

static void
expect(rig_t *r, al_frame_t *f, uint8_t type) {
  if (!next(r, f, 2000)) fail_msg("no %s came", al_frame_name(type));
  if (f->type != type) fail_msg("expected %s, got %s", al_frame_name(type), al_frame_name(f->type));
}

static void
peer_start(rig_t *r, const al_chan_opts_t *o) {
  int sv[2];
  memset(r, 0, sizeof *r);
  memset(&got, 0, sizeof got);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
  r->peer = sv[1];
  rig_base(r, sv[0]);
  rig_open(r, o);
}

static void
answer(rig_t *r, const al_frame_t *hello, const char *magic, uint16_t version, bool right) {
  uint8_t p[74 + 5], text[128];
  size_t label = strlen(AL_PROOF_LABEL);
  memset(p, 0, sizeof p);
  memcpy(p, magic, 4);
  al_put16(p + 4, version);
  memset(p + 10, 7, 32);
  memcpy(text, AL_PROOF_LABEL, label);
  memcpy(text + label, hello->payload + 8, 32);
  memcpy(text + label + 32, p + 10, 32);
  al_hmac_sha256(test_secret, 32, text, label + 64, p + 42);
  if (!right) p[73] ^= 1;
  memcpy(p + 74, "build", 5);
  put(r, 0, AL_F_HELLO_ACK, 0, p, sizeof p);
}

static void
peer_ready(rig_t *r, const al_chan_opts_t *o) {
  al_frame_t f;
  peer_start(r, o);
  expect(r, &f, AL_F_HELLO);
  answer(r, &f, AL_PROTO_MAGIC, AL_PROTO_VERSION, true);
  rig_wait(r, &r->ready, 2000);
}

static void
open_exec(rig_t *r, user_t *u, bool with_stdin) {
  const char *argv[] = { "cmd", NULL }, *env[] = { "A=b", NULL };
  al_exec_req_t req = { .argv = argv, .env = env, .cwd = "/", .with_stdin = with_stdin };
  al_err_t err = { 0 };
  *u = (user_t){ .r = r, .consume = true };
  assert_int_equal(al_stream_exec(r->chan, &req, &cbs, u, &u->s, &err), 0);
}

static void
test_chan_nothing_but_hello_before_the_proof(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u = { .r = &r };
  al_err_t err = { 0 };
  const char *argv[] = { "x", NULL };
  al_exec_req_t req = { .argv = argv };
  peer_start(&r, NULL);
  assert_int_equal(al_stream_exec(r.chan, &req, &cbs, &u, &u.s, &err), AL_ECHANNEL_CLOSED);
  assert_int_equal(al_chan_config(r.chan, "agent", "/w", 0, NULL, NULL), -EINVAL);
  assert_int_equal(al_chan_ping(r.chan, NULL, NULL), AL_ECHANNEL_CLOSED);
  expect(&r, &f, AL_F_HELLO);
  assert_memory_equal(f.payload, AL_PROTO_MAGIC, 4);
  assert_false(next(&r, &f, 100));
  assert_false(r.ready);
  rig_end(&r);
}

static void
unproven(const char *magic, uint16_t version, bool right, int code) {
  rig_t r;
  al_frame_t f;
  peer_start(&r, NULL);
  expect(&r, &f, AL_F_HELLO);
  answer(&r, &f, magic, version, right);
  rig_wait(&r, &r.closed, 2000);
  assert_int_equal(r.why.code, code);
  assert_false(r.ready);
  fill(&r);
  assert_int_equal(got.len, got.at); /* and nothing more was written */
  rig_end(&r);
}

static void
test_chan_proof_must_hold(void **state) {
  (void) state;
  unproven("ALCX", AL_PROTO_VERSION, true, AL_EPEER_UNPROVEN);
  unproven(AL_PROTO_MAGIC, AL_PROTO_VERSION + 1, true, AL_EPEER_INCOMPATIBLE);
  unproven(AL_PROTO_MAGIC, 0, true, AL_EPEER_INCOMPATIBLE);
  unproven(AL_PROTO_MAGIC, AL_PROTO_VERSION, false, AL_EPEER_UNPROVEN);
}

static void
before_proof(const void *bytes, size_t n, bool frames, int code) {
  rig_t r;
  peer_start(&r, NULL);
  rig_idle(&r, 5);
  if (!frames) assert_int_equal(send(r.peer, bytes, n, 0), (ssize_t) n);
  else put(&r, n == 40 ? 0 : 1, n == 40 ? AL_F_HELLO : AL_F_DATA, 0, bytes, n);
  rig_wait(&r, &r.closed, 2000);
  assert_int_equal(r.why.code, code);
  rig_end(&r);
}

static void
test_chan_other_talk_before_the_proof_is_unproven(void **state) {
  (void) state;
  before_proof("Last login: Sun Nov 29 from 10.0.2.2\n", 36, false, AL_EPEER_UNPROVEN);
  before_proof("ALCH\1\0\1\0..................................", 40, true, AL_EPEER_UNPROVEN); /* an echo */
  before_proof("data", 4, true, AL_EPEER_UNPROVEN);
}

static void
test_chan_handshake_has_a_deadline_and_may_be_refused(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  peer_start(&r, &(al_chan_opts_t){ .handshake_ms = 60 });
  rig_wait(&r, &r.closed, 1000);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  assert_non_null(strstr(r.why.msg, "60 ms"));
  rig_end(&r);
  for (uint32_t code = 2; code <= 4; code += 2) {
    uint8_t p[20];
    peer_start(&r, NULL);
    expect(&r, &f, AL_F_HELLO);
    al_put32(p, code);
    memcpy(p + 4, "not \033[1mtoday", 13);
    put(&r, 0, AL_F_REJECT, 0, p, 17);
    rig_wait(&r, &r.closed, 1000);
    assert_int_equal(r.why.code, code == 2 ? AL_EPEER_INCOMPATIBLE : AL_ECHANNEL_CLOSED);
    assert_non_null(strstr(r.why.msg, "not ?[1mtoday"));
    rig_end(&r);
  }
  peer_start(&r, NULL);
  shutdown(r.peer, SHUT_WR);
  rig_wait(&r, &r.closed, 1000);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  rig_end(&r);
}

/* Each is sent after the handshake, with an EXEC (stream 1, stdin) and a READ (stream 2) open and everything acknowledged. */
static void v_never_opened(rig_t *r) { put(r, 3, AL_F_DATA, 1, "x", 1); }
static void v_never_opened_exit(rig_t *r) { put_exit(r, 9, 0, 0, ""); }
static void v_from_guest_bit(rig_t *r) { put(r, 0x80000001u, AL_F_DATA, 1, "x", 1); }
static void v_stream_zero(rig_t *r) { put(r, 0, AL_F_DATA, 1, "x", 1); }
static void v_data_on_stdin(rig_t *r) { put(r, 1, AL_F_DATA, 0, "x", 1); }
static void v_data_on_sub_3(rig_t *r) { put(r, 1, AL_F_DATA, 3, "x", 1); }
static void v_read_has_no_stderr(rig_t *r) { put(r, 2, AL_F_DATA, 2, "x", 1); }
static void v_read_has_no_stdin(rig_t *r) { put(r, 2, AL_F_END, 0, NULL, 0); }
static void v_end_twice(rig_t *r) { for (int i = 0; i < 2; i++) put(r, 1, AL_F_END, 1, NULL, 0); }
static void v_stdin_end_twice(rig_t *r) { for (int i = 0; i < 2; i++) put(r, 1, AL_F_END, 0, NULL, 0); }
static void v_end_on_sub_9(rig_t *r) { put(r, 1, AL_F_END, 9, NULL, 0); }
static void v_data_after_end(rig_t *r) { put(r, 1, AL_F_END, 2, NULL, 0); put(r, 1, AL_F_DATA, 2, "x", 1); }
static void v_window(rig_t *r) { for (int i = 0; i < 4; i++) put(r, 2, AL_F_DATA, 1, NULL, 65536); put(r, 2, AL_F_DATA, 1, "x", 1); }
static void v_window_at_once(rig_t *r) { for (int i = 0; i < 5; i++) put(r, 2, AL_F_DATA, 1, NULL, 65000); }
static void v_credit_giant(rig_t *r) { put32(r, 1, AL_F_CREDIT, 0, AL_WINDOW_MAX - AL_WINDOW_DEFAULT + 1); }
static void v_credit_max(rig_t *r) { put32(r, 1, AL_F_CREDIT, 0, 0xffffffffu); }
static void v_credit_sum(rig_t *r) { for (int i = 0; i < 4; i++) put32(r, 1, AL_F_CREDIT, 0, 262144); }
static void v_credit_wrong_sub(rig_t *r) { put32(r, 1, AL_F_CREDIT, 1, 1); }
static void v_credit_for_read(rig_t *r) { put32(r, 2, AL_F_CREDIT, 0, 1); }
static void v_exit_kind(rig_t *r) { put_exit(r, 1, 3, 0, ""); }
static void v_exit_code(rig_t *r) { put_exit(r, 1, AL_EXIT_CODE, 256, ""); }
static void v_exit_signal(rig_t *r) { put_exit(r, 1, AL_EXIT_SIGNAL, 0, ""); }
static void v_exit_signal_65(rig_t *r) { put_exit(r, 1, AL_EXIT_SIGNAL, 65, ""); }
static void v_exit_errno(rig_t *r) { put_exit(r, 1, AL_EXIT_ERROR, 0, ""); }
static void v_read_by_signal(rig_t *r) { put_exit(r, 2, AL_EXIT_SIGNAL, 9, ""); }
static void v_ack_too_much(rig_t *r) { put64(r, AL_F_ACK, got.counted + 1); }
static void v_ack_back(rig_t *r) { put64(r, AL_F_ACK, got.counted); put64(r, AL_F_ACK, got.counted - 1); }
static void v_pong(rig_t *r) { put64(r, AL_F_PONG, 1); }
static void v_pong_wrong(rig_t *r) { al_frame_t f; al_chan_ping(r->chan, NULL, NULL); expect(r, &f, AL_F_PING); put64(r, AL_F_PONG, al_get64(f.payload) + 1); }
static void v_config_ack(rig_t *r) { put32(r, 0, AL_F_CONFIG_ACK, 0, 0); }
static void v_hello_ack(rig_t *r) { put(r, 0, AL_F_HELLO_ACK, 0, NULL, 80); }
static void v_host_frame(rig_t *r) { put(r, 1, AL_F_EXEC, 0, "x", 1); }
static void v_host_ping(rig_t *r) { put64(r, AL_F_PING, 1); }
static void v_reserved_type(rig_t *r) { put(r, 1, AL_F_TCP, 0, "x", 1); }
static void v_unknown_type(rig_t *r) { put(r, 1, 99, 0, "x", 1); }
static void v_length(rig_t *r) { put(r, 1, AL_F_CREDIT, 0, "12345", 5); }
static void v_huge(rig_t *r) { uint8_t h[12]; al_frame_header(h, 1, AL_F_DATA, 1, 65537); (void) !write(r->peer, h, 12); }
static void v_reserved_field(rig_t *r) { uint8_t h[12]; al_frame_header(h, 1, AL_F_END, 1, 0); h[6] = 1; (void) !write(r->peer, h, 12); }

static void
test_chan_each_violation_closes(void **state) {
  (void) state;
#define V(name) { #name, name }
  static const struct { const char *name; void (*run)(rig_t *r); } all[] = {
    V(v_never_opened), V(v_never_opened_exit), V(v_from_guest_bit), V(v_stream_zero), V(v_data_on_stdin), V(v_data_on_sub_3), V(v_read_has_no_stderr), V(v_read_has_no_stdin),
    V(v_end_twice), V(v_stdin_end_twice), V(v_end_on_sub_9), V(v_data_after_end), V(v_window), V(v_window_at_once), V(v_credit_giant), V(v_credit_max), V(v_credit_sum),
    V(v_credit_wrong_sub), V(v_credit_for_read), V(v_exit_kind), V(v_exit_code), V(v_exit_signal), V(v_exit_signal_65), V(v_exit_errno), V(v_read_by_signal), V(v_ack_too_much),
    V(v_ack_back), V(v_pong), V(v_pong_wrong), V(v_config_ack), V(v_hello_ack), V(v_host_frame), V(v_host_ping), V(v_reserved_type), V(v_unknown_type), V(v_length), V(v_huge), V(v_reserved_field),
  };
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    rig_t r;
    al_frame_t f;
    user_t u, v = { .r = &r };
    al_err_t err = { 0 };
    peer_ready(&r, NULL);
    open_exec(&r, &u, true);
    expect(&r, &f, AL_F_EXEC);
    assert_int_equal(f.stream, 1);
    assert_int_equal(al_stream_read(r.chan, "/f", "agent", &cbs, &v, &v.s, &err), 0);
    expect(&r, &f, AL_F_READ);
    assert_int_equal(f.stream, 2);
    all[i].run(&r);
    rig_idle(&r, 20);
    if (!r.closed || r.why.code != AL_EPROTOCOL_VIOLATION) fail_msg("%s: %s %s", all[i].name, r.closed ? al_err_name(r.why.code) : "still open", r.why.msg);
    assert_true(u.done && v.done);
    assert_int_equal(u.exit.kind, -1);
    assert_int_equal(u.exit.err.code, AL_EPROTOCOL_VIOLATION);
    rig_end(&r);
  }
}

static void
on_pong(void *data, int status, uint64_t ns) {
  rig_t *r = data;
  assert_int_equal(status, 0);
  assert_true(ns > 0);
  r->configured = true;
}

/* The channel still works: a ping comes back. */
static void
assert_alive(rig_t *r) {
  al_frame_t f;
  r->configured = false;
  assert_int_equal(al_chan_ping(r->chan, on_pong, r), 0);
  expect(r, &f, AL_F_PING);
  put(r, 0, AL_F_PONG, 0, f.payload, 8);
  rig_wait(r, &r->configured, 2000);
}

static void
test_chan_frames_of_ended_streams_are_dropped(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  peer_ready(&r, NULL);
  open_exec(&r, &u, true);
  expect(&r, &f, AL_F_EXEC);
  put(&r, 1, AL_F_DATA, 1, "out", 3);
  put(&r, 1, AL_F_END, 1, NULL, 0);
  put_exit(&r, 1, AL_EXIT_CODE, 4, "a\001b");
  put_exit(&r, 1, AL_EXIT_CODE, 5, "");
  put(&r, 1, AL_F_DATA, 1, "late", 4);
  put(&r, 1, AL_F_END, 1, NULL, 0);
  put32(&r, 1, AL_F_CREDIT, 0, 0xffffffffu);
  put(&r, 1, AL_F_RESET, 0, NULL, 0);
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.exit.kind, AL_EXIT_CODE);
  assert_int_equal(u.exit.value, 4);
  assert_int_equal(u.exit.ns, 77);
  assert_string_equal(u.exit.text, "a?b");
  assert_int_equal(u.got[1], 3);
  assert_int_equal(u.ends[1], 1);
  assert_int_equal(u.ends[2], 0); /* EXIT without END of stderr */
  assert_alive(&r);
  open_exec(&r, &u, true);
  expect(&r, &f, AL_F_EXEC);
  assert_int_equal(f.stream, 2);
  al_err_t why = { 0 };
  al_err_set(&why, AL_ELANE_EXPIRED, "over");
  al_stream_reset(u.s, &why);
  assert_false(u.done);
  put(&r, 2, AL_F_DATA, 1, "crossed", 7);
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.exit.kind, -1);
  assert_int_equal(u.exit.err.code, AL_ELANE_EXPIRED);
  assert_int_equal(u.got[1], 0);
  expect(&r, &f, AL_F_RESET);
  assert_int_equal(f.stream, 2);
  put_exit(&r, 2, AL_EXIT_SIGNAL, 9, "");
  assert_alive(&r);
  open_exec(&r, &u, true);
  al_stream_reset(u.s, NULL); /* never went out: neither does a RESET */
  rig_wait(&r, &u.done, 1000);
  assert_false(next(&r, &f, 50));
  open_exec(&r, &u, false);
  expect(&r, &f, AL_F_EXEC);
  assert_int_equal(f.stream, 3);
  put(&r, 3, AL_F_RESET, 0, NULL, 0);
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.exit.err.code, AL_EEXEC_FAILED);
  assert_alive(&r);
  rig_end(&r);
}

static void
test_chan_sends_no_more_than_pacing_allows(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u, v;
  static char block[200000];
  size_t in = 0, small = 0;
  peer_ready(&r, NULL);
  open_exec(&r, &u, true);
  open_exec(&r, &v, true);
  assert_int_equal(al_stream_write(u.s, block, sizeof block), sizeof block);
  assert_int_equal(al_stream_write(v.s, block, 5000), 5000);
  while (next(&r, &f, 100)) {
    if (f.type == AL_F_DATA && f.stream == 1) in += f.len;
    if (f.type == AL_F_DATA && f.stream == 2) small += f.len;
    if (f.type == AL_F_DATA) assert_true(f.len <= 16384);
    if (small == 0) assert_true(in <= 2 * 16384); /* round robin: the small one does not wait for the large one */
  }
  assert_true(got.counted <= AL_PACING_MAX && got.counted > AL_PACING_MAX - 1024 - AL_FRAME_HEADER);
  assert_int_equal(small, 5000);
  al_stream_signal(v.s, 15, false);
  al_stream_signal(v.s, 15, false);
  al_stream_signal(v.s, 9, true);
  assert_false(next(&r, &f, 50));
  put64(&r, AL_F_ACK, got.counted);
  expect(&r, &f, AL_F_SIGNAL); /* before the rest of the data, the two equal ones as one */
  assert_int_equal(al_get32(f.payload), 15);
  assert_int_equal(f.flags, AL_SIGNAL_GROUP);
  expect(&r, &f, AL_F_SIGNAL);
  assert_int_equal(al_get32(f.payload), 9);
  assert_int_equal(f.flags, AL_SIGNAL_TREE);
  while (in < sizeof block) {
    expect(&r, &f, AL_F_DATA);
    in += f.len;
    put64(&r, AL_F_ACK, got.counted);
  }
  assert_int_equal(u.drains, 1);
  assert_false(next(&r, &f, 50));
  al_stream_end(u.s);
  expect(&r, &f, AL_F_END);
  rig_end(&r);
}

static void
test_chan_stdin_keeps_to_its_credit(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  static char block[400000];
  size_t in = 0;
  peer_ready(&r, NULL);
  open_exec(&r, &u, true);
  assert_int_equal(al_stream_write(u.s, block, sizeof block), sizeof block);
  assert_int_equal(al_stream_write(u.s, block, AL_STDIN_QUEUE_MAX), -ENOBUFS);
  while (next(&r, &f, 100)) {
    if (f.type == AL_F_DATA) in += f.len;
    put64(&r, AL_F_ACK, got.counted);
  }
  assert_int_equal(in, AL_WINDOW_DEFAULT);
  put32(&r, 1, AL_F_CREDIT, 0, 1000);
  expect(&r, &f, AL_F_DATA);
  assert_int_equal(f.len, 1000);
  put(&r, 1, AL_F_END, 0, NULL, 0); /* the command has closed its stdin */
  put32(&r, 1, AL_F_CREDIT, 0, 1000);
  assert_false(next(&r, &f, 50));
  assert_int_equal(u.drains, 1); /* whoever waits for room learns it */
  assert_int_equal(al_stream_write(u.s, block, 10), 0);
  al_stream_end(u.s);
  assert_false(next(&r, &f, 50));
  assert_alive(&r);
  rig_end(&r);
}

static void
test_chan_credits_what_was_consumed(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  static char block[65536];
  peer_ready(&r, NULL);
  open_exec(&r, &u, false);
  expect(&r, &f, AL_F_EXEC);
  u.consume = false;
  for (int i = 0; i < 4; i++) put(&r, 1, AL_F_DATA, 1, block, sizeof block); /* the whole window */
  uint64_t acked = 0;
  while (next(&r, &f, 50)) {
    assert_int_equal(f.type, AL_F_ACK); /* read, not consumed: acknowledged and not credited */
    acked = al_get64(f.payload);
  }
  assert_true(acked > 4 * 65536 - 32768);
  assert_int_equal(u.got[1], 4 * 65536);
  al_stream_consumed(u.s, 1, 65535);
  assert_alive(&r); /* sends a ping: the small credit does not go along */
  assert_false(next(&r, &f, 50));
  al_stream_consumed(u.s, 1, 1);
  expect(&r, &f, AL_F_CREDIT);
  assert_int_equal(f.flags, 1);
  assert_int_equal(al_get32(f.payload), 65536);
  put(&r, 1, AL_F_DATA, 1, block, sizeof block); /* exactly what was credited */
  rig_idle(&r, 20);
  assert_false(r.closed);
  put(&r, 1, AL_F_DATA, 1, block, 1);
  rig_wait(&r, &r.closed, 1000);
  assert_int_equal(r.why.code, AL_EPROTOCOL_VIOLATION);
  rig_end(&r);
}

static void
test_chan_guest_that_does_not_read_is_given_up(void **state) {
  (void) state;
  rig_t r;
  user_t u;
  static char block[250000];
  peer_ready(&r, &(al_chan_opts_t){ .ping_ms = 20, .silence_ms = 150 });
  open_exec(&r, &u, true);
  al_stream_write(u.s, block, sizeof block);
  uint64_t t = uv_hrtime();
  while (!r.closed && uv_hrtime() - t < 3000000000u) {
    put(&r, 1, AL_F_DATA, 1, "x", 1); /* it talks, but takes nothing */
    rig_idle(&r, 5);
  }
  assert_true(r.closed);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  assert_non_null(strstr(r.why.msg, "has not read"));
  rig_end(&r);
}

static void
test_chan_silence_is_asked_and_ends_it(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  peer_ready(&r, &(al_chan_opts_t){ .ping_ms = 50, .silence_ms = 200 });
  assert_false(next(&r, &f, 300)); /* nothing is owed: no pings, no end */
  assert_false(r.closed);
  open_exec(&r, &u, false);
  expect(&r, &f, AL_F_EXEC);
  for (int i = 0; i < 6; i++) { /* answered: it goes on */
    expect(&r, &f, AL_F_PING);
    put(&r, 0, AL_F_PONG, 0, f.payload, 8);
  }
  expect(&r, &f, AL_F_PING);
  assert_false(r.closed);
  rig_wait(&r, &r.closed, 1000);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  assert_non_null(strstr(r.why.msg, "has not answered for 0.2 s"));
  assert_int_equal(u.exit.err.code, AL_ECHANNEL_CLOSED);
  rig_end(&r);
}

static void
test_chan_own_standstill_is_not_silence(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  peer_ready(&r, &(al_chan_opts_t){ .ping_ms = 50, .silence_ms = 200 });
  open_exec(&r, &u, false);
  expect(&r, &f, AL_F_EXEC);
  put(&r, 1, AL_F_DATA, 1, "x", 1);
  usleep(600000);
  rig_idle(&r, 20);
  assert_false(r.closed);
  assert_int_equal(u.got[1], 1);
  rig_end(&r);
}

static void
on_config(void *data, int status, const al_err_t *err) {
  rig_t *r = data;
  assert_false(r->configured);
  r->configured = true;
  assert_int_equal(status, err->code);
  r->why = *err;
}

static void
test_chan_config_is_answered_once(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  peer_ready(&r, NULL);
  assert_int_equal(al_chan_config(r.chan, "agent", "/home/agent/workspace", AL_CONFIG_SUDO, on_config, &r), 0);
  assert_int_equal(al_chan_config(r.chan, "agent", "/w", 0, on_config, &r), -EINVAL);
  expect(&r, &f, AL_F_CONFIG);
  size_t pos = 0;
  unsigned seen = 0;
  uint16_t tag;
  const uint8_t *v;
  uint32_t len;
  while (al_tlv_next(f.payload, f.len, &pos, &tag, &v, &len) == 1) {
    seen |= 1u << tag;
    if (tag == AL_TLV_FLAGS) assert_int_equal(al_get32(v), AL_CONFIG_SUDO);
    if (tag == AL_TLV_PATH) assert_memory_equal(v, "/home/agent/workspace", len);
    if (tag == AL_TLV_TIME) assert_true(al_get64(v) > 1700000000000000000u);
  }
  assert_int_equal(seen, 1u << AL_TLV_FLAGS | 1u << AL_TLV_PATH | 1u << AL_TLV_TIME | 1u << AL_TLV_USER);
  put(&r, 0, AL_F_CONFIG_ACK, 0, "\15\0\0\0no\tworktree", 15);
  rig_wait(&r, &r.configured, 1000);
  assert_int_equal(r.why.code, AL_ESTART_FAILED);
  rig_end(&r);
  peer_ready(&r, &(al_chan_opts_t){ .handshake_ms = 80 });
  assert_int_equal(al_chan_config(r.chan, "agent", "/w", 0, on_config, &r), 0);
  rig_wait(&r, &r.closed, 1000);
  assert_true(r.configured);
  assert_int_equal(r.why.code, AL_ECHANNEL_CLOSED);
  rig_end(&r);
}

static void
on_dead_pong(void *data, int status, uint64_t ns) {
  (void) ns;
  assert_int_equal(status, AL_ECHANNEL_CLOSED);
  ++*(unsigned *) data;
}

static void
close_it(user_t *u) {
  al_chan_close(u->r->chan, NULL);
}

static void
reset_it(user_t *u) {
  al_stream_reset(u->s, NULL);
}

static void
open_another(user_t *u) {
  static user_t other;
  const char *argv[] = { "x", NULL };
  al_exec_req_t req = { .argv = argv };
  al_err_t err = { 0 };
  other = (user_t){ .r = u->r };
  assert_int_equal(al_stream_exec(u->r->chan, &req, &cbs, &other, &other.s, &err), AL_ECHANNEL_CLOSED);
}

static void
test_chan_everybody_learns_of_the_end_once(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u[3];
  unsigned pongs = 0;
  for (int how = 0; how < 5; how++) {
    pongs = 0;
    peer_ready(&r, NULL);
    for (int i = 0; i < 3; i++) {
      open_exec(&r, &u[i], true);
      expect(&r, &f, AL_F_EXEC);
    }
    for (int i = 0; i < AL_PINGS_MAX; i++) assert_int_equal(al_chan_ping(r.chan, on_dead_pong, &pongs), 0);
    assert_int_equal(al_chan_ping(r.chan, on_dead_pong, &pongs), -EAGAIN);
    u[1].act = open_another;
    if (how == 0) al_chan_close(r.chan, NULL);
    if (how == 1) shutdown(r.peer, SHUT_RDWR);
    if (how == 2) u[0].act = close_it; /* from inside on_data */
    if (how == 3) put(&r, 9, AL_F_DATA, 1, "x", 1);
    if (how == 4) {
      al_stream_reset(u[0].s, NULL);
      al_stream_reset(u[0].s, NULL);
      al_chan_close(r.chan, NULL);
    }
    if (how == 2) put(&r, 1, AL_F_DATA, 1, "x", 1);
    assert_false(r.closed || u[0].done || u[1].done);
    rig_wait(&r, &r.closed, 1000);
    assert_true(u[0].done && u[1].done && u[2].done);
    assert_int_equal(pongs, AL_PINGS_MAX);
    int code = how == 1 ? AL_ECHANNEL_CLOSED : how == 3 ? AL_EPROTOCOL_VIOLATION : AL_ELANE_CLOSED;
    assert_int_equal(u[2].exit.err.code, code);
    assert_int_equal(u[0].exit.err.code, how == 4 ? AL_EABORTED : code);
    assert_int_equal(r.why.code, code == AL_ELANE_CLOSED ? 0 : code);
    rig_end(&r);
  }
}

static void
test_chan_reset_inside_a_callback_is_safe(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  user_t u;
  peer_ready(&r, NULL);
  open_exec(&r, &u, true);
  expect(&r, &f, AL_F_EXEC);
  u.act = reset_it;
  uint8_t two[2 * (AL_FRAME_HEADER + 1)]; /* both in one read */
  for (int i = 0; i < 2; i++) {
    al_frame_header(two + i * 13, 1, AL_F_DATA, 1, 1);
    two[i * 13 + 12] = 'x';
  }
  assert_int_equal(write(r.peer, two, sizeof two), sizeof two);
  rig_wait(&r, &u.done, 1000);
  assert_int_equal(u.got[1], 1);
  expect(&r, &f, AL_F_RESET);
  assert_alive(&r);
  rig_end(&r);
}

static void
test_chan_ids_rise_whoever_goes_first(void **state) {
  (void) state;
  rig_t r;
  al_frame_t f;
  static user_t u[AL_STREAMS_MAX + 1];
  al_err_t err = { 0 };
  const char *argv[] = { "x", NULL };
  al_exec_req_t req = { .argv = argv };
  peer_ready(&r, NULL);
  for (int i = 0; i < 3; i++) open_exec(&r, &u[i], true);
  for (uint32_t i = 1; i <= 3; i++) {
    expect(&r, &f, AL_F_EXEC);
    assert_int_equal(f.stream, i);
  }
  for (int i = 3; i < AL_STREAMS_MAX; i++) open_exec(&r, &u[i], false);
  u[AL_STREAMS_MAX].r = &r;
  assert_int_equal(al_stream_exec(r.chan, &req, &cbs, &u[AL_STREAMS_MAX], &u[AL_STREAMS_MAX].s, &err), -EMFILE);
  for (uint32_t i = 4; i <= AL_STREAMS_MAX; i++) {
    expect(&r, &f, AL_F_EXEC);
    assert_int_equal(f.stream, i);
    put64(&r, AL_F_ACK, got.counted);
  }
  put_exit(&r, 200, 0, 0, "");
  rig_wait(&r, &u[199].done, 1000);
  open_exec(&r, &u[199], false);
  expect(&r, &f, AL_F_EXEC);
  assert_int_equal(f.stream, AL_STREAMS_MAX + 1);
  rig_end(&r);
}

static int alloc_left;

static void *
failing_malloc(size_t n) {
  return alloc_left-- == 0 ? NULL : malloc(n);
}

static void *
failing_realloc(void *p, size_t n) {
  return alloc_left-- == 0 ? NULL : realloc(p, n);
}

static void
test_chan_without_memory_says_so(void **state) {
  (void) state;
  static const al_mem_table_t table = { .malloc = failing_malloc, .realloc = failing_realloc, .free = free };
  rig_t r;
  user_t u = { .r = &r };
  al_err_t err = { 0 };
  const char *argv[] = { "cmd", NULL };
  al_exec_req_t req = { .argv = argv, .with_stdin = true };
  int failures = 0;
  peer_ready(&r, NULL);
  for (int i = 0; i < 50; i++) {
    al_mem_set(&table);
    alloc_left = i;
    int rc = al_stream_exec(r.chan, &req, &cbs, &u, &u.s, &err);
    al_mem_set(NULL);
    if (rc == 0) break;
    assert_int_equal(rc, -ENOMEM);
    failures++;
  }
  assert_true(failures >= 2);
  rig_end(&r);
  static const al_chan_cbs_t chan_cbs = { .on_ready = rig_on_ready, .on_closed = rig_on_closed };
  failures = 0;
  for (int i = 0; i < 50; i++) {
    int sv[2];
    memset(&r, 0, sizeof r);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    r.peer = sv[1];
    rig_base(&r, sv[0]);
    al_chan_opts_t o = { .in = (uv_stream_t *) &r.pipe, .out = (uv_stream_t *) &r.pipe };
    al_mem_set(&table);
    alloc_left = i;
    int rc = al_chan_open(&r.loop, &o, &chan_cbs, &r, &r.chan);
    al_mem_set(NULL);
    rig_end(&r);
    if (rc == 0) break;
    assert_int_equal(rc, -ENOMEM);
    failures++;
  }
  assert_true(failures >= 3);
}

/* A guest that mutates what it says: whatever comes, everybody hears of the end once and nothing is overrun (ASan). */
static void
test_chan_survives_random_frames(void **state) {
  (void) state;
  uint32_t x = 2463534242u;
  for (int round = 0; round < 150; round++) {
    rig_t r;
    user_t u[2];
    al_frame_t f;
    peer_ready(&r, NULL);
    for (int i = 0; i < 2; i++) {
      open_exec(&r, &u[i], true);
      expect(&r, &f, AL_F_EXEC);
      u[i].consume = round % 2 == 0;
    }
    for (int i = 0; i < 60 && !r.closed; i++) {
      static const uint8_t types[] = { AL_F_DATA, AL_F_DATA, AL_F_DATA, AL_F_END, AL_F_CREDIT, AL_F_EXIT, AL_F_RESET, AL_F_ACK, AL_F_PONG, 200 };
      static const size_t sizes[] = { 100, 3, 40000, 0, 4, 24, 0, 8, 8, 1 };
      uint8_t p[40000], raw[8];
      for (int k = 0; k < 8; k++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        raw[k] = (uint8_t) (x >> 8);
      }
      memset(p, 0, sizeof p);
      if (raw[6] < 40) memcpy(p, raw, 8);
      unsigned t = raw[0] < 200 ? raw[0] % 5 : raw[0] % 10;
      put(&r, 1 + raw[1] % 2u, types[t], raw[7] < 240 ? 1 + raw[2] % 2 : raw[2], p, sizes[t]);
      if (raw[5] % 8 == 0) rig_idle(&r, 1);
    }
    rig_idle(&r, 1);
    rig_end(&r);
    assert_true(u[0].done && u[1].done);
  }
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_chan_nothing_but_hello_before_the_proof),
    cmocka_unit_test(test_chan_proof_must_hold),
    cmocka_unit_test(test_chan_other_talk_before_the_proof_is_unproven),
    cmocka_unit_test(test_chan_handshake_has_a_deadline_and_may_be_refused),
    cmocka_unit_test(test_chan_each_violation_closes),
    cmocka_unit_test(test_chan_frames_of_ended_streams_are_dropped),
    cmocka_unit_test(test_chan_sends_no_more_than_pacing_allows),
    cmocka_unit_test(test_chan_stdin_keeps_to_its_credit),
    cmocka_unit_test(test_chan_credits_what_was_consumed),
    cmocka_unit_test(test_chan_guest_that_does_not_read_is_given_up),
    cmocka_unit_test(test_chan_silence_is_asked_and_ends_it),
    cmocka_unit_test(test_chan_own_standstill_is_not_silence),
    cmocka_unit_test(test_chan_config_is_answered_once),
    cmocka_unit_test(test_chan_everybody_learns_of_the_end_once),
    cmocka_unit_test(test_chan_reset_inside_a_callback_is_safe),
    cmocka_unit_test(test_chan_ids_rise_whoever_goes_first),
    cmocka_unit_test(test_chan_without_memory_says_so),
    cmocka_unit_test(test_chan_survives_random_frames),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
