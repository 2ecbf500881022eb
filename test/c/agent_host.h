/* SPDX-License-Identifier: Apache-2.0 */
/* A scripted host for the lane agent: starts it over a socketpair, or two pipes as a login has them, speaks the real codec, keeps credits and pacing. */
#ifndef AL_AGENT_HOST_H
#define AL_AGENT_HOST_H

#include "al_test.h"
#include "frame.h"
#include "sha256.h"
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#define PEER_WAIT_MS 20000

typedef struct peer_s {
  int fd, to;                 /* to: what is written to, when it is not fd; else 0 */
  pid_t pid;
  bool no_ack, no_credit;     /* what the peer would otherwise do by itself */
  uint8_t buf[2 * (AL_FRAME_HEADER + AL_FRAME_MAX)];
  size_t off, len;
  uint64_t received, acked;   /* bytes of frames but ACK */
  uint64_t sent, sent_acked;
  uint32_t last_id;
  uint32_t reject;            /* code of a REJECT, once it came */
  char reject_text[256];
} peer_t;

typedef struct result_s {
  uint32_t kind, value;
  uint64_t ns, length;
  char text[256];
  char *out;
  size_t out_len, out_cap, err_len;
  uint64_t credited;          /* stdin bytes given back */
  bool ended[AL_SUBS], exited;
} result_t;

static char peer_dir[64];

static inline uint64_t
peer_now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t) t.tv_sec * 1000u + (uint64_t) t.tv_nsec / 1000000u;
}

static inline const char *
peer_agent(void) {
  const char *path = getenv("AL_AGENT");
  return path != NULL ? path : "prebuilds/guest/agent-x86_64";
}

static inline const char *
peer_path(const char *name) {
  return al_test_path(peer_dir, name);
}

static inline void
peer_file(const char *name, const void *bytes, size_t n) {
  int fd = open(peer_path(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, bytes, n), (ssize_t) n);
  close(fd);
}

/* The secret of every test: 32 times 0xa7. */
static inline int
peer_setup(void **state) {
  (void) state;
  signal(SIGPIPE, SIG_IGN);
  al_test_dir(peer_dir);
  char hex[65];
  for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "a7");
  hex[64] = '\n';
  peer_file("secret", hex, 65);
  return 0;
}

static inline int
peer_teardown(void **state) {
  (void) state;
  al_test_dir_remove(peer_dir);
  return 0;
}

/* `pipes`: the agent's stdin and stdout are two pipes. */
static inline void
peer_start_on(peer_t *p, const char *const *args, int (*before)(void), bool pipes) {
  int mine[2], its[2]; /* to read and to write */
  memset(p, 0, sizeof(*p));
  if (access(peer_agent(), X_OK) != 0) {
    print_message("skipped: %s is not built\n", peer_agent());
    skip();
  }
  if (pipes) {
    int in[2], out[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    mine[0] = out[0], mine[1] = in[1], its[0] = in[0], its[1] = out[1];
  } else {
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    mine[0] = mine[1] = fds[0], its[0] = its[1] = fds[1];
  }
  p->pid = al_test_fork();
  assert_true(p->pid >= 0);
  if (p->pid == 0) {
    dup2(its[0], 0);
    dup2(its[1], 1);
    for (int i = 0; i < 2; i++) close(mine[i]), close(its[i]); /* `before` may stay in between without an exec */
    signal(SIGPIPE, SIG_DFL);
    if (before != NULL && before() != 0) _exit(120);
    execv(peer_agent(), (char *const *) (uintptr_t) args);
    _exit(127);
  }
  close(its[0]);
  if (pipes) close(its[1]);
  p->fd = mine[0];
  p->to = pipes ? mine[1] : 0;
}

static inline void
peer_start_with(peer_t *p, const char *const *args, int (*before)(void)) {
  peer_start_on(p, args, before, false);
}

static inline void
peer_close(peer_t *p) {
  if (p->fd >= 0) close(p->fd);
  if (p->to > 0) close(p->to);
  p->fd = -1;
  p->to = 0;
}

static inline void
peer_start(peer_t *p) {
  const char *args[] = {"agent", "--local", "--secret", peer_path("secret"), NULL};
  peer_start_with(p, args, NULL);
}

static inline void
peer_send(peer_t *p, uint32_t stream, uint8_t type, uint8_t flags, const void *payload, size_t n) {
  uint8_t head[AL_FRAME_HEADER];
  al_frame_header(head, stream, type, flags, (uint32_t) n);
  int to = p->to > 0 ? p->to : p->fd;
  if (write(to, head, sizeof(head)) != sizeof(head)) n = 0; /* SIGPIPE is ignored */
  for (size_t done = 0; done < n;) {
    ssize_t w = write(to, (const uint8_t *) payload + done, n - done);
    if (w <= 0) break; /* the agent is gone: the next read says so */
    done += (size_t) w;
  }
  if (type != AL_F_ACK) p->sent += AL_FRAME_HEADER + n;
}

static inline void
peer_send32(peer_t *p, uint32_t stream, uint8_t type, uint8_t flags, uint32_t value) {
  uint8_t b[4];
  al_put32(b, value);
  peer_send(p, stream, type, flags, b, 4);
}

static inline void
peer_send64(peer_t *p, uint8_t type, uint64_t value) {
  uint8_t b[8];
  al_put64(b, value);
  peer_send(p, 0, type, 0, b, 8);
}

static inline void
peer_automatic(peer_t *p, const al_frame_t *f) {
  if (f->type == AL_F_ACK) {
    uint64_t n = al_get64(f->payload);
    assert_true(n >= p->sent_acked && n <= p->sent);
    p->sent_acked = n;
    return;
  }
  p->received += AL_FRAME_HEADER + f->len;
  if (!p->no_ack && p->received - p->acked >= 16384) {
    p->acked = p->received;
    peer_send64(p, AL_F_ACK, p->received);
  }
  if (f->type == AL_F_DATA && !p->no_credit) peer_send32(p, f->stream, AL_F_CREDIT, f->flags, f->len);
  if (f->type == AL_F_REJECT) {
    p->reject = al_get32(f->payload);
    snprintf(p->reject_text, sizeof(p->reject_text), "%.*s", (int) (f->len - 4), (const char *) f->payload + 4);
  }
}

/* 1 = a frame, 0 = nothing within ms, -1 = EOF. */
static inline int
peer_next(peer_t *p, al_frame_t *f, int ms) {
  uint64_t deadline = peer_now_ms() + (uint64_t) ms;
  for (;;) {
    const char *why = "";
    int n = al_frame_parse(p->buf + p->off, p->len, f, &why);
    if (n < 0) fail_msg("the agent sent a bad frame: %s", why);
    if (n > 0) {
      p->off += (size_t) n;
      p->len -= (size_t) n;
      peer_automatic(p, f);
      return 1;
    }
    memmove(p->buf, p->buf + p->off, p->len);
    p->off = 0;
    uint64_t now = peer_now_ms();
    if (now > deadline) return 0;
    struct pollfd pf = {.fd = p->fd, .events = POLLIN};
    if (poll(&pf, 1, (int) (deadline - now)) <= 0) return 0;
    ssize_t got = read(p->fd, p->buf + p->len, sizeof(p->buf) - p->len);
    if (got <= 0) return -1;
    p->len += (size_t) got;
  }
}

static inline void
peer_hello_range(peer_t *p, uint16_t low, uint16_t high, const char *magic) {
  uint8_t hello[40];
  memcpy(hello, magic, 4);
  al_put16(hello + 4, low);
  al_put16(hello + 6, high);
  for (int i = 0; i < 32; i++) hello[8 + i] = (uint8_t) (i * 7);
  peer_send(p, 0, AL_F_HELLO, 0, hello, sizeof(hello));
}

/* Whether the agent's proof is one of `secret_byte` repeated. */
static inline bool
peer_proven(const al_frame_t *f, uint8_t secret_byte) {
  uint8_t secret[32], text[sizeof(AL_PROOF_LABEL) - 1 + 64], mac[32];
  const size_t label = sizeof(AL_PROOF_LABEL) - 1;
  memset(secret, secret_byte, 32);
  memcpy(text, AL_PROOF_LABEL, label);
  for (int i = 0; i < 32; i++) text[label + (size_t) i] = (uint8_t) (i * 7);
  memcpy(text + label + 32, f->payload + 10, 32);
  al_hmac_sha256(secret, 32, text, sizeof(text), mac);
  return al_equal_secret(mac, f->payload + 42, 32);
}

static inline void
peer_hello(peer_t *p) {
  al_frame_t f;
  peer_hello_range(p, 1, 1, AL_PROTO_MAGIC);
  assert_int_equal(peer_next(p, &f, PEER_WAIT_MS), 1);
  assert_int_equal(f.type, AL_F_HELLO_ACK);
  assert_true(peer_proven(&f, 0xa7));
}

/* Waits for the agent's end. Returns its exit code, 256 + n for a signal. */
static inline int
peer_wait(peer_t *p) {
  al_frame_t f;
  int status = 0;
  uint64_t deadline = peer_now_ms() + PEER_WAIT_MS;
  while (p->fd >= 0 && peer_next(p, &f, PEER_WAIT_MS) > 0 && peer_now_ms() < deadline) continue;
  peer_close(p);
  while (waitpid(p->pid, &status, WNOHANG) == 0) {
    if (peer_now_ms() > deadline) {
      kill(p->pid, SIGKILL);
      waitpid(p->pid, &status, 0);
      fail_msg("the agent did not end");
    }
    usleep(2000);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static inline void
peer_stop(peer_t *p) {
  peer_close(p);
  assert_int_equal(peer_wait(p), 0);
}

static inline void
peer_expect_reject(peer_t *p, uint32_t code) {
  assert_int_equal(peer_wait(p), 1);
  if (p->reject != code) fail_msg("REJECT %u (%s), expected %u", p->reject, p->reject_text, code);
  assert_true(p->reject_text[0] != 0);
}

typedef struct tlvs_s {
  uint8_t bytes[2 * AL_OPEN_MAX];
  size_t len;
} tlvs_t;

static inline void
tlv_add(tlvs_t *t, uint16_t tag, const void *value, size_t n) {
  size_t put = al_tlv_put(t->bytes + t->len, sizeof(t->bytes) - t->len, tag, value, (uint32_t) n);
  assert_true(put > 0);
  t->len += put;
}

static inline void
tlv_text(tlvs_t *t, uint16_t tag, const char *text) {
  tlv_add(t, tag, text, strlen(text));
}

static inline void
tlv_u32(tlvs_t *t, uint16_t tag, uint32_t value) {
  uint8_t b[4];
  al_put32(b, value);
  tlv_add(t, tag, b, 4);
}

/* Sends a request of `t`, cut into frames of `cut` bytes. Returns the new stream's id. */
static inline uint32_t
peer_exec_tlvs(peer_t *p, const tlvs_t *t, size_t cut) {
  uint32_t id = ++p->last_id;
  size_t at = 0;
  do {
    size_t n = t->len - at < cut ? t->len - at : cut;
    peer_send(p, id, AL_F_EXEC, at + n < t->len ? AL_FLAG_MORE : 0, t->bytes + at, n);
    at += n;
  } while (at < t->len);
  return id;
}

static tlvs_t peer_tlvs;

static inline uint32_t
peer_exec(peer_t *p, uint32_t flags, const char *script) {
  peer_tlvs.len = 0;
  tlv_text(&peer_tlvs, AL_TLV_ARG, "sh");
  tlv_text(&peer_tlvs, AL_TLV_ARG, "-c");
  tlv_text(&peer_tlvs, AL_TLV_ARG, script);
  tlv_u32(&peer_tlvs, AL_TLV_FLAGS, flags);
  return peer_exec_tlvs(p, &peer_tlvs, AL_FRAME_MAX);
}

static inline uint32_t
peer_read(peer_t *p, const char *path) {
  peer_tlvs.len = 0;
  tlv_text(&peer_tlvs, AL_TLV_PATH, path);
  peer_send(p, ++p->last_id, AL_F_READ, 0, peer_tlvs.bytes, peer_tlvs.len);
  return p->last_id;
}

static inline void
peer_take(const al_frame_t *f, result_t *r) {
  if (f->type == AL_F_CREDIT) {
    assert_int_equal(f->flags, AL_SUB_STDIN);
    r->credited += al_get32(f->payload);
  } else if (f->type == AL_F_END) {
    assert_true(f->flags < AL_SUBS && !r->ended[f->flags]);
    r->ended[f->flags] = true;
  } else if (f->type == AL_F_DATA) {
    assert_true((f->flags == 1 || f->flags == 2) && !r->ended[f->flags]);
    if (f->flags == AL_SUB_STDERR) r->err_len += f->len;
    if (r->out_len + f->len >= r->out_cap) {
      r->out_cap = (r->out_len + f->len + 1) * 2;
      r->out = realloc(r->out, r->out_cap);
      assert_non_null(r->out);
    }
    memcpy(r->out + r->out_len, f->payload, f->len);
    r->out_len += f->len;
    r->out[r->out_len] = 0;
  } else {
    assert_int_equal(f->type, AL_F_EXIT);
    r->kind = al_get32(f->payload);
    r->value = al_get32(f->payload + 4);
    r->ns = al_get64(f->payload + 8);
    r->length = al_get64(f->payload + 16);
    snprintf(r->text, sizeof(r->text), "%.*s", (int) (f->len - 24), (const char *) f->payload + 24);
    r->exited = true;
  }
}

/* Everything of one stream up to its EXIT; frames of others must not come. stdout and stderr land in `out` together. */
static inline void
peer_result(peer_t *p, uint32_t id, result_t *r) {
  uint64_t deadline = peer_now_ms() + PEER_WAIT_MS;
  memset(r, 0, sizeof(*r));
  while (!r->exited) {
    al_frame_t f;
    if (peer_next(p, &f, PEER_WAIT_MS) != 1 || peer_now_ms() > deadline)
      fail_msg("no EXIT; reject: %s", p->reject_text);
    if (f.stream == 0 && f.type == AL_F_ACK) continue;
    assert_int_equal(f.stream, id);
    peer_take(&f, r);
  }
}

static inline void
peer_expect(peer_t *p, uint32_t id, uint32_t kind, uint32_t value, const char *out) {
  result_t r;
  peer_result(p, id, &r);
  if (r.kind != kind || r.value != value)
    fail_msg("kind %u value %u (%s), expected %u %u", r.kind, r.value, r.text, kind, value);
  if (out != NULL) assert_string_equal(r.out != NULL ? r.out : "", out);
  free(r.out);
}

/* The agent still lives and answers. */
static inline void
peer_ping(peer_t *p) {
  static uint64_t token = 0x1122334455667788u;
  uint64_t deadline = peer_now_ms() + PEER_WAIT_MS;
  al_frame_t f;
  peer_send64(p, AL_F_PING, ++token);
  do {
    if (peer_next(p, &f, 5000) != 1 || peer_now_ms() > deadline) fail_msg("no PONG");
  } while (f.type != AL_F_PONG);
  assert_true(al_get64(f.payload) == token);
}

/* Waits for `want` bytes of DATA and looks a while whether more come. Returns what came. */
static inline size_t
peer_data(peer_t *p, uint32_t id, size_t want) {
  size_t n = 0;
  al_frame_t f;
  while (peer_next(p, &f, n < want ? PEER_WAIT_MS : 300) == 1)
    if (f.type == AL_F_DATA && f.stream == id) n += f.len;
  return n;
}

/* Waits until a process is gone (a zombie that nobody reaps counts as alive). */
static inline bool
peer_gone(pid_t pid, int ms) {
  for (uint64_t deadline = peer_now_ms() + (uint64_t) ms; peer_now_ms() < deadline; usleep(5000))
    if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  return false;
}

#endif
