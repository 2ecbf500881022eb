/* SPDX-License-Identifier: Apache-2.0 */
/* Attaching: the owner's agent lets a few more in over a root-only socket, and each of those ends when it does. */
#include "agent.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* An attached agent is a whole agent on a channel of its own: what its host does to that channel cannot reach the
 * owner's, and at its EOF only its own commands end. It asks the owner's agent for a place and keeps the connection:
 * when that one goes, so does it. Nothing but the greeting crosses the socket. */

#define GREETING "ALAT"
#define JOIN_MS 5000
#define FULL_MS 2000
#define FULL_AGAIN_MS 50

typedef struct greeting_s {
  char magic[4];
  uint8_t version, place; /* place: AL_ATTACH_MAX and more = refused */
  char user[sizeof(al_agent.user_name)], worktree[sizeof(al_agent.worktree)];
} greeting_t;

static int set = -1, listener = -1, link_fd = -1;
static int peers[AL_ATTACH_MAX];

/* Beside the secret, in a directory that only root may enter. */
static bool
address(struct sockaddr_un *a) {
  *a = (struct sockaddr_un) {.sun_family = AF_UNIX};
  const char *slash = strrchr(al_agent.secret_path, '/');
  int dir = slash != NULL ? (int) (slash - al_agent.secret_path) + 1 : 0;
  int n = snprintf(a->sun_path, sizeof(a->sun_path), "%.*sattach", dir, al_agent.secret_path);
  return n > 0 && (size_t) n < sizeof(a->sun_path);
}

static void
watch(int fd) {
  struct epoll_event e = {.events = EPOLLIN, .data = {.fd = fd}};
  (void) epoll_ctl(set, EPOLL_CTL_ADD, fd, &e);
}

/* A lane to which nobody can attach is a lane still, so a failure is no reason to end. */
void
al_attach_listen(void) {
  struct sockaddr_un a;
  if (al_agent.attached || listener >= 0 || !address(&a)) return;
  for (int i = 0; i < AL_ATTACH_MAX; i++) peers[i] = -1;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  (void) unlink(a.sun_path);
  mode_t old = umask(0177);
  int err = bind(fd, (struct sockaddr *) &a, sizeof(a)) != 0 || listen(fd, AL_ATTACH_MAX) != 0;
  umask(old);
  if (err == 0) set = epoll_create1(EPOLL_CLOEXEC);
  if (set < 0) {
    close(fd);
    return;
  }
  listener = fd;
  watch(fd);
}

static void
admit(void) {
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  struct ucred who;
  socklen_t len = sizeof(who);
  if (fd < 0) return;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || who.uid != geteuid()) {
    close(fd);
    return;
  }
  greeting_t g = {.magic = GREETING, .version = 1};
  while (g.place < AL_ATTACH_MAX && peers[g.place] >= 0) g.place++;
  memcpy(g.user, al_agent.user_name, sizeof(g.user));
  memcpy(g.worktree, al_agent.worktree, sizeof(g.worktree));
  bool sent = send(fd, &g, sizeof(g), MSG_NOSIGNAL) == (ssize_t) sizeof(g);
  if (!sent || g.place == AL_ATTACH_MAX) {
    close(fd);
    return;
  }
  peers[g.place] = fd;
  watch(fd);
}

/* An attached agent says nothing: whatever can be read is its end. One that was killed has left its commands behind. */
static void
let_go(int fd) {
  for (int i = 0; i < AL_ATTACH_MAX; i++) {
    if (peers[i] != fd) continue;
    al_cgroup_kill_attached(i);
    peers[i] = -1;
  }
  close(fd);
}

int
al_attach_fd(void) {
  return al_agent.attached ? link_fd : set;
}

void
al_attach_turn(void) {
  if (al_agent.attached) al_stop_eof(0); /* the owner's agent has ended */
  struct epoll_event e[AL_ATTACH_MAX + 1];
  int n = epoll_wait(set, e, AL_ATTACH_MAX + 1, 0);
  for (int i = 0; i < n; i++)
    if (e[i].data.fd == listener) admit();
    else let_go(e[i].data.fd);
}

/* Asks for a place once. The limit of a send is connect's too, which waits where nobody accepts. */
static void
ask(const struct sockaddr_un *a, greeting_t *g) {
  struct timeval limit = {.tv_sec = JOIN_MS / 1000};
  link_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  bool ok = link_fd >= 0 && setsockopt(link_fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0;
  if (ok && connect(link_fd, (const struct sockaddr *) a, sizeof(*a)) != 0) ok = errno == EAGAIN;
  if (!ok) al_stop_reject(AL_REJECT_SETUP, "there is no lane agent to attach to: the lane is not ready or has ended");
  struct pollfd p = {.fd = link_fd, .events = POLLIN};
  if (poll(&p, 1, JOIN_MS) != 1 || recv(link_fd, g, sizeof(*g), MSG_DONTWAIT) != (ssize_t) sizeof(*g) ||
      memcmp(g->magic, GREETING, sizeof(g->magic)) != 0 || g->version != 1)
    al_stop_reject(AL_REJECT_SETUP, "the lane agent gave no answer that can be understood");
}

/* Whoever has just left keeps its place until its commands are gone, so one that finds none asks again for a while. */
void
al_attach_join(void) {
  struct sockaddr_un a;
  greeting_t g;
  if (!address(&a)) al_stop_reject(AL_REJECT_SETUP, "the secret's path is too long to attach beside it");
  uint64_t end = al_main_now() + FULL_MS * 1000000ull;
  for (ask(&a, &g); g.place >= AL_ATTACH_MAX; ask(&a, &g)) {
    close(link_fd);
    if (al_main_now() >= end)
      al_stop_reject(AL_REJECT_SETUP, "as many as may be are attached to this lane already");
    struct pollfd host = {.fd = 0, .events = POLLRDHUP};
    if (poll(&host, 1, FULL_AGAIN_MS) == 1) al_stop_eof(0);
  }
  memcpy(al_agent.user_name, g.user, sizeof(g.user));
  memcpy(al_agent.worktree, g.worktree, sizeof(g.worktree));
  al_agent.user_name[sizeof(g.user) - 1] = al_agent.worktree[sizeof(g.worktree) - 1] = 0;
  al_agent.attach_place = g.place;
}
