/* SPDX-License-Identifier: Apache-2.0 */
/* Processes on Linux: identity from /proc, killing by pidfd, who listens on a port. */
#include "platform_priv.h"
#include "mem.h"
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define STAT_MAX 4096
#define CMDLINE_MAX (256u << 10) /* of one process; QEMU's is about 6 KiB. The rest is cut */

/* State letter and start time of a process; -ESRCH also for one that is only waiting to be reaped. */
static int
read_stat(pid_t pid, uint64_t *start) {
  char path[48];
  AL_AUTO_FREE char *text = NULL;
  size_t len;

  snprintf(path, sizeof path, "/proc/%d/stat", (int) pid);
  int rc = al_plat_read_file(AT_FDCWD, path, STAT_MAX, &text, &len);
  if (rc) return rc == -ENOENT ? -ESRCH : rc;
  /* The second field is the name in parentheses and may itself hold any byte: the last one ends it. */
  char *p = strrchr(text, ')');
  if (!p || p[1] != ' ' || !p[2]) return -EIO;
  p += 2;
  if (*p == 'Z' || *p == 'X' || *p == 'x') return -ESRCH;
  for (int field = 3; field < 22; field++) {
    p = strchr(p, ' ');
    if (!p) return -EIO;
    p++;
  }
  errno = 0;
  *start = strtoull(p, NULL, 10);
  return errno ? -EIO : 0;
}

/* The executable; "" when the kernel does not tell. 0, or why it is "". */
static int
read_exe(pid_t pid, char out[AL_EXE_MAX]) {
  static const char deleted[] = " (deleted)";
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/exe", (int) pid);
  ssize_t n = readlink(path, out, AL_EXE_MAX - 1);
  int rc = n < 0 ? -errno : 0;
  if (n < 0) n = 0;
  out[n] = 0;
  /* A program that was replaced on disk is still the same process. */
  size_t tail = sizeof deleted - 1;
  if ((size_t) n > tail && strcmp(out + (size_t) n - tail, deleted) == 0) out[(size_t) n - tail] = 0;
  return rc;
}

int
al__plat_ident_now(pid_t pid, al_ident_t *out, int *exe_rc) {
  uint64_t again;

  *out = (al_ident_t) {.pid = pid};
  if (pid <= 0) return -EINVAL;
  for (int i = 0; i < 4; i++) {
    int rc = read_stat(pid, &out->start);
    if (rc) return rc;
    *exe_rc = read_exe(pid, out->exe);
    rc = read_stat(pid, &again);
    if (rc) return rc;
    /* Else the pid changed hands between the two reads. */
    if (again == out->start) return al_plat_boot_id(out->boot);
  }
  return -EAGAIN;
}

int
al_plat_ident_kill(const al_ident_t *id, int signo) {
  if (id->pid <= 0) return -EINVAL;
  /* From here on the descriptor means one process, whatever becomes of the number; so it is checked after. */
  AL_AUTO_FD int fd = (int) syscall(SYS_pidfd_open, id->pid, 0);
  if (fd < 0 && errno == ESRCH) return 0;
  bool have = fd >= 0;
  if (!have && errno != ENOSYS && errno != EPERM) return -errno;
  int alive = al_plat_ident_alive(id);
  if (alive <= 0) return alive;
  long rc = have ? syscall(SYS_pidfd_send_signal, fd, signo, NULL, 0) : kill(id->pid, signo);
  if (rc && have && (errno == ENOSYS || errno == EPERM)) rc = kill(id->pid, signo);
  return rc && errno != ESRCH ? -errno : 0;
}

int
al_plat_memory(const al_ident_t *id, uint64_t *out) {
  char path[48];
  AL_AUTO_FREE char *text = NULL;
  unsigned long long pages;

  snprintf(path, sizeof path, "/proc/%d/statm", (int) id->pid);
  int rc = al_plat_read_file(AT_FDCWD, path, STAT_MAX, &text, NULL);
  if (rc) return rc == -ENOENT ? -ESRCH : rc;
  if (sscanf(text, "%*u %llu", &pages) != 1) return -EIO;
  *out = pages * (uint64_t) sysconf(_SC_PAGESIZE);
  int alive = al_plat_ident_alive(id); /* asked after the reading: the number was its own then */
  return alive < 0 ? alive : alive ? 0 : -ESRCH;
}

/* 1 when the real uid of the process is ours; /proc's own owner is root for processes that may not be dumped. Negative
 * when it cannot be told for want of memory or descriptors: who must not miss a process has to stop then. */
static int
is_ours(pid_t pid) {
  char path[48];
  AL_AUTO_FREE char *text = NULL;
  unsigned long uid;

  snprintf(path, sizeof path, "/proc/%d/status", (int) pid);
  int rc = al_plat_read_file(AT_FDCWD, path, STAT_MAX * 4, &text, NULL);
  if (rc) return al_err_exhausted(rc) ? rc : 0;
  const char *p = strstr(text, "\nUid:");
  return p && sscanf(p, "\nUid: %lu", &uid) == 1 && uid == getuid();
}

/* Calls cb for the numeric names of a directory; non-zero stops and is returned. */
static int
each_number(const char *path, int (*cb)(void *data, unsigned n), void *data) {
  struct dirent *e;
  int rc = 0;

  DIR *dir = opendir(path);
  if (!dir) return -errno;
  while (!rc && (e = readdir(dir))) {
    char *end;
    if (!isdigit((unsigned char) e->d_name[0])) continue;
    unsigned long n = strtoul(e->d_name, &end, 10);
    if (*end == 0 && n <= 0x7fffffff) rc = cb(data, (unsigned) n);
  }
  closedir(dir);
  return rc;
}

typedef struct each_s {
  al_plat_proc_cb cb;
  void *data;
  char *cmdline; /* CMDLINE_MAX */
} each_t;

static ssize_t
read_cmdline(pid_t pid, char *out) {
  char path[48];
  size_t used = 0;
  ssize_t n;

  snprintf(path, sizeof path, "/proc/%d/cmdline", (int) pid);
  AL_AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return al_err_exhausted(-errno) ? -errno : 0;
  while (used < CMDLINE_MAX && (n = read(fd, out + used, CMDLINE_MAX - used)) > 0) used += (size_t) n;
  return (ssize_t) used;
}

static int
visit(void *data, unsigned n) {
  each_t *each = data;
  al_ident_t id;
  pid_t pid = (pid_t) n;

  int rc = is_ours(pid);
  if (rc <= 0) return rc;
  if ((rc = al_plat_ident(pid, &id))) return al_err_exhausted(rc) ? rc : 0; /* gone meanwhile, or not ours to see */
  ssize_t len = read_cmdline(pid, each->cmdline);
  return len < 0 ? (int) len : each->cb(each->data, &id, each->cmdline, (size_t) len);
}

int
al_plat_each_process(al_plat_proc_cb cb, void *data) {
  each_t each = {.cb = cb, .data = data, .cmdline = al_malloc(CMDLINE_MAX)};

  if (!each.cmdline) return -ENOMEM;
  int rc = each_number("/proc", visit, &each);
  al_free(each.cmdline);
  return rc;
}

typedef struct socket_s {
  char link[40]; /* "socket:[INODE]" */
  pid_t pid;
  al_ident_t *out;
} socket_t;

static int
visit_fd(void *data, unsigned n) {
  socket_t *s = data;
  char path[64], link[sizeof s->link];

  snprintf(path, sizeof path, "/proc/%d/fd/%u", (int) s->pid, n);
  ssize_t len = readlink(path, link, sizeof link - 1);
  if (len <= 0) return 0;
  link[len] = 0;
  return strcmp(link, s->link) == 0;
}

static int
visit_holder(void *data, unsigned n) {
  socket_t *s = data;
  char path[32];

  s->pid = (pid_t) n;
  int rc = is_ours(s->pid);
  if (rc <= 0) return rc;
  snprintf(path, sizeof path, "/proc/%u/fd", n);
  rc = each_number(path, visit_fd, s);
  if (rc == 1) return (rc = al_plat_ident(s->pid, s->out)) == 0 ? 1 : al_err_exhausted(rc) ? rc : 0;
  return al_err_exhausted(rc) ? rc : 0;
}

int
al_plat_tcp_listener(uint16_t port, al_ident_t *out) {
  char line[512];
  socket_t s = {.out = out};
  /* The kernel prints the address as a number of the machine's own byte order. */
  unsigned want = htonl(INADDR_LOOPBACK);

  FILE *f = fopen("/proc/net/tcp", "re");
  if (!f) return -errno;
  while (fgets(line, sizeof line, f)) {
    unsigned addr, at, state;
    unsigned long uid, inode;
    /* sl local remote st queues timer retransmits uid timeout inode; state 0A is LISTEN */
    if (sscanf(line, " %*u: %8x:%4x %*8x:%*4x %2x %*s %*s %*s %lu %*u %lu", &addr, &at, &state, &uid, &inode) != 5)
      continue;
    if (addr != want || at != port || state != 0x0a) continue;
    if (uid != geteuid()) {
      fclose(f);
      return -EPERM;
    }
    snprintf(s.link, sizeof s.link, "socket:[%lu]", inode);
    break;
  }
  fclose(f);
  if (!s.link[0]) return -ENOENT;
  int rc = each_number("/proc", visit_holder, &s);
  return rc == 1 ? 0 : rc < 0 ? rc : -ENOENT;
}

int
al_plat_socket_peer(int fd, al_ident_t *out) {
  struct ucred who;
  socklen_t len = sizeof who;

  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0) return -errno;
  return who.uid == geteuid() ? al_plat_ident(who.pid, out) : -EPERM;
}
