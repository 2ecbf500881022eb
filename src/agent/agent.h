/* SPDX-License-Identifier: Apache-2.0 */
/* The lane agent's own contracts: one process, one thread, static tables, no heap after start-up. */
#ifndef AL_AGENT_H
#define AL_AGENT_H

#include "frame.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define AL_AGENT_BUILD "agent-lane agent 0.1.0"
#define AL_CHUNK 61440u            /* largest DATA payload the agent sends: fifteen pages, see io.c */
#define AL_PIPE 262144u            /* what a command's pipe holds, where the kernel allows it */
#define AL_CREDIT_EVERY 65536u     /* give stdin credit back in portions of this size */
#define AL_CREDIT_LATEST 262144u   /* in bulk it waits for an ACK to go with, up to this size */
#define AL_PONGS_MAX 64            /* pings not answered yet; more is fatal */
#define AL_HELLO_MS 30000          /* how long the host may take to say HELLO */
#define AL_FLUSH_MS 2000           /* how long a REJECT or the last EXIT may take to leave */
#define AL_GROUPS_MAX 64
#define AL_ATTACH_MAX 8            /* attached agents at one time */
#define AL_ATTACH_STREAMS 16       /* streams of each of them */
#define AL_FAIL_TEXT 248

/* code of REJECT; docs/PROTOCOL.md */
enum { AL_REJECT_PEER = 1, AL_REJECT_VERSION = 2, AL_REJECT_PROTOCOL = 3, AL_REJECT_SETUP = 4, AL_REJECT_TIMEOUT = 5 };

typedef struct al_user_s {
  char name[64], home[256], shell[128];
  uid_t uid;
  gid_t gid, groups[AL_GROUPS_MAX];
  size_t groups_len;
} al_user_t;

/* A command's cgroup: a numbered directory below AL_CGROUP_ROOT, reused once it is empty. */
typedef struct al_cgroup_s {
  uint32_t number;
  int dir, events; /* -1 when cgroups are off */
  int memory;      /* memory.events, -1 when there is no such controller */
  uint64_t ooms;   /* its count of processes that were killed for want of memory, as far as it is told */
  bool spent;      /* killed or with limits: never used again */
} al_cgroup_t;

/* 0 = no such limit */
typedef struct al_limits_s {
  uint32_t processes, cpu_milli;
  uint64_t memory;
} al_limits_t;

/* What a child that could not exec leaves behind; lives in a MAP_SHARED page, since clone may be emulated by fork. */
typedef struct al_fail_s {
  int err;
  char text[AL_FAIL_TEXT];
} al_fail_t;

typedef enum {
  AL_SLOT_FREE,    /* nothing valid but `state` */
  AL_SLOT_OPENING, /* EXEC with AL_FLAG_MORE: the area holds `area_len` bytes of TLVs */
  AL_SLOT_RUN,     /* pid, cgroup, fd[]; the area holds stdin not yet written */
  AL_SLOT_READ,    /* fd[AL_SUB_STDOUT] is the file */
  AL_SLOT_TREE,    /* fd[AL_SUB_STDOUT] is its top; the area holds the walk */
  AL_SLOT_DONE,    /* exit_* valid; waits for room in the output to say EXIT */
} al_slot_state_t;

typedef struct al_slot_s {
  al_slot_state_t state;
  uint32_t id;
  bool too_big;                    /* OPENING: over AL_OPEN_MAX, answered when the last part is here */
  bool host_ended;                 /* no more DATA on stdin may come */
  bool deaf;                       /* RUN: the command closed its stdin and the host has not been told */
  bool reaped;                     /* RUN: the main process is gone, exit_* valid */
  bool ready[AL_SUBS];             /* set by the poll round */
  bool wide[AL_SUBS];              /* RUN: its pipe has been asked to hold AL_PIPE */
  bool bulk;                       /* RUN: stdin's window is AL_WINDOW_BULK */
  uint64_t calm_ns[AL_SUBS];       /* RUN: not looked at before this time */
  int fd[AL_SUBS];                 /* our ends, -1 = closed; with a terminal stdin and stdout are its master */
  int tty;                         /* the terminal's slave until the main process is reaped; -1 = none */
  uint16_t rows, cols;             /* of the terminal */
  uint8_t last_in;                 /* the last byte of stdin that was written; 0 = none */
  uint32_t credit[AL_SUBS];        /* stdin: what the host may still send; others: what we may */
  uint32_t eaten;                  /* stdin bytes taken and not credited yet */
  size_t area_off, area_len;
  pid_t pid;
  al_cgroup_t cgroup;
  uint64_t started_ns, grace_ns;   /* monotonic */
  uint32_t hold_ms, kill_ms;       /* RUN: the graces of its request */
  bool end_tree;                   /* RUN: what outlives the main process is ended */
  bool unpack;                     /* RUN: it is our own program, which removes what is not in place when told to end */
  /* RUN: by the host; what it gives no credit for any more is dropped after the grace */
  bool cancelled;
  uint64_t kill_ns;                /* RUN: when the tree is killed, then when we stop waiting for its end; 0 = never */
  bool kill_sent, given_up;
  bool oom;                        /* DONE */
  uint64_t size, sent;             /* READ; TREE: size is UINT64_MAX until all is said */
  uint32_t exit_kind, exit_value;
  uint64_t exit_ns;
  char exit_text[AL_FAIL_TEXT];
} al_slot_t;

/* What is sent is read from a file or made from a directory, and not from a command's pipe. */
static inline bool
al_slot_is_file(const al_slot_t *s) {
  return s->state == AL_SLOT_READ || s->state == AL_SLOT_TREE;
}

typedef struct al_agent_s {
  bool local, no_cgroup;           /* options */
  const char *secret_path, *home;
  char user_name[64];
  char worktree[4096];             /* of CONFIG; "" = none */
  bool attached;                   /* option: joins the owner's agent */
  uint8_t attach_place;
  bool configured, poweroff;
  uint32_t last_id;                /* highest stream id seen */
  size_t slots_high;               /* slots in use are below this */
  al_slot_t slots[AL_STREAMS_MAX];
} al_agent_t;

extern al_agent_t al_agent;

/* calm.c: when the channel is left alone. */
void
al_calm_came(uint64_t total, bool bulk, bool goes_on); /* bytes have come, some of them in bulk, and the last of them too */
bool
al_calm_goes_on(void); /* much came, and what comes next will be looked at after a moment, whatever happens */
uint64_t
al_calm_take(void); /* how long the channel is to be left alone now, once; in ns */

/* io.c: the channel's two buffers and pacing. */
int
al_io_fill(void); /* one read, or a frame's bytes moved to their command: 1 = something came, 0 = EOF, -1 = nothing now */
bool
al_io_next(al_frame_t *f); /* a whole frame, or of a large DATA a part; valid until the next al_io_fill; fatal when malformed */
bool
al_io_bulk(uint64_t *total); /* whether large frames of a command's stdin come one after the other; total: bytes read so far */
bool
al_io_frame(uint32_t stream, uint8_t type, uint8_t flags, const void *payload, uint32_t len); /* false = no room now */
uint8_t *
al_io_reserve(size_t payload); /* room for header and payload; NULL = none now */
void
al_io_commit(uint32_t stream, uint8_t type, uint8_t flags, uint32_t len);
void
al_io_sender(uint32_t stream); /* it has DATA to send */
uint32_t
al_io_data_room(void); /* bytes of DATA that may be queued now */
void
al_io_init(bool port);
/* One frame of at most `most` bytes out of a command's pipe, moved and not copied. Returns its bytes; 0 = nothing was
 * done: read and copy. */
uint32_t
al_io_splice(uint32_t stream, uint8_t flags, int pipe, uint32_t most);
bool
al_io_pending(void);
bool
al_io_flush(void); /* false = the channel is broken */
void
al_io_acked(uint64_t total);
bool
al_io_ack(void); /* queues an ACK when one is due; returns whether it did */
void
al_io_drain(int ms); /* writes out what is queued, at most that long */

/* hello.c */
void
al_hello_wait(void);

/* config.c */
void
al_config_apply(const al_frame_t *f);
void
al_config_clock(uint64_t ns);

/* users.c */
int
al_users_find(const char *name, const al_user_t **out); /* 0 or -errno; cached until passwd or group change */
int
al_users_become(const al_user_t *u); /* effective ids, for one open() */
void
al_users_restore(void);

/* cgroup.c */
int
al_cgroup_init(void);
int
al_cgroup_take(al_cgroup_t *out);
void
al_cgroup_give(al_cgroup_t *cg);
bool
al_cgroup_empty(const al_cgroup_t *cg);
bool
al_cgroup_oom(al_cgroup_t *cg); /* whether one of its processes was killed for want of memory since the last call */
void
al_cgroup_signal(al_cgroup_t *cg, int signo);
void
al_cgroup_kill_all(void);
void
al_cgroup_remove(void); /* an attached agent's own, when it ends */
void
al_cgroup_kill_attached(int place); /* what an attached agent that was killed has left, in the owner's */

/* limits.c */
bool
al_limits_any(const al_limits_t *l);
int
al_limits_set(const al_cgroup_t *cg, const al_limits_t *l, const char **what); /* -EOPNOTSUPP: not on this kernel */

/* cancel.c */
void
al_cancel_signal(al_slot_t *s, int signo, bool tree);
void
al_cancel_begin(al_slot_t *s, uint32_t grace_ms, uint64_t now);
void
al_cancel_reaped(al_slot_t *s, uint64_t now); /* the main process is gone */
void
al_cancel_tick(uint64_t now);
uint64_t
al_cancel_wait(const al_slot_t *s, uint64_t now); /* nanoseconds until the next tick is due */
bool
al_cancel_over(const al_slot_t *s); /* no tree is being ended any more: EXIT may be said */

/* spawn.c */
typedef struct al_spawn_s {
  char **argv; /* argv[-1] is a spare place, for scripts without #! */
  char **envp;
  const char *path, *cwd;
  const al_user_t *user; /* NULL: stay what we are */
  int fd[AL_SUBS];
  bool tty; /* fd[0] becomes the controlling terminal */
  const al_cgroup_t *cgroup;
  al_fail_t *fail;
} al_spawn_t;
int
al_spawn_init(void);
pid_t
al_spawn_start(const al_spawn_t *sp); /* pid or -errno; exec failures come as sp->fail and exit 127 */
al_fail_t *
al_spawn_fail(size_t slot);

/* attach.c */
void
al_attach_listen(void); /* once CONFIG is done */
void
al_attach_join(void); /* of an attached agent, before it answers HELLO: gets a place, or rejects */
int
al_attach_fd(void); /* to be polled for input; -1 = none */
void
al_attach_turn(void); /* it is readable */

/* pty.c */
int
al_pty_open(al_slot_t *s, al_spawn_t *sp); /* a terminal of s->rows and s->cols instead of pipes; 0 or -errno */
void
al_pty_resize(al_slot_t *s, uint16_t rows, uint16_t cols);
void
al_pty_close(al_slot_t *s);
size_t
al_pty_eof(const al_slot_t *s, uint8_t out[2]); /* what stands for the end of input on this terminal; its length */

/* request.c: EXEC's TLVs to a running child. */
void
al_request_exec(al_slot_t *s, size_t index);

/* pipes.c */
/* The ends of ours and of the child's. 0 or -errno; what was made by then stays in the two tables. */
int
al_pipes_make(al_slot_t *s, al_spawn_t *sp, bool with_stdin);
void
al_pipes_ahead(void); /* while there is time: the next command then need not wait for its pipes */

/* stream.c */
void
al_stream_frame(const al_frame_t *f);
void
al_stream_reaped(pid_t pid, int status, uint64_t now);
int
al_stream_sink(uint32_t stream, uint8_t flags, uint32_t len); /* the pipe that `len` bytes of DATA may go into at once; -1 = none */
void
al_stream_sunk(uint32_t stream, uint32_t n); /* so many went */
void
al_stream_feed(al_slot_t *s); /* stdin bytes into the pipe */
void
al_stream_control(bool with_ack); /* CREDIT and EXIT frames that are due; with_ack: an ACK goes out now */
void
al_stream_widen(al_slot_t *s, int sub); /* a command that moves much gets a larger pipe, for fewer turns; once */
void
al_stream_close_fd(al_slot_t *s, int sub);
void
al_stream_finish(al_slot_t *s, uint32_t kind, uint32_t value, const char *text);
void
al_stream_init(void);
uint8_t *
al_stream_area(const al_slot_t *s); /* AL_OPEN_MAX + 8 bytes */
void
al_stream_dirty(const al_slot_t *s); /* much of its area is used: to be given back at the end */

/* pump.c: what commands write and files hold, out to the host. */
bool
al_pump_output(uint64_t now); /* true: a stream of a command has ended */
void
al_pump_grace(uint64_t now);

/* read.c */
void
al_read_open(al_slot_t *s, const uint8_t *tlvs, uint32_t len);
int
al_read_request(al_slot_t *s, const uint8_t *tlvs, uint32_t len, int flags, bool *root); /* < 0: the slot is finished */

/* tree.c */
void
al_tree_open(al_slot_t *s, const uint8_t *tlvs, uint32_t len);
ssize_t
al_tree_fill(al_slot_t *s, uint8_t *p, size_t n); /* bytes of records; -1 = the slot is finished, with an error */
void
al_tree_close(al_slot_t *s); /* all but the top */

/* stop.c */
_Noreturn void
al_stop_reject(uint32_t code, const char *text);
_Noreturn void
al_stop_eof(int code);

/* main.c */
uint64_t
al_main_now(void);
int
al_main_null(void);

#endif
