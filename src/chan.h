/* SPDX-License-Identifier: Apache-2.0 */
/* Channel, host side: handshake, proof, streams, credits, pacing, over any pair of libuv streams. */
#ifndef AL_CHAN_H
#define AL_CHAN_H

#include "err.h"
#include "frame.h"
#include <uv.h>

#define AL_STDIN_QUEUE_MAX (1u << 20) /* queued and unsent stdin of one stream */
#define AL_PINGS_MAX 16
#define AL_STDIN_QUEUE_LOW 65536u     /* on_drain comes when the queue falls below */

typedef struct al_chan_s al_chan_t;
typedef struct al_stream_s al_stream_t;

typedef struct al_chan_opts_s {
  /* Borrowed until on_closed, may be the same; the channel never closes them. in->data is the channel's while it reads
   * and is put back when it stops (at the latest in al_chan_close). A write still in flight then ends by itself or when
   * the owner closes `out`. */
  uv_stream_t *in, *out;
  uint8_t secret[32];           /* proof */
  uint64_t handshake_ms;        /* deadline for HELLO_ACK and for CONFIG_ACK, each; default 10000 */
  uint64_t ping_ms, silence_ms; /* liveness while something is owed; defaults 5000 and 15000; 0 = default */
} al_chan_opts_t;

typedef struct al_chan_cbs_s {
  void (*on_ready)(al_chan_t *c, void *data);                       /* proven; CONFIG may be sent, streams opened */
  /* Exactly once, also for al_chan_close; every stream has had its on_exit before. err->code: AL_ECHANNEL_CLOSED,
   * AL_EPROTOCOL_VIOLATION, AL_EPEER_UNPROVEN, AL_EPEER_INCOMPATIBLE, or 0 for al_chan_close. The channel's memory is
   * gone when it returns. */
  void (*on_closed)(al_chan_t *c, void *data, const al_err_t *err);
} al_chan_cbs_t;

typedef struct al_exit_s {
  int kind;             /* AL_EXIT_*; or -1: the stream ended without EXIT, see err */
  uint32_t value;
  uint64_t ns;          /* guest time from spawn to reaping */
  uint64_t length;      /* READ, TREE: bytes as the guest counted them */
  bool oom;             /* a process of the command was killed for want of memory */
  char text[512];       /* printable */
  al_err_t err;         /* kind -1 or AL_EXIT_ERROR */
} al_exit_t;

/* All on the loop thread, never from inside a call of the receiver's; each may call any al_stream_* or al_chan_*
 * function. Bytes of on_data are borrowed. on_exit is the last one, exactly once; the stream's memory is the channel's
 * and gone after it. A guest that ends a stream without END on its outputs (a grandchild held them) gives on_exit
 * without on_end. */
typedef struct al_stream_cbs_s {
  /* call al_stream_consumed for what you have taken */
  void (*on_data)(al_stream_t *s, void *data, int sub, const uint8_t *p, size_t n);
  void (*on_end)(al_stream_t *s, void *data, int sub);
  void (*on_drain)(al_stream_t *s, void *data); /* the queue of al_stream_write fell below 64 KiB; may be NULL */
  void (*on_exit)(al_stream_t *s, void *data, const al_exit_t *exit);
} al_stream_cbs_t;

typedef struct al_exec_req_s { /* all borrowed for the call */
  const char *const *argv;
  const char *const *env;       /* NAME=value, NULL-terminated */
  const char *cwd;
  const char *user;             /* "agent" or "root" */
  bool with_stdin, tty;
  bool unpack; /* argv is "tree" or "file" and a path: the guest's agent unpacks the archive on stdin there */
  uint16_t rows, cols;
  /* Milliseconds; 0 = AL_GRACE_DEFAULT_MS, negative = none. hold: how long others may hold the command's pipes after
   * its end; kill: from SIGTERM to SIGKILL of end_tree, which ends whoever outlives the main process. */
  int hold_ms, kill_ms;
  bool end_tree;
  /* 0 = no such limit; what the guest cannot enforce is AL_EXIT_ERROR with EOPNOTSUPP */
  uint32_t max_processes, max_cpu_milli;
  uint64_t max_memory;
} al_exec_req_t;

int
al_chan_open(uv_loop_t *loop, const al_chan_opts_t *opts, const al_chan_cbs_t *cbs, void *data, al_chan_t **out);
/* Starts an orderly end: every stream gets on_exit with `why` (copied; NULL: AL_ELANE_CLOSED), then on_closed.
 * Idempotent. */
void
al_chan_close(al_chan_t *c, const al_err_t *why);
uv_loop_t *
al_chan_loop(al_chan_t *c);

/* For what outlives its stream and must not outlive the channel: cb comes once, after every stream's on_exit and before
 * on_closed, unless unwatched before. Embedded in the caller's memory. */
typedef struct al_chan_watch_s {
  void (*cb)(struct al_chan_watch_s *w, const al_err_t *why);
  struct al_chan_watch_s *next, **at; /* private */
} al_chan_watch_t;
void
al_chan_watch(al_chan_t *c, al_chan_watch_t *w);
void
al_chan_unwatch(al_chan_watch_t *w); /* no-op when it is not watched any more */

/* After on_ready, once. cb: 0 or error, exactly once. -EINVAL too early or twice, AL_ECHANNEL_CLOSED, -ENOMEM. */
int
al_chan_config(al_chan_t *c, const char *user, const char *worktree, uint32_t flags,
  void (*cb)(void *data, int status, const al_err_t *err), void *data);
/* Round trip to the guest's agent. -EAGAIN with AL_PINGS_MAX of them on the way. cb exactly once, status 0 or
 * AL_ECHANNEL_CLOSED. */
int
al_chan_ping(al_chan_t *c, void (*cb)(void *data, int status, uint64_t ns), void *data);

/* To be called every few seconds with the time of day and the monotonic clock: tells the guest the time every ten
 * seconds, since it may miss some, and at once when the two have parted by a second or more (the host slept, or
 * somebody set its clock). */
void
al_chan_time(al_chan_t *c, uint64_t wall_ns, uint64_t mono_ns);

/* AL_ECHANNEL_CLOSED, AL_EBAD_OPTION (argv + env over AL_OPEN_MAX), AL_EBUSY (AL_STREAMS_MAX), -ENOMEM. */
int
al_stream_exec(
  al_chan_t *c, const al_exec_req_t *req, const al_stream_cbs_t *cbs, void *data, al_stream_t **out, al_err_t *err);
int
al_stream_read(al_chan_t *c, const char *path, const char *user, const al_stream_cbs_t *cbs, void *data,
  al_stream_t **out, al_err_t *err);
/* A directory, as records of frame.h on sub-stream 1. */
int
al_stream_tree(al_chan_t *c, const char *path, const char *user, const al_stream_cbs_t *cbs, void *data,
  al_stream_t **out, al_err_t *err);
/* Queues stdin bytes (copied). Returns the bytes now queued and unsent (stop above 256 KiB, go on in on_drain),
 * -ENOMEM, or -ENOBUFS above AL_STDIN_QUEUE_MAX. After the guest has closed stdin the bytes are dropped and 0 is returned. */
int64_t
al_stream_write(al_stream_t *s, const void *p, size_t n);
/* The same without the copy and without a maximum: p (al_malloc) is taken, also on failure. */
int64_t
al_stream_give(al_stream_t *s, void *p, size_t n);
size_t
al_stream_queued(const al_stream_t *s); /* bytes of stdin that wait here */
void
al_stream_end(al_stream_t *s); /* EOF on stdin after what is queued */
void
al_stream_consumed(al_stream_t *s, int sub, size_t n);
void
al_stream_signal(al_stream_t *s, int signo, bool tree);
void
al_stream_resize(al_stream_t *s, uint16_t rows, uint16_t cols);
/* Has the guest end the command's whole tree: SIGTERM, SIGKILL after `grace_ms`, whose clock runs in the guest. EXIT
 * comes when the tree is gone. What waits for its stdin is dropped. One that has not been sent yet is reset. */
void
al_stream_cancel(al_stream_t *s, uint32_t grace_ms);
/* Abandons the stream: RESET to the guest, no on_data any more, on_exit (kind -1, `why` or AL_EABORTED) on the next
 * turn of the loop. */
void
al_stream_reset(al_stream_t *s, const al_err_t *why);

#endif
