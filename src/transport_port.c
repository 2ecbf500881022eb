/* SPDX-License-Identifier: Apache-2.0 */
/* The `port` transport: the socket of the lane's virtio port takes the lane agent into the guest and then is the
 * channel. */
#include "lima_int.h"
#include "transport_int.h"

#include "mem.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Theory of operation. The warden makes the socket before it starts QEMU; QEMU hands what we send to whoever has opened
 * the port in the guest, which is the image's init. Its first line (HEADER) says the size of the agent and a random
 * token, the agent follows, and the init answers with the marker line once it runs. So all that crosses before the
 * guest's proof is public. Whatever comes before the marker is dropped, within bounds.
 *
 * The socket is believed when it lies in the lane's private directory, and when the kernel says that its other end is
 * a process of this lane: the warden or QEMU, by pid and start time. Looking that up reads /proc, so it is a job.
 *
 * When QEMU ends, the host agent knows why, a moment later than we see the end of the stream; so the failure waits for
 * al_lima_boot to tell it better. */

#define HEADER "agent-lane-port 1 %zu %s\n"
#define HEADER_MAX 96
#define DIAL_MS 20
#define VERDICT_MS 3000

typedef struct port_s {
  al_transport_t t;
  al_lima_t *l;
  char arch[16], name[AL_NAME_LEN + 1];
  char dir[AL_HOME_MAX + AL_NAME_LEN + 2];
  al__agent_t agent;
  int fd;
  bool gone; /* the stream has ended; the verdict is waited for */
} port_t;

static int
unproven(port_t *s, const char *why) {
  return al_err_set(&s->t.err, AL_EPEER_UNPROVEN, "%s/" AL__LIMA_SOCKET " %s", s->dir, why);
}

/* -EAGAIN: nobody is there (yet, or any more). */
static int
check_peer(port_t *s, int fd) {
  al_ident_t who;
  int rc = al_plat_socket_peer(fd, &who);
  if (rc == -ESRCH) return -EAGAIN;
  if (rc == -EPERM) return unproven(s, "is held by another user's process, not by the lane's QEMU");
  if (rc) return al_err_set(&s->t.err, AL_EPEER_UNPROVEN, "it cannot be told who holds the channel: %s", strerror(-rc));
  al__lima_procs_t *procs = al_malloc(sizeof *procs);
  if (!procs) return al_err_set(&s->t.err, -ENOMEM, "out of memory");
  rc = al__lima_scan(s->dir, s->name, procs);
  bool ours = false;
  for (size_t i = 0; rc == 0 && i < procs->count; i++) {
    const al__lima_proc_t *p = &procs->list[i];
    bool kind = p->kind == AL__PROC_QEMU || p->kind == AL__PROC_WARDEN;
    ours |= kind && p->id.pid == who.pid && p->id.start == who.start;
  }
  al_free(procs);
  if (rc) return al_err_set(&s->t.err, rc, "the lane's processes cannot be read: %s", strerror(-rc));
  if (ours) return 0;
  if (al_plat_ident_alive(&who) == 0) return -EAGAIN;
  return al_err_set(&s->t.err, AL_EPEER_UNPROVEN,
    "%s/" AL__LIMA_SOCKET " is held by process %ld (%.200s), not by the lane's QEMU", s->dir, (long) who.pid, who.exe);
}

static int
connect_socket(port_t *s) {
  char path[sizeof s->dir + 24];
  struct stat st;
  snprintf(path, sizeof path, "%s/" AL__LIMA_SOCKET, s->dir);
  if (lstat(path, &st) != 0) return errno == ENOENT ? -EAGAIN : -errno;
  if (!S_ISSOCK(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
    return unproven(s, "is not a socket of ours alone");
  AL_AUTO_FD int fd = al_plat_local_connect(path);
  if (fd == -ENAMETOOLONG)
    return al_err_set(&s->t.err, AL_EHOME_TOO_LONG, "the path of the channel's socket, %s, is too long", path);
  if (fd < 0) return fd == -ECONNREFUSED || fd == -ENOENT ? -EAGAIN : fd;
  int rc = check_peer(s, fd);
  /* Lima reads _config again at every start; what appeared there since the check must not be in this lane. */
  if (rc == 0) rc = al__lima_config_check(s->l->home, &s->t.err);
  if (rc) return rc;
  s->fd = fd;
  fd = -1;
  return 0;
}

static int
dial(al_job_t *job) {
  port_t *s = job->data;
  int rc = s->agent.bytes ? 0 : al__transport_load(s->l, s->arch, HEADER_MAX, &s->agent, &s->t.err);
  return rc ? rc : connect_socket(s);
}

static void
on_eof(al_transport_t *t) {
  port_t *s = (port_t *) t;
  s->gone = true;
  al__transport_again(t, VERDICT_MS, NULL);
}

static int
speak(port_t *s) {
  char header[HEADER_MAX], marker[64];
  int n = snprintf(header, sizeof header, HEADER, s->agent.len, s->agent.token);
  snprintf(marker, sizeof marker, "\n" AL__MARKER "%s\n", s->agent.token);
  char *first = s->agent.bytes + s->agent.room - n; /* right before the agent */
  memcpy(first, header, (size_t) n);
  int fd = s->fd;
  s->fd = -1;
  return al__transport_socket(&s->t, fd, first, (size_t) n + s->agent.len, marker);
}

static void
dialled(al_job_t *job, int status) {
  port_t *s = job->data;
  if (!al__transport_job_ended(&s->t)) return;
  if (status == 0) status = speak(s);
  if (status == -EAGAIN) al__transport_again(&s->t, DIAL_MS, "waited in vain for QEMU to open the channel's socket");
  else if (status != 0) al__transport_fail(&s->t, status, NULL);
}

static int
again(al_transport_t *t) {
  port_t *s = (port_t *) t;
  if (s->gone) {
    char last[200];
    al__lima_console_line(s->dir, last, sizeof last);
    return al_err_set(&t->err, AL_ESTART_FAILED, "the VM ended before the lane agent started in the guest%s%s",
      last[0] ? "; the guest's last words: " : "", last);
  }
  al__transport_job(t, s->l->io, dial, dialled);
  return 0;
}

static void
release(al_transport_t *t) {
  port_t *s = (port_t *) t;
  if (s->fd >= 0) close(s->fd);
  al_free(s->agent.bytes);
}

int
al_transport_port(al_lima_t *l, const al_lane_spec_t *spec, uint64_t deadline_ms, const al_transport_cbs_t *cbs,
  void *data, al_transport_t **out) {
  if (!al_name_valid(spec->name)) return AL_EBAD_NAME;
  port_t *s = al_calloc(1, sizeof *s);
  if (!s) return -ENOMEM;
  al__transport_init(&s->t, l->loop, cbs, data, release);
  s->l = l;
  s->fd = -1;
  uv_update_time(l->loop);
  s->t.end = uv_now(l->loop) + deadline_ms;
  s->t.again = again;
  s->t.on_eof = on_eof;
  snprintf(s->arch, sizeof s->arch, "%s", spec->image.arch);
  snprintf(s->name, sizeof s->name, "%s", spec->name);
  snprintf(s->dir, sizeof s->dir, "%s", spec->dir);
  *out = &s->t;
  return again(&s->t);
}
