/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel under the simulated agent: pipes, files, commands and the system calls on them. Included by sim_agent.c
 * only. */
#ifndef AL_SIM_KERNEL_H
#define AL_SIM_KERNEL_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

#define PIPE_ROOM 65536u
#define SYS_OPENAT2 437 /* as in read.c */
#define PIPES_MAX (3 * AL_STREAMS_MAX + 8)
#define FD_NULL 900
#define FD_SECRET 901
#define FD_HELD 902    /* the agent's own pipes read, + 1 write */
#define FD_FRAMED 904
#define FD_PIPES 1000  /* pipe i: FD_PIPES + 2 * i reads, + 1 writes */
#define FD_FILES 10000 /* the file of plan k: FD_FILES + k */
#define FILES_MAX 4096
#define FD_DIRS 20000  /* directory i: FD_DIRS + i */
#define DIRS_MAX 4096

typedef struct pipe_s {
  uint64_t made, taken;
  bool agent[2], command[2]; /* who holds the reading and the writing end */
  uint32_t key;
  int sub;
} pipe_t;

sim_command_t sim_commands[AL_STREAMS_MAX];
uint32_t sim_agent_code;
bool sim_any_stdin;
const char *sim_agent_text, *sim_broken;

static pipe_t pipes[PIPES_MAX];
static size_t pipes_high, commands_high;
static struct { bool is_open; uint64_t at; sim_plan_t plan; } files[FILES_MAX];
static size_t files_high;
/* A directory is its key: the lowest four bits say how deep it is, the others what is in it. */
static struct { bool is_open; uint32_t key, at; } dirs[DIRS_MAX];
static size_t dirs_high;
static struct { uint8_t bytes[1 << 18]; size_t len; bool ended; } to_agent, from_agent;
static struct { uint8_t bytes[1 << 18]; size_t at, len; } own_pipes[2];
static size_t room_each;
static void (*plan_of)(uint32_t key, sim_plan_t *out);
static int last_pid;
static uint64_t wakes_at;
static bool sim_ended, greeted;
static jmp_buf way_out;

static void
broken(const char *what) {
  if (!sim_broken) sim_broken = what;
}

static bool
pipe_used(const pipe_t *p) {
  return p->agent[0] || p->agent[1] || p->command[0] || p->command[1];
}

static pipe_t *
pipe_at(int fd, int end) {
  size_t i = (size_t) (fd - FD_PIPES) / 2;
  if (fd < FD_PIPES || i >= pipes_high || (fd - FD_PIPES) % 2 != end || !pipes[i].agent[end]) {
    broken("the agent used a descriptor that it does not have");
    return &pipes[PIPES_MAX - 1];
  }
  return &pipes[i];
}

static sim_command_t *
command_of(pid_t pid) {
  for (size_t i = 0; i < commands_high; i++)
    if (sim_commands[i].used && sim_commands[i].pid == pid) return &sim_commands[i];
  return NULL;
}

/* ---- system calls ---- */

static ssize_t
take_stream(void *p, size_t n) {
  if (to_agent.len == 0) {
    if (to_agent.ended) return 0;
    errno = EAGAIN;
    return -1;
  }
  if (n > to_agent.len) n = to_agent.len;
  memcpy(p, to_agent.bytes, n);
  memmove(to_agent.bytes, to_agent.bytes + n, to_agent.len -= n);
  sim_progress++;
  return (ssize_t) n;
}

static void
fill_bytes(uint8_t *p, uint32_t key, int sub, uint64_t at, size_t n) {
  for (size_t i = 0; i < n; i++) p[i] = sim_byte(key, sub, at + i);
}

static bool
is_own_pipe(int fd) {
  return fd >= FD_HELD && fd < FD_HELD + 4;
}

static ssize_t
take_own(int fd, void *p, size_t n) {
  size_t i = (size_t) (fd - FD_HELD) / 2;
  if (n > own_pipes[i].len) n = own_pipes[i].len;
  memcpy(p, own_pipes[i].bytes + own_pipes[i].at, n);
  own_pipes[i].at += n, own_pipes[i].len -= n;
  return (ssize_t) n;
}

static ssize_t
put_own(int fd, const void *p, size_t n) {
  size_t i = (size_t) (fd - FD_HELD) / 2;
  if (own_pipes[i].len == 0) own_pipes[i].at = 0;
  size_t end = own_pipes[i].at + own_pipes[i].len;
  if (n > sizeof(own_pipes[i].bytes) - end) broken("an own pipe of the agent is full");
  memcpy(own_pipes[i].bytes + end, p, n);
  own_pipes[i].len += n;
  return (ssize_t) n;
}

static ssize_t
sim_read(int fd, void *p, size_t n) {
  if (fd == 0) return take_stream(p, n);
  if (is_own_pipe(fd)) return take_own(fd, p, n);
  if (fd == FD_SECRET) {
    static const char hex[] = "3031323334353637383961626364656630313233343536373839616263646566";
    if (n < 64) return 0; /* the second call finds the end */
    memcpy(p, hex, 64);
    return 64;
  }
  if (fd >= FD_FILES) {
    size_t k = (size_t) (fd - FD_FILES);
    uint64_t size = files[k].plan.shrinks ? files[k].plan.out[0] / 2 : files[k].plan.out[0];
    if (n > size - files[k].at) n = (size_t) (size - files[k].at);
    fill_bytes(p, (uint32_t) k, 1, files[k].at, n);
    files[k].at += n;
    sim_progress++;
    return (ssize_t) n;
  }
  pipe_t *pipe = pipe_at(fd, 0);
  if (pipe->made == pipe->taken) {
    if (!pipe->command[1]) return 0;
    errno = EAGAIN;
    return -1;
  }
  if (n > pipe->made - pipe->taken) n = (size_t) (pipe->made - pipe->taken);
  fill_bytes(p, pipe->key, pipe->sub, pipe->taken, n);
  pipe->taken += n;
  sim_progress++;
  return (ssize_t) n;
}

static ssize_t
sim_write(int fd, const void *p, size_t n) {
  const uint8_t *b = p;
  if (is_own_pipe(fd)) return put_own(fd, p, n);
  if (fd == 1) {
    size_t room = room_each > from_agent.len ? room_each - from_agent.len : 0;
    if (from_agent.ended) errno = EPIPE;
    else errno = EAGAIN;
    if (from_agent.ended || room == 0) return -1;
    if (n > room) n = room;
    memcpy(from_agent.bytes + from_agent.len, p, n);
    from_agent.len += n;
    sim_progress++;
    return (ssize_t) n;
  }
  pipe_t *pipe = pipe_at(fd, 1);
  if (!pipe->command[0]) errno = EPIPE;
  else errno = EAGAIN;
  size_t room = PIPE_ROOM - (size_t) (pipe->made - pipe->taken);
  if (!pipe->command[0] || room == 0) return -1;
  if (n > room) n = room;
  for (size_t i = 0; i < n && !sim_any_stdin; i++)
    if (b[i] != sim_byte(pipe->key, 0, pipe->made + i)) broken("a byte of stdin is wrong or not in its place");
  pipe->made += n;
  sim_progress++;
  return (ssize_t) n;
}

static ssize_t
sim_splice(int in, void *in_at, int to, void *to_at, size_t n, unsigned flags) {
  static uint8_t bytes[1 << 18];
  (void) in_at, (void) to_at, (void) flags;
  if (to == FD_HELD + 1 && own_pipes[0].len > 0) broken("the agent's own pipe is not empty");
  if (n > sizeof(bytes)) n = sizeof(bytes);
  if (in == 0) { /* what has come, into a command's pipe */
    if (to_agent.len == 0) return take_stream(bytes, 0);
    ssize_t put = sim_write(to, to_agent.bytes, n < to_agent.len ? n : to_agent.len);
    if (put > 0) (void) take_stream(bytes, (size_t) put);
    return put;
  }
  if (is_own_pipe(to)) {
    ssize_t got = sim_read(in, bytes, n);
    return got > 0 ? put_own(to, bytes, (size_t) got) : got;
  }
  size_t i = (size_t) (in - FD_HELD) / 2, len = own_pipes[i].len;
  ssize_t put = sim_write(to, own_pipes[i].bytes + own_pipes[i].at, n < len ? n : len);
  if (put > 0) own_pipes[i].at += (size_t) put, own_pipes[i].len -= (size_t) put;
  return put;
}

static int
sim_close(int fd) {
  if (fd == FD_SECRET || fd == FD_NULL) return 0;
  if (fd >= FD_DIRS) {
    if (!dirs[fd - FD_DIRS].is_open) broken("the agent closed a directory twice");
    dirs[fd - FD_DIRS].is_open = false;
    return 0;
  }
  if (fd >= FD_FILES) {
    if (!files[fd - FD_FILES].is_open) broken("the agent closed a file twice");
    files[fd - FD_FILES].is_open = false;
    return 0;
  }
  pipe_at(fd, (fd - FD_PIPES) & 1)->agent[(fd - FD_PIPES) & 1] = false;
  sim_progress++;
  return 0;
}

static int
sim_pipe2(int fd[2], int flags) {
  size_t i = 0;
  (void) flags;
  while (i < PIPES_MAX - 1 && pipe_used(&pipes[i])) i++;
  if (i == PIPES_MAX - 1) {
    errno = EMFILE;
    return -1;
  }
  pipes[i] = (pipe_t) {.agent = {true, true}};
  if (i >= pipes_high) pipes_high = i + 1;
  fd[0] = FD_PIPES + 2 * (int) i;
  fd[1] = fd[0] + 1;
  return 0;
}

static int
sim_ppoll(struct pollfd *fds, size_t n, const struct timespec *t, const sigset_t *mask) {
  int count = 0;
  (void) mask;
  wakes_at = t ? sim_now + (uint64_t) t->tv_sec * 1000000000u + (uint64_t) t->tv_nsec : UINT64_MAX;
  for (size_t i = 0; i < n; i++) {
    struct pollfd *f = &fds[i];
    f->revents = 0;
    if (f->fd < 0) continue;
    if (f->fd == 0) {
      if (to_agent.len > 0 || to_agent.ended) f->revents = POLLIN;
    } else if (f->fd == 1) {
      if (from_agent.ended) f->revents = POLLERR;
      else if ((f->events & POLLOUT) && from_agent.len < room_each) f->revents = POLLOUT;
    } else if (f->events & POLLOUT) {
      pipe_t *pipe = pipe_at(f->fd, 1);
      if (!pipe->command[0]) f->revents = POLLERR;
      else if (pipe->made - pipe->taken < PIPE_ROOM) f->revents = POLLOUT;
    } else {
      pipe_t *pipe = pipe_at(f->fd, 0);
      if (pipe->made > pipe->taken) f->revents = POLLIN;
      if (!pipe->command[1]) f->revents |= POLLHUP;
    }
    count += f->revents != 0;
  }
  return count;
}

static int
sim_poll(struct pollfd *fds, size_t n, int ms) {
  (void) fds, (void) n, (void) ms;
  broken("the agent would have blocked");
  longjmp(way_out, 1);
}

static int
sim_ioctl(int fd, unsigned long what, int *value) {
  (void) what;
  pipe_t *pipe = pipe_at(fd, 0);
  *value = (int) (pipe->made - pipe->taken);
  return 0;
}

static void
end_command(sim_command_t *c, int signal) {
  if (c->exited) return;
  c->exited = true;
  c->signal = signal;
  for (int i = 0; i < 3; i++) {
    if (c->pipe[i] >= 0 && !(c->plan.holder && i > 0)) pipes[c->pipe[i]].command[i == 0 ? 0 : 1] = false;
  }
  sim_progress++;
}

static int
sim_kill(pid_t pid, int signo) {
  sim_command_t *c = command_of(pid < 0 ? -pid : pid);
  if (!c || c->reaped) {
    errno = ESRCH;
    return -1;
  }
  if (signo != SIGCONT && !(signo == SIGTERM && c->plan.ignores_term)) end_command(c, signo);
  return 0;
}

static pid_t
sim_waitpid(pid_t pid, int *status, int flags) {
  (void) pid, (void) flags;
  for (size_t i = 0; i < commands_high; i++) {
    sim_command_t *c = &sim_commands[i];
    if (!c->used || !c->exited || c->reaped) continue;
    c->reaped = true;
    *status = c->signal ? c->signal : c->plan.exit_code << 8;
    return c->pid;
  }
  return 0;
}

static int
sim_clock_gettime(clockid_t clock, struct timespec *t) {
  (void) clock;
  t->tv_sec = (time_t) (sim_now / 1000000000u);
  t->tv_nsec = (long) (sim_now % 1000000000u);
  return 0;
}

static int
open_dir_of(uint32_t key) {
  size_t i = 0;
  while (i < DIRS_MAX && dirs[i].is_open) i++;
  errno = EMFILE;
  if (i == DIRS_MAX) return -1;
  if (i >= dirs_high) dirs_high = i + 1;
  dirs[i].is_open = true;
  dirs[i].key = key;
  dirs[i].at = 0;
  return FD_DIRS + (int) i;
}

/* Opens the file "/f/NUMBER" or the directory "/d/NUMBER"; everything else is not there. */
static int
open_file_of(const char *path) {
  unsigned k;
  char rest;
  if (sscanf(path, "/d/%u%c", &k, &rest) == 1) return open_dir_of(k << 4);
  if (sscanf(path, "/f/%u%c", &k, &rest) != 1 || k >= FILES_MAX || files[k].is_open) {
    errno = ENOENT;
    return -1;
  }
  plan_of(k, &files[k].plan);
  files[k].is_open = true;
  if (k >= files_high) files_high = k + 1;
  files[k].at = 0;
  return FD_FILES + (int) k;
}

/* ---- directories ---- */

#define DIR_LEVELS 7u

/* What entry `name` of a directory is: its own key, the kind in the bits above the level. */
static uint32_t
child_of(int dir, const char *name) {
  uint32_t key = dirs[dir - FD_DIRS].key, n = (uint32_t) strtoul(name, NULL, 10);
  uint32_t h = (key >> 4) * 2654435761u + n * 40503u + 97u;
  return (h ^ h >> 15) << 4 | ((key & 15) + 1);
}

static mode_t
kind_of(uint32_t key) {
  static const mode_t kinds[] = {S_IFREG, S_IFDIR, S_IFREG, S_IFLNK, S_IFREG, S_IFDIR, S_IFREG, S_IFREG};
  if (key >> 4 == 0x5a5a5) return S_IFIFO;
  mode_t kind = kinds[key >> 4 & 7];
  return kind == S_IFDIR && (key & 15) >= DIR_LEVELS ? S_IFREG : kind;
}

static long
sim_getdents(int fd, uint8_t *p, size_t n) {
  uint32_t count = dirs[fd - FD_DIRS].key >> 7 & 7;
  size_t len = 0;
  if (!dirs[fd - FD_DIRS].is_open) broken("the agent used a directory that it does not have");
  for (; dirs[fd - FD_DIRS].at <= count && n - len >= 24; len += 24) {
    uint16_t reclen = 24;
    memset(p + len, 0, 24);
    memcpy(p + len + 16, &reclen, 2);
    if (dirs[fd - FD_DIRS].at == 0) p[len + 19] = '.';
    else p[len + 19] = (uint8_t) ('0' + dirs[fd - FD_DIRS].at);
    dirs[fd - FD_DIRS].at++;
  }
  sim_progress++;
  return (long) len;
}

static int
sim_fstatat(int dir, const char *name, struct stat *st, int flags) {
  (void) flags;
  uint32_t key = child_of(dir, name);
  memset(st, 0, sizeof(*st));
  st->st_mode = kind_of(key) | 0644;
  errno = ENOENT;
  return key >> 12 == 0x77 ? -1 : 0; /* some are gone when they are looked at */
}

static int
sim_openat(int dir, const char *name, int flags, ...) {
  uint32_t key = child_of(dir, name);
  (void) flags;
  if (kind_of(key) == S_IFDIR) return open_dir_of(key);
  char path[24];
  snprintf(path, sizeof(path), "/f/%u", (key >> 4) % FILES_MAX);
  return open_file_of(path);
}

static ssize_t
sim_readlinkat(int dir, const char *name, char *out, size_t n) {
  size_t len = 1 + (child_of(dir, name) >> 9) % 300;
  if (len > n) len = n;
  memset(out, 'l', len);
  return (ssize_t) len;
}

static long
sim_syscall(long number, ...) {
  long result = -1;
  va_list ap;
  va_start(ap, number);
  if (number == SYS_getrandom) {
    void *p = va_arg(ap, void *);
    size_t n = va_arg(ap, size_t);
    memset(p, 0x33, n);
    result = (long) n;
  } else if (number == SYS_OPENAT2) {
    (void) va_arg(ap, int);
    result = open_file_of(va_arg(ap, const char *));
  } else if (number == SYS_getdents64) {
    int fd = va_arg(ap, int);
    uint8_t *p = va_arg(ap, uint8_t *);
    result = sim_getdents(fd, p, va_arg(ap, unsigned));
  }
  va_end(ap);
  return result;
}

static int
sim_open(const char *path, int flags, ...) {
  (void) flags;
  if (strcmp(path, "secret") == 0) return FD_SECRET;
  errno = ENOENT;
  return -1;
}

static int
sim_fstat(int fd, struct stat *st) {
  memset(st, 0, sizeof(*st));
  if (fd >= FD_DIRS) {
    st->st_mode = S_IFDIR | 0755;
    return 0;
  }
  st->st_mode = S_IFREG;
  st->st_size = (off_t) files[fd - FD_FILES].plan.out[0];
  return 0;
}

static int
sim_refuse(void) {
  errno = EPERM;
  return -1;
}

static int
sim_refuse_at(int dir, ...) {
  (void) dir;
  return sim_refuse();
}

static char *
sim_getenv(const char *name) {
  (void) name;
  return NULL;
}

#endif
