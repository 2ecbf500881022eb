/* SPDX-License-Identifier: Apache-2.0 */
/* Frame codec of the channel, without I/O: the one header that host and guest agent share. docs/PROTOCOL.md explains
 * it. */
#ifndef AL_FRAME_H
#define AL_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AL_PROTO_VERSION 1
#define AL_PROTO_MAGIC "ALCH"
#define AL_FRAME_HEADER 12        /* u32 stream, u8 type, u8 flags, u16 zero, u32 length; little-endian */
#define AL_FRAME_MAX 65536        /* payload bytes */
#define AL_STREAM_FROM_GUEST 0x80000000u /* set in ids opened by the guest (none in version 1) */
#define AL_WINDOW_DEFAULT 262144u /* initial credit of every sub-stream, both directions */
#define AL_WINDOW_BULK 524288u    /* of a stdin that comes in bulk: the agent credits the difference */
#define AL_WINDOW_MAX 1048576u    /* no credit may lift a window above this */
#define AL_PACING_MAX 1048576u     /* no more bytes (headers included) of the whole channel may be unacknowledged */
#define AL_PACING_DEFAULT 131072u /* what each end keeps to while it knows nothing better */
#define AL_PACING_ALONE_GUEST 262144u /* of a stream that was the only one to send for AL_PACING_ALONE_NS, at least; */
#define AL_PACING_ALONE_HOST 524288u  /* behind the host's data fewer things wait, and each ACK costs the guest a packet */
#define AL_PACING_ALONE_NS 100000000u
#define AL_PACING_SLOW_NS 5000000u /* in which most of that should be delivered, for that is what a ping waits */
#define AL_ACK_EVERY 65536u       /* acknowledge when that many bytes came */
#define AL_PACING_LEAST (AL_ACK_EVERY + 32768u) /* above what the other end may leave unacknowledged for good */
#define AL_STREAMS_MAX 256        /* streams open at once */
#define AL_OPEN_MAX 524288u       /* bytes of one open request (argv + environment), over all its frames */

/* X(NAME, number, smallest payload, largest payload) */
#define AL_FRAME_MAP(X) \
  X(HELLO, 1, 40, 40)       /* host: magic[4], u16 lowest version, u16 highest, nonce[32] */ \
  X(HELLO_ACK, 2, 74, 330)  /* guest: magic[4], u16 version, u32 features, nonce[32], mac[32], build text */ \
  X(REJECT, 3, 4, 1028)     /* either: u32 code, text; then the sender closes */ \
  X(CONFIG, 4, 0, 65536)    /* host: TLVs of al_tlv_*; once, after HELLO_ACK */ \
  X(CONFIG_ACK, 5, 4, 1028) /* guest: u32 errno (0 = done), text */ \
  X(ACK, 6, 8, 8)           /* either, stream 0: u64 bytes read off the channel so far (pacing) */ \
  X(PING, 7, 8, 8)          /* host: u64 token */ \
  X(PONG, 8, 8, 8)          /* guest: the token */ \
  X(CLOCK, 9, 8, 8)         /* host: u64 its clock, nanoseconds since 1970 */ \
  X(EXEC, 16, 0, 65536) /* host, opens a stream: TLVs; flag AL_FLAG_MORE = goes on in the next EXEC of this stream */ \
  X(READ, 17, 0, 65536) /* host, opens a stream: TLV PATH, USER; answered by DATA on sub-stream 1, EOF, EXIT */ \
  X(TREE, 18, 0, 65536) /* host, opens a stream: TLV PATH, USER; answered by DATA of tree records on sub-stream 1, EOF, EXIT */ \
  X(DATA, 20, 1, 65536) /* flags = sub-stream */ \
  X(END, 21, 0, 0)      /* flags = sub-stream; no more DATA on it */ \
  X(CREDIT, 22, 4, 4)   /* flags = sub-stream: u32 bytes consumed, not 0: the sender may send that much more */ \
  X(SIGNAL, 23, 4, 4)   /* host: u32 signal number; flags 0 = to the process group, 1 = to the whole tree (cgroup) */ \
  X(RESIZE, 24, 4, 4)   /* host: u16 rows, u16 columns */ \
  /* guest, ends the stream: u32 kind, u32 value, u64 nanoseconds, u64 length, text; flags: AL_EXIT_OOM */ \
  X(EXIT, 25, 24, 1048) \
  X(RESET, 26, 0, 0)    /* either: the stream is over at once; the guest kills the tree */ \
  X(CANCEL, 27, 4, 4)   /* host: u32 milliseconds: SIGTERM to the whole tree now, SIGKILL after that time */ \
  X(TCP, 32, 0, 65536)  /* reserved: a TCP stream opened by the guest */ \
  X(RESOLVE, 33, 0, 65536) /* reserved: name look-up */

enum {
#define AL_FRAME_ENUM(name, number, min, max) AL_F_##name = number,
  AL_FRAME_MAP(AL_FRAME_ENUM)
#undef AL_FRAME_ENUM
};

enum { AL_SUB_STDIN = 0, AL_SUB_STDOUT = 1, AL_SUB_STDERR = 2, AL_SUBS = 3 };
enum { AL_FLAG_MORE = 1 };
enum { AL_SIGNAL_GROUP = 0, AL_SIGNAL_TREE = 1 };

/* kind of EXIT */
enum {
  AL_EXIT_CODE = 0,   /* value = exit status */
  AL_EXIT_SIGNAL = 1, /* value = signal number */
  AL_EXIT_ERROR = 2,  /* could not start, or read failed: value = errno, text says what */
};

enum { AL_EXIT_OOM = 1 }; /* flags of EXIT: a process of the command was killed for want of memory */

/* TLVs of CONFIG, EXEC and READ: u16 tag, u32 length, bytes. */
enum {
  AL_TLV_ARG = 1,      /* EXEC, repeated: argv, first one looked up in PATH of the request's environment */
  AL_TLV_ENV = 2,      /* EXEC, repeated: NAME=value */
  AL_TLV_CWD = 3,      /* EXEC */
  AL_TLV_USER = 4,     /* EXEC, READ, CONFIG: "agent" or "root"; in CONFIG the unprivileged user's name */
  AL_TLV_FLAGS = 5,    /* EXEC, CONFIG: u32 */
  AL_TLV_SIZE = 6,     /* EXEC with a terminal: u16 rows, u16 columns */
  AL_TLV_PATH = 7,     /* READ: the file; CONFIG: the worktree */
  AL_TLV_TIME = 8,     /* CONFIG: u64 host clock, nanoseconds since 1970 */
  /* EXEC: u32 milliseconds that others may hold the pipes, u32 from SIGTERM to SIGKILL of AL_EXEC_END_TREE */
  AL_TLV_GRACE = 9,
  AL_TLV_LIMITS = 10,  /* EXEC: u32 processes, u32 thousandths of a CPU, u64 bytes of memory; 0 = no such limit */
};
/* Without AL_EXEC_STDIN stdin is /dev/null; with AL_EXEC_END_TREE whoever outlives the main process is ended, as by
 * CANCEL; with AL_EXEC_UNPACK argv is "tree" or "file" and a path, and the agent unpacks the archive on stdin there. */
enum { AL_EXEC_STDIN = 1, AL_EXEC_TTY = 2, AL_EXEC_END_TREE = 4, AL_EXEC_UNPACK = 8 };
enum { AL_UNPACK_CLASH = 3 }; /* exit status: stdout is two kinds (f, d, l, o) and the path below the target */
#define AL_GRACE_DEFAULT_MS 2000 /* both of AL_TLV_GRACE, where a request says nothing */
enum { AL_CONFIG_SUDO = 1, AL_CONFIG_POWEROFF = 2, };        /* agent user may sudo; power off at EOF of the channel */

typedef struct al_frame_s {
  uint32_t stream;
  uint8_t type, flags;
  uint32_t len;
  const uint8_t *payload; /* borrowed */
} al_frame_t;

enum { /* of al_frame_parse */
  AL_FRAME_MORE = 0,     /* needs more bytes */
  AL_FRAME_BAD = -1,     /* unknown type, length out of that type's bounds, non-zero reserved field: fatal */
};

void
al_frame_header(uint8_t out[AL_FRAME_HEADER], uint32_t stream, uint8_t type, uint8_t flags, uint32_t len);
/* Parses one frame at p. Returns the bytes it takes, AL_FRAME_MORE or AL_FRAME_BAD (then *why is set, static text). */
int
al_frame_parse(const uint8_t *p, size_t n, al_frame_t *out, const char **why);
const char *
al_frame_name(uint8_t type); /* "?" when unknown */

/* TLV reading: *pos starts at 0. Returns 1 (tag, value set), 0 at the end, -1 when malformed. */
int
al_tlv_next(const uint8_t *p, size_t n, size_t *pos, uint16_t *tag, const uint8_t **value, uint32_t *len);
size_t
al_tlv_put(uint8_t *p, size_t room, uint16_t tag, const void *value, uint32_t len); /* bytes written, 0 = no room */

static inline uint16_t al_get16(const uint8_t *p) { return (uint16_t) (p[0] | p[1] << 8); }
static inline uint32_t al_get32(const uint8_t *p) { return (uint32_t) al_get16(p) | (uint32_t) al_get16(p + 2) << 16; }
static inline uint64_t al_get64(const uint8_t *p) { return (uint64_t) al_get32(p) | (uint64_t) al_get32(p + 4) << 32; }
static inline void al_put16(uint8_t *p, uint16_t v) { p[0] = (uint8_t) v; p[1] = (uint8_t) (v >> 8); }
static inline void
al_put32(uint8_t *p, uint32_t v) {
  al_put16(p, (uint16_t) v);
  al_put16(p + 2, (uint16_t) (v >> 16));
}
static inline void
al_put64(uint8_t *p, uint64_t v) {
  al_put32(p, (uint32_t) v);
  al_put32(p + 4, (uint32_t) (v >> 32));
}

/* Records of TREE: a header, then `name` bytes of name, then what is said below. A name is one component and never a
 * path. */
#define AL_TREE_HEADER 32 /* u8 type, u8 zero, u16 name, u32 mode (07777), i64 mtime in s, u32 its ns, u32 zero, u64 size */
#define AL_TREE_NAME_MAX 255
#define AL_TREE_TARGET_MAX 4095
#define AL_TREE_DEPTH_MAX 128 /* directories that are open at one time, the first one not counted */
enum {
  AL_TREE_ROOT = 1,  /* first and once; no name, size 0 */
  AL_TREE_ENTER = 2, /* a directory; size 0 */
  AL_TREE_LEAVE = 3, /* its end; nothing but the type */
  AL_TREE_FILE = 4,  /* `size` bytes follow */
  AL_TREE_LINK = 5,  /* `size` bytes of target follow, 1 to AL_TREE_TARGET_MAX; mode 0 */
  AL_TREE_END = 6,   /* last and once; size = entries but the first, mode = files that changed while they were read */
};

/* The proof: mac = HMAC-SHA-256(secret[32], "agent-lane proof 1" + host nonce + guest nonce). */
#define AL_PROOF_LABEL "agent-lane proof 1"

#endif
