/* SPDX-License-Identifier: Apache-2.0 */
/* Channel internals, shared by chan.c (life), chan_in.c (parsing), chan_out.c (sending) and chan_stream.c (streams). */
#ifndef AL_CHAN_INT_H
#define AL_CHAN_INT_H

#include "buf.h"
#include "chan.h"
#include "pacing.h"
#include "queue.h"

/* Theory of operation.
 *
 * Everything happens on the loop thread in one of three places: the read callback (parses frames and calls the
 * receivers), the `turn` timer (one turn of the loop later: ends streams and the channel, sends), and the `clock` timer
 * (deadlines). A function that the user calls only notes what is wanted and asks for a turn, so that no callback ever
 * comes from inside a user's call and nothing is freed under a caller's feet.
 *
 * Sending: at most one uv_write is in flight. Each time there is none, al__chan_flush fills one buffer: the
 * acknowledgement, then the control queue (HELLO, CONFIG, PING, RESET), then each stream's small frames (CREDIT,
 * SIGNAL, RESIZE), then open requests and stdin, one chunk per stream and round. Stdin is not copied for it: the write
 * holds the pieces of the stream's queue that it sends from, whatever becomes of the stream. Credits and signals are
 * kept as numbers and bits until they are written, so that a guest which does not read cannot make us queue them.
 *
 * A stream id is given out when the open request begins to go out. One that never was is fatal, and so is one whose
 * guest has said EXIT or RESET. A stream that we have reset stays behind in `crossed` until the guest has acknowledged
 * our RESET: what was on its way is dropped, but checked as before, so that it cannot be more than the stream's own
 * windows allow. */

#define AL_CHUNK_MAX 32768u       /* payload bytes of one stream per round, when others have some too */
#define AL_CRUMB 16384u           /* a part of what a stream has is not worth a frame below this */
#define AL_WRITE_MAX 135168u      /* bytes of one write: two of the largest frames, and small ones */
#define AL_WRITE_HOLD 4096u       /* fewer are cheaper to copy than to send from where they are */
#define AL_WRITE_HELD (AL_WRITE_MAX / AL_WRITE_HOLD)
#define AL_READ_MAX 262144u       /* read buffer: four frames of nearly the largest size */
#define AL_ACK_LATEST 262144u     /* a fast channel is told less often: each frame wakes an emulated guest */
#define AL_ACK_FAST_MS 4          /* a channel is fast that brings AL_ACK_EVERY in less; */
#define AL_ACK_WAIT_MS 1          /* then the rest is waited for that long */
#define AL_CREDIT_EVERY (AL_WINDOW_DEFAULT / 2)
#define AL_WINDOW_GROWN AL_WINDOW_MAX
#define AL_GROWN_MAX 8           /* such windows in one channel at a time: they bound what stalled receivers hold */
#define AL_CTL_MAX 65536u         /* control queue; a guest that lets it fill up is not taking anything */

typedef enum {
  AL_CHAN_HELLO,   /* HELLO sent, nothing else may be; waits for HELLO_ACK */
  AL_CHAN_READY,
  AL_CHAN_CLOSING, /* `why` is set, reading has stopped, the next turn ends everything */
  AL_CHAN_DEAD,    /* streams are gone, the timers are being closed */
} al_chan_state_t;

typedef struct al_write_s { /* outlives the channel while libuv still has it (then c is NULL) */
  uv_write_t req;
  al_chan_t *c;
  bool in_flight;
  size_t len, used;               /* of all; of `bytes` */
  unsigned nbufs, nheld;
  uv_buf_t bufs[2 * AL_WRITE_HELD + 1];
  al_piece_t *held[AL_WRITE_HELD];
  uint8_t bytes[AL_WRITE_MAX];
} al_write_t;

typedef struct al_ping_s {
  uint64_t token, at_ns;
  void (*cb)(void *data, int status, uint64_t ns); /* NULL: our own, for liveness */
  void *data;
} al_ping_t;

struct al_chan_s {
  uv_loop_t *loop;
  al_chan_opts_t opts;
  al_chan_cbs_t cbs;
  void *data;
  al_chan_state_t state;
  al_err_t why;          /* what the streams are told */
  bool by_user;          /* closed by al_chan_close: on_closed gets no error */
  uv_stream_t *in, *out; /* NULL once closing */
  void *in_data;
  uv_timer_t turn, clock, ack;
  unsigned handles;
  uint8_t nonce[32];
  /* incoming */
  uint8_t *rbuf;
  size_t rlen;
  uint64_t received, ack_sent; /* bytes of frames other than ACK */
  uint64_t ack_at;       /* when the last one was sent, ms */
  bool ack_late;         /* the wait for more is over */
  /* outgoing */
  al_buf_t ctl;
  al_write_t *w;
  uint64_t sent, acked;
  al_pacing_t pacing;
  bool blocked;          /* the last fill stopped for want of acknowledgements */
  /* deadlines, in ms of the monotonic clock; 0 = none */
  uint64_t hello_due, config_due, clock_due;
  int64_t clock_base;    /* time of day minus monotonic clock, in ns, as the guest knows it; 0 = not told yet */
  uint64_t clock_told;   /* when, by the monotonic clock */
  uint64_t rx_at, stalled_at; /* last byte in; since when nothing goes out, or is read */
  /* CONFIG */
  bool configured;
  void (*config_cb)(void *data, int status, const al_err_t *err);
  void *config_data;
  al_ping_t pings[AL_PINGS_MAX + 1];
  unsigned npings;
  bool live_ping;        /* one of them is ours */
  uint64_t token;
  /* streams, dense, in the order of opening but for removals */
  al_stream_t *streams[AL_STREAMS_MAX];
  unsigned nstreams, next;
  unsigned senders;      /* of them, those that had bytes for the guest when this write began to be filled */
  unsigned grown;        /* sub-streams with a larger window */
  uint32_t last_id;
  al_stream_t *crossed;  /* reset by us, told, and not acknowledged yet; oldest first */
  al_chan_watch_t *watches;
};

typedef struct al_sub_s {
  uint32_t window; /* bytes the guest may still send */
  uint32_t held;   /* delivered and not yet consumed */
  uint32_t due;    /* consumed and not yet credited */
  bool ended, grown; /* grown: its window is AL_WINDOW_GROWN */
} al_sub_t;

struct al_stream_s {
  al_chan_t *c;
  uint32_t id;                      /* 0 until the open request begins to go out */
  uint8_t kind;                     /* AL_F_EXEC, _READ or _TREE */
  bool with_stdin, begun, opened;   /* first, last frame of the open request was written */
  bool end_wanted, end_sent, deaf;  /* deaf: the guest has closed stdin */
  bool over;                        /* `exit` is set; on_exit comes on the next turn, nothing else does */
  bool last;                        /* the guest has said its last: EXIT or RESET */
  uint64_t reset_at;                /* `sent` of the channel behind our RESET; 0 until it is written */
  al_stream_t *next_crossed;
  bool drain_armed, drain_due, resize_due, cancel_due;
  uint32_t cancel_ms;
  uint16_t rows, cols;
  al_stream_cbs_t cbs;
  void *data;
  al_buf_t open;
  al_queue_t q;                     /* stdin */
  size_t open_off;
  uint32_t room;                    /* stdin bytes the guest still takes */
  uint64_t signals[2];              /* bit n-1: signal n is to be sent; by AL_SIGNAL_GROUP, AL_SIGNAL_TREE */
  al_sub_t sub[AL_SUBS];
  al_exit_t exit;
};

uint64_t
al__chan_now(void); /* ms, monotonic */
/* The channel is over: stops reading, remembers the reason (the first one stays), ends everything on the next turn. */
void
al__chan_fail(al_chan_t *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void
al__chan_turn(al_chan_t *c); /* asks for a turn */
bool
al__chan_owed(const al_chan_t *c);
void
al__chan_owe(al_chan_t *c); /* before something becomes owed: starts the count of silence when nothing was */
void
al__stream_grow(al_stream_t *s, al_sub_t *sub); /* a larger window for one whose receiver keeps up */
void
al__stream_deaf(al_stream_t *s); /* nothing more goes to its stdin, END neither */
void
al__chan_rearm(al_chan_t *c);
void
al__chan_ready(al_chan_t *c); /* the proof held */

void
al__chan_read_cb(uv_stream_t *in, ssize_t n, const uv_buf_t *buf);
void
al__chan_alloc_cb(uv_handle_t *in, size_t hint, uv_buf_t *buf);

/* queues a control frame */
int
al__chan_ctl(al_chan_t *c, uint32_t stream, uint8_t type, uint8_t flags, const void *p, uint32_t n);
void
al__chan_flush(al_chan_t *c);

al_stream_t *
al__stream_find(al_chan_t *c, uint32_t id);
void
al__stream_finish(al_stream_t *s); /* out of the table, on_exit; freed, or kept in `crossed` */
al_stream_t *
al__stream_crossed(al_chan_t *c, uint32_t id); /* among those reset by us */
/* frees those whose RESET lies in the first `acked` bytes; UINT64_MAX: all */
void
al__stream_forget(al_chan_t *c, uint64_t acked);
int
al__tlv_append(al_buf_t *b, uint16_t tag, const void *p, size_t n);

#endif
