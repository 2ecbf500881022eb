/* SPDX-License-Identifier: Apache-2.0 */
/* Channel, host side: what comes in. Every frame is hostile until it has passed the checks here. */
#include "chan_int.h"
#include "mem.h"
#include "platform.h"
#include "sha256.h"
#include "utf8.h"
#include <string.h>

#define TEXT_MAX 256     /* of a guest's text in our messages */
#define SAID_MAX 60      /* of what somebody said who is no agent at all */
#define REJECT_VERSION 2 /* docs/PROTOCOL.md */

static void
violation(al_chan_t *c, const al_frame_t *f, const char *what) {
  al__chan_fail(c, AL_EPROTOCOL_VIOLATION, "the guest broke the protocol: %s (%s, stream %u)", what,
    al_frame_name(f->type), f->stream);
}

static void
on_hello_ack(al_chan_t *c, const al_frame_t *f) {
  const uint8_t *p = f->payload;
  if (memcmp(p, AL_PROTO_MAGIC, 4) != 0 || f->stream != 0) {
    al__chan_fail(c, AL_EPEER_UNPROVEN, "what answered is not a lane agent");
    return;
  }
  if (al_get16(p + 4) != AL_PROTO_VERSION) {
    al__chan_fail(c, AL_EPEER_INCOMPATIBLE, "the guest's agent speaks protocol version %u, this host speaks %u",
      al_get16(p + 4), AL_PROTO_VERSION);
    return;
  }
  uint8_t text[sizeof AL_PROOF_LABEL - 1 + 64], mac[AL_SHA256_LEN];
  size_t label = sizeof AL_PROOF_LABEL - 1;
  memcpy(text, AL_PROOF_LABEL, label);
  memcpy(text + label, c->nonce, 32);
  memcpy(text + label + 32, p + 10, 32);
  al_hmac_sha256(c->opts.secret, sizeof c->opts.secret, text, sizeof text, mac);
  if (!al_equal_secret(mac, p + 42, sizeof mac)) {
    al__chan_fail(c, AL_EPEER_UNPROVEN, "what answered does not know the lane's secret");
    return;
  }
  al__chan_ready(c);
}

static void
on_reject(al_chan_t *c, const al_frame_t *f) {
  char text[TEXT_MAX];
  al_utf8_printable(text, sizeof text, f->payload + 4, f->len - 4, false);
  bool version = c->state == AL_CHAN_HELLO && al_get32(f->payload) == REJECT_VERSION;
  al__chan_fail(c, version ? AL_EPEER_INCOMPATIBLE : AL_ECHANNEL_CLOSED, "the guest's agent refused: %s (%u)", text,
    al_get32(f->payload));
}

static void
on_config_ack(al_chan_t *c, const al_frame_t *f) {
  if (!c->config_cb || f->stream != 0) {
    violation(c, f, "an answer to a configuration that was not sent");
    return;
  }
  void (*cb)(void *, int, const al_err_t *) = c->config_cb;
  c->config_cb = NULL;
  al_err_t err = { 0 };
  uint32_t code = al_get32(f->payload);
  if (code != 0) {
    char text[TEXT_MAX];
    al_utf8_printable(text, sizeof text, f->payload + 4, f->len - 4, false);
    al_err_set(&err, AL_ESTART_FAILED, "the guest could not be set up: %s (errno %u)", text, code);
  }
  cb(c->config_data, err.code, &err);
}

static void
on_pong(al_chan_t *c, const al_frame_t *f) {
  if (c->npings == 0 || f->stream != 0 || c->pings[0].token != al_get64(f->payload)) {
    violation(c, f, "an answer to a ping that was not sent");
    return;
  }
  al_ping_t ping = c->pings[0];
  c->npings--;
  memmove(c->pings, c->pings + 1, c->npings * sizeof *c->pings);
  if (!ping.cb) c->live_ping = false;
  else ping.cb(ping.data, 0, uv_hrtime() - ping.at_ns);
}

static void
on_ack(al_chan_t *c, const al_frame_t *f) {
  uint64_t n = al_get64(f->payload);
  if (f->stream != 0 || n > c->sent || n <= c->acked) {
    violation(c, f, n == c->acked ? "the same acknowledgement again" : "an acknowledgement of what was not sent");
    return;
  }
  c->acked = n;
  al_pacing_acked(&c->pacing, n, uv_hrtime());
  c->stalled_at = 0;
  al__stream_forget(c, n);
}

static void
on_data(al_chan_t *c, al_stream_t *s, const al_frame_t *f) {
  unsigned sub = f->flags;
  if (sub != AL_SUB_STDOUT && !(sub == AL_SUB_STDERR && s->kind == AL_F_EXEC)) {
    violation(c, f, "data on a sub-stream that a guest does not have");
  } else if (s->sub[sub].ended) {
    violation(c, f, "data after the end");
  } else if (f->len > s->sub[sub].window) {
    violation(c, f, "data beyond the credit");
  } else {
    s->sub[sub].window -= f->len;
    s->sub[sub].held += f->len;
    if (!s->over) s->cbs.on_data(s, s->data, (int) sub, f->payload, f->len);
  }
}

static void
on_end(al_chan_t *c, al_stream_t *s, const al_frame_t *f) {
  unsigned sub = f->flags;
  if (sub == AL_SUB_STDIN && s->with_stdin && !s->sub[sub].ended) {
    /* The command has closed its stdin: nothing that waits for it is of use any more. */
    s->sub[sub].ended = true;
    al__stream_deaf(s);
  } else if (sub > AL_SUB_STDERR || (sub == AL_SUB_STDIN && !s->with_stdin)
    || (sub == AL_SUB_STDERR && s->kind != AL_F_EXEC)) {
    violation(c, f, "the end of a sub-stream that a guest does not have");
  } else if (s->sub[sub].ended) {
    violation(c, f, "a second end");
  } else {
    s->sub[sub].ended = true;
    if (!s->over) s->cbs.on_end(s, s->data, (int) sub);
  }
}

static void
on_credit(al_chan_t *c, al_stream_t *s, const al_frame_t *f) {
  uint32_t n = al_get32(f->payload);
  if (f->flags != AL_SUB_STDIN || !s->with_stdin) {
    violation(c, f, "credit for a sub-stream that the host does not write");
  } else if (n == 0) {
    violation(c, f, "credit of nothing");
  } else if (n > AL_WINDOW_MAX - s->room) {
    violation(c, f, "credit beyond the largest window");
  } else {
    s->room += n;
  }
}

static void
on_exit(al_chan_t *c, al_stream_t *s, const al_frame_t *f) {
  al_exit_t *x = &s->exit;
  uint32_t kind = al_get32(f->payload), value = al_get32(f->payload + 4);
  bool ok = (kind == AL_EXIT_CODE && value <= 255) ||
            (kind == AL_EXIT_SIGNAL && value >= 1 && value <= 64 && s->kind == AL_F_EXEC) ||
            (kind == AL_EXIT_ERROR && value >= 1 && value <= 4095);
  if (!ok || !s->opened || (f->flags & ~AL_EXIT_OOM)) {
    violation(c, f, ok ? "the end of a request that was not sent whole" : "an exit that cannot be");
    return;
  }
  s->last = true;
  if (s->over) return;
  x->kind = (int) kind;
  x->value = value;
  x->ns = al_get64(f->payload + 8);
  x->length = al_get64(f->payload + 16);
  x->oom = f->flags & AL_EXIT_OOM;
  al_utf8_printable(x->text, sizeof x->text, f->payload + 24, f->len - 24, false);
  if (kind == AL_EXIT_ERROR) {
    al_err_set(&x->err, AL_EEXEC_FAILED, "the guest could not run it: %s", x->text[0] ? x->text : "it gave no reason");
  }
  s->over = true;
  al__stream_finish(s);
}

static void
on_reset(al_stream_t *s) {
  s->last = true;
  if (s->over) return;
  s->exit.kind = -1;
  al_err_set(&s->exit.err, AL_EEXEC_FAILED, "the guest's agent dropped the request");
  s->over = true;
  al__stream_finish(s);
}

static void
on_stream_frame(al_chan_t *c, const al_frame_t *f) {
  if (f->stream == 0 || f->stream > c->last_id) {
    violation(c, f, "a stream that was never opened");
    return;
  }
  al_stream_t *s = al__stream_find(c, f->stream);
  if (!s) s = al__stream_crossed(c, f->stream);
  if (!s || s->last) {
    violation(c, f, "a stream that has ended");
    return;
  }
  if (f->type == AL_F_DATA) on_data(c, s, f);
  else if (f->type == AL_F_END) on_end(c, s, f);
  else if (f->type == AL_F_CREDIT) on_credit(c, s, f);
  else if (f->type == AL_F_EXIT) on_exit(c, s, f);
  else on_reset(s);
}

static void
dispatch(al_chan_t *c, const al_frame_t *f) {
  if (c->state == AL_CHAN_HELLO && f->type != AL_F_HELLO_ACK && f->type != AL_F_REJECT) {
    al__chan_fail(c, AL_EPEER_UNPROVEN, "what answered did not prove that it is the lane's agent");
    return;
  }
  switch (f->type) {
    case AL_F_HELLO_ACK:
      if (c->state == AL_CHAN_HELLO) on_hello_ack(c, f);
      else violation(c, f, "a second handshake");
      break;
    case AL_F_REJECT: on_reject(c, f); break;
    case AL_F_CONFIG_ACK: on_config_ack(c, f); break;
    case AL_F_PONG: on_pong(c, f); break;
    case AL_F_ACK: on_ack(c, f); break;
    case AL_F_DATA:
    case AL_F_END:
    case AL_F_CREDIT:
    case AL_F_EXIT:
    case AL_F_RESET: on_stream_frame(c, f); break;
    default: violation(c, f, "a frame that only a host sends");
  }
}

/* A login's banner or another server is best told by its own words: the first line of what came, when it is text. */
static const char *
said(const al_chan_t *c, char out[SAID_MAX + 16]) {
  size_t n = 0;
  while (n < c->rlen && n < SAID_MAX - 2 && c->rbuf[n] != '\r' && c->rbuf[n] != '\n') n++;
  if (n < 3) return "";
  for (size_t i = 0; i < n; i++) {
    if (c->rbuf[i] < 0x20 || c->rbuf[i] == 0x7f) return "";
  }
  strcpy(out, ": it said \"");
  size_t at = strlen(out);
  at += al_utf8_printable(out + at, SAID_MAX, c->rbuf, n, false);
  strcpy(out + at, "\"");
  return out;
}

/* Parses what is in rbuf. Receivers run inside; they may close the channel, which ends the loop. */
static void
parse(al_chan_t *c) {
  size_t at = 0;
  while (c->state < AL_CHAN_CLOSING) {
    al_frame_t f;
    const char *why = "";
    int n = al_frame_parse(c->rbuf + at, c->rlen - at, &f, &why);
    if (n == AL_FRAME_MORE) break;
    if (n < 0) {
      char words[SAID_MAX + 16];
      if (c->state == AL_CHAN_HELLO)
        al__chan_fail(c, AL_EPEER_UNPROVEN, "what answered is not a lane agent (%s)%s", why, at ? "" : said(c, words));
      else al__chan_fail(c, AL_EPROTOCOL_VIOLATION, "the guest broke the protocol: %s", why);
      break;
    }
    at += (size_t) n;
    if (f.type != AL_F_ACK) c->received += (uint64_t) n;
    dispatch(c, &f);
  }
  c->rlen -= at;
  if (at > 0 && c->rlen > 0) memmove(c->rbuf, c->rbuf + at, c->rlen);
}

void
al__chan_alloc_cb(uv_handle_t *in, size_t hint, uv_buf_t *buf) {
  al_chan_t *c = in->data;
  (void) hint;
  *buf = uv_buf_init((char *) c->rbuf + c->rlen, (unsigned) (AL_READ_MAX - c->rlen));
}

void
al__chan_read_cb(uv_stream_t *in, ssize_t n, const uv_buf_t *buf) {
  al_chan_t *c = in->data;
  (void) buf;
  if (n == 0) return;
  if (n < 0) {
    char words[SAID_MAX + 16];
    const char *text = c->state == AL_CHAN_HELLO ? said(c, words) : "";
    if (n == UV_EOF) al__chan_fail(c, AL_ECHANNEL_CLOSED, "the channel to the guest ended%s", text);
    else al__chan_fail(c, AL_ECHANNEL_CLOSED, "reading from the guest: %s%s", uv_strerror((int) n), text);
    return;
  }
  c->rlen += (size_t) n;
  c->rx_at = al__chan_now();
  parse(c);
  if (c->state < AL_CHAN_CLOSING) al__chan_flush(c);
}
