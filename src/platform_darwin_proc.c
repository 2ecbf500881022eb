/* SPDX-License-Identifier: Apache-2.0 */
/* Processes on macOS: identity from proc_pidinfo, command lines from KERN_PROCARGS2, who listens on a port. */
#include "platform_priv.h"
#include "mem.h"
#include <arpa/inet.h>
#include <errno.h>
#include <libproc.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/proc.h>
#include <sys/proc_info.h>
#include <sys/sysctl.h>
#include <unistd.h>

#define CMDLINE_MAX (1u << 20) /* KERN_ARGMAX of macOS */
#define TCP_LISTEN_STATE 1     /* TSI_S_LISTEN */
#define FDS_MAX 65536

static int
read_bsd(pid_t pid, struct proc_bsdinfo *info) {
  int n = proc_pidinfo(pid, PROC_PIDTBSDINFO, 0, info, (int) sizeof *info);

  if (n != (int) sizeof *info) return errno == EPERM ? -EPERM : -ESRCH;
  return info->pbi_status == SZOMB ? -ESRCH : 0;
}

static uint64_t
start_of(const struct proc_bsdinfo *info) {
  return info->pbi_start_tvsec * 1000000 + info->pbi_start_tvusec;
}

/* 0, or why the executable is unknown; then out is "". */
static int
read_exe(pid_t pid, char out[AL_EXE_MAX]) {
  char path[PROC_PIDPATHINFO_MAXSIZE];

  out[0] = 0;
  int n = proc_pidpath(pid, path, sizeof path);
  if (n <= 0) return errno ? -errno : -ENOENT;
  if ((size_t) n >= AL_EXE_MAX) n = AL_EXE_MAX - 1;
  memcpy(out, path, (size_t) n);
  out[n] = 0;
  return 0;
}

int
al__plat_ident_now(pid_t pid, al_ident_t *out, int *exe_rc) {
  struct proc_bsdinfo before, after;

  *out = (al_ident_t) {.pid = pid};
  if (pid <= 0) return -EINVAL;
  for (int i = 0; i < 4; i++) {
    int rc = read_bsd(pid, &before);
    if (rc) return rc;
    *exe_rc = read_exe(pid, out->exe);
    if (*exe_rc == -ESRCH) *exe_rc = -ENOENT; /* it is there, as the second look tells */
    rc = read_bsd(pid, &after);
    if (rc) return rc;
    /* Else the pid changed hands between the two reads. */
    if (start_of(&before) != start_of(&after)) continue;
    out->start = start_of(&before);
    return al_plat_boot_id(out->boot);
  }
  return -EAGAIN;
}

/* There is no pidfd: between the check and the signal lies a moment in which the process can end. For its number to be
 * somebody else's then, all others would have to be used first. */
int
al_plat_ident_kill(const al_ident_t *id, int signo) {
  int alive = al_plat_ident_alive(id);

  if (alive <= 0) return alive;
  return kill(id->pid, signo) && errno != ESRCH ? -errno : 0;
}

int
al_plat_memory(const al_ident_t *id, uint64_t *out) {
  struct proc_taskinfo info;

  int n = proc_pidinfo(id->pid, PROC_PIDTASKINFO, 0, &info, (int) sizeof info);
  if (n != (int) sizeof info) return errno == EPERM ? -EPERM : -ESRCH;
  *out = info.pti_resident_size;
  int alive = al_plat_ident_alive(id); /* asked after the reading: the number was its own then */
  return alive < 0 ? alive : alive ? 0 : -ESRCH;
}

/* Pids of all processes of our uid. */
static int
list_pids(pid_t **out, size_t *count) {
  int bytes = proc_listpids(PROC_RUID_ONLY, (uint32_t) getuid(), NULL, 0);

  if (bytes <= 0) return errno ? -errno : -EIO;
  /* Some may be started meanwhile. */
  size_t room = (size_t) bytes / sizeof(pid_t) + 256;
  pid_t *pids = al_calloc(room, sizeof *pids);
  if (!pids) return -ENOMEM;
  bytes = proc_listpids(PROC_RUID_ONLY, (uint32_t) getuid(), pids, (int) (room * sizeof *pids));
  if (bytes <= 0) {
    int rc = errno ? -errno : -EIO;
    al_free(pids);
    return rc;
  }
  *out = pids;
  *count = (size_t) bytes / sizeof *pids;
  return 0;
}

/* argv of a process, joined by NUL. The kernel gives: argc, the path of the executable, padding zeros, the arguments,
 * the environment, which is left out here. */
static size_t
read_cmdline(pid_t pid, char *buf, const char **args) {
  int mib[] = {CTL_KERN, KERN_PROCARGS2, pid};
  size_t n = CMDLINE_MAX;
  int argc;

  *args = buf;
  if (sysctl(mib, 3, buf, &n, NULL, 0) || n < sizeof argc) return 0;
  memcpy(&argc, buf, sizeof argc);
  const char *p = buf + sizeof argc, *end = buf + n;
  p = memchr(p, 0, (size_t) (end - p));
  while (p && p < end && *p == 0) p++;
  if (!p) return 0;
  *args = p;
  for (; argc > 0 && p < end; argc--) {
    const char *zero = memchr(p, 0, (size_t) (end - p));
    p = zero ? zero + 1 : end;
  }
  return (size_t) (p - *args);
}

int
al_plat_each_process(al_plat_proc_cb cb, void *data) {
  AL_AUTO_FREE pid_t *pids = NULL;
  size_t count;
  al_ident_t id;

  int rc = list_pids(&pids, &count);
  if (rc) return rc;
  AL_AUTO_FREE char *buf = al_malloc(CMDLINE_MAX);
  if (!buf) return -ENOMEM;
  for (size_t i = 0; !rc && i < count; i++) {
    const char *args;
    if (pids[i] <= 0) continue;
    int gone = al_plat_ident(pids[i], &id);
    if (al_err_exhausted(gone)) return gone; /* who must not miss a process has to stop then */
    if (gone) continue;
    size_t len = read_cmdline(pids[i], buf, &args);
    rc = cb(data, &id, args, len);
  }
  return rc;
}

static bool
listens(pid_t pid, int fd, uint16_t port) {
  struct socket_fdinfo s;

  if (proc_pidfdinfo(pid, fd, PROC_PIDFDSOCKETINFO, &s, (int) sizeof s) != (int) sizeof s) return false;
  if (s.psi.soi_kind != SOCKINFO_TCP || s.psi.soi_family != AF_INET) return false;
  const struct tcp_sockinfo *tcp = &s.psi.soi_proto.pri_tcp;
  return tcp->tcpsi_state == TCP_LISTEN_STATE && ntohs((uint16_t) tcp->tcpsi_ini.insi_lport) == port
    && tcp->tcpsi_ini.insi_laddr.ina_46.i46a_addr4.s_addr == htonl(INADDR_LOOPBACK);
}

/* 1 or 0, or -ENOMEM. */
static int
process_listens(pid_t pid, uint16_t port) {
  int bytes = proc_pidinfo(pid, PROC_PIDLISTFDS, 0, NULL, 0);

  if (bytes <= 0 || (size_t) bytes / sizeof(struct proc_fdinfo) > FDS_MAX) return 0;
  AL_AUTO_FREE struct proc_fdinfo *fds = al_malloc((size_t) bytes);
  if (!fds) return -ENOMEM;
  bytes = proc_pidinfo(pid, PROC_PIDLISTFDS, 0, fds, bytes);
  for (int i = 0; bytes > 0 && i < bytes / (int) sizeof *fds; i++)
    if (fds[i].proc_fdtype == PROX_FDTYPE_SOCKET && listens(pid, fds[i].proc_fd, port)) return 1;
  return 0;
}

int
al_plat_tcp_listener(uint16_t port, al_ident_t *out) {
  AL_AUTO_FREE pid_t *pids = NULL;
  size_t count;

  int rc = list_pids(&pids, &count);
  if (rc) return rc;
  for (size_t i = 0; i < count; i++) {
    rc = pids[i] > 0 ? process_listens(pids[i], port) : 0;
    if (rc < 0) return rc;
    if (rc && al_plat_ident(pids[i], out) == 0) return 0;
  }
  return -ENOENT;
}

int
al_plat_socket_peer(int fd, al_ident_t *out) {
  struct xucred who;
  socklen_t len = sizeof who;
  pid_t pid;

  if (getsockopt(fd, SOL_LOCAL, LOCAL_PEERCRED, &who, &len) != 0) return -errno;
  if (who.cr_uid != geteuid()) return -EPERM;
  len = sizeof pid;
  return getsockopt(fd, SOL_LOCAL, LOCAL_PEERPID, &pid, &len) == 0 ? al_plat_ident(pid, out) : -errno;
}
