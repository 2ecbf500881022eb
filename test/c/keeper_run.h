/* SPDX-License-Identifier: Apache-2.0 */
/* A keeper on the fixture's home and limactl: its records said by hand, and stand-ins for the processes of lanes. */
#ifndef AL_KEEPER_RUN_H
#define AL_KEEPER_RUN_H

#include "keeper_wire.h"
#include "lima_fixture.h"
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define PATIENCE_MS 60000

typedef struct keeper_s {
  pid_t owner, pid;
  int link;     /* the owner's end, also here */
  uint32_t seq;
} keeper_t;

AL_TEST_FN bool
runs(pid_t pid) {
  int status;
  al_ident_t id;
  (void) waitpid(pid, &status, WNOHANG);
  return al_plat_ident(pid, &id) == 0;
}

#define UNTIL(what, condition) \
  do { \
    uint64_t until_ = al_plat_mono_ms() + PATIENCE_MS; \
    while (!(condition)) { \
      if (al_plat_mono_ms() > until_) fail_msg("%s: not within a minute; the log says\n%s", what, log_text()); \
      usleep(5000); \
    } \
  } while (0)

AL_TEST_FN const char *
log_text(void) {
  static char *text;
  al_free(text);
  text = slurp(in("h/log/%s", "keeper.log"));
  return text;
}

AL_TEST_FN const char *
keeper_program(void) {
  static char path[512];
  const char *test = getenv("AL_KEEPER");
  if (test) return test;
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 16);
  if (n <= 0) return "build/core/plain/keeper";
  path[n] = 0;
  snprintf(strrchr(path, '/'), 16, "/keeper");
  return path;
}

/* The owner does nothing until it is ended. It holds its end of the link; so do we, until keeper_let_go. */
AL_TEST_FN pid_t
start_owner(int theirs) {
  pid_t pid = al_test_fork();
  if (pid != 0) return pid;
  close(theirs);
  for (;;) pause();
}

AL_TEST_FN void
run_keeper(const char *owner, int fd, void (*before)(void)) {
  int status;
  pid_t pid = fork();
  if (pid == 0) {
    dup2(fd, 0);
    if (before) before();
    int null = open("/dev/null", O_RDWR);
    dup2(null, 1), dup2(null, 2);
    execl(keeper_program(), "keeper", "--agent-lane-keeper", "1", "--owner", owner, "--home", home.root, (char *) NULL);
    _exit(99);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

/* Bytes of the keeper; false at its end. */
AL_TEST_FN bool
hear(const keeper_t *k, void *out, size_t n) {
  struct pollfd p = {k->link, POLLIN, 0};
  for (size_t have = 0; have < n;) {
    if (poll(&p, 1, PATIENCE_MS) != 1) fail_msg("the keeper says nothing");
    ssize_t got = recv(k->link, (char *) out + have, n - have, 0);
    if (got <= 0) return false;
    have += (size_t) got;
  }
  return true;
}

AL_TEST_FN keeper_t
keeper_start(void (*before)(void)) {
  keeper_t k = {0};
  al_ident_t id;
  int fds[2];
  char owner[64];
  al_keeper_hello_t hello;
  assert_int_equal(al_plat_socketpair(fds), 0);
  k.link = fds[0];
  k.owner = start_owner(fds[1]);
  assert_int_equal(al_plat_ident(k.owner, &id), 0);
  snprintf(owner, sizeof owner, "%ld:%llu", (long) k.owner, (unsigned long long) id.start);
  run_keeper(owner, fds[1], before);
  close(fds[1]);
  assert_true(hear(&k, &hello, sizeof hello));
  assert_int_equal(hello.head.magic, AL_KEEPER_MAGIC);
  assert_int_equal(hello.head.type, AL_KEEPER_HELLO);
  assert_int_equal(hello.head.size, sizeof hello);
  k.pid = (pid_t) hello.pid;
  assert_true(runs(k.pid));
  return k;
}

AL_TEST_FN void
keeper_let_go(keeper_t *k) {
  if (k->link >= 0) close(k->link);
  k->link = -1;
}

AL_TEST_FN al_keeper_keep_t
keep_record(keeper_t *k, const char *name, uint64_t left_ms) {
  al_keeper_keep_t r = {.head = {AL_KEEPER_MAGIC, sizeof r, AL_KEEPER_KEEP, ++k->seq}, .row = 7,
    .expires_boot_ms = al_plat_boot_ms() + left_ms};
  snprintf(r.name, sizeof r.name, "%s", name);
  snprintf(r.limactl, sizeof r.limactl, "%s", lima.limactl);
  snprintf(r.path_env, sizeof r.path_env, "%s", lima.path_env);
  snprintf(r.user_home, sizeof r.user_home, "/nowhere");
  return r;
}

/* What the keeper answers; 1 when it ends instead. */
AL_TEST_FN int
say_keep(keeper_t *k, const al_keeper_keep_t *r) {
  al_keeper_ack_t ack;
  assert_int_equal(send(k->link, r, sizeof *r, MSG_NOSIGNAL), sizeof *r);
  if (!hear(k, &ack, sizeof ack)) return 1;
  assert_int_equal(ack.head.magic, AL_KEEPER_MAGIC);
  assert_int_equal(ack.head.size, sizeof ack);
  assert_int_equal(ack.head.type, AL_KEEPER_ACK);
  assert_int_equal(ack.head.seq, r->head.seq);
  return ack.status;
}

AL_TEST_FN void
keep(keeper_t *k, const char *name, uint64_t left_ms) {
  al_keeper_keep_t r = keep_record(k, name, left_ms);
  assert_int_equal(say_keep(k, &r), 0);
}

AL_TEST_FN void
drop(keeper_t *k, const char *name) {
  al_keeper_drop_t r = {.head = {AL_KEEPER_MAGIC, sizeof r, AL_KEEPER_DROP, 0}};
  snprintf(r.name, sizeof r.name, "%s", name);
  assert_int_equal(send(k->link, &r, sizeof r, MSG_NOSIGNAL), sizeof r);
}

/* Ends what a test has left. */
AL_TEST_FN void
keeper_end(keeper_t *k) {
  keeper_let_go(k);
  if (runs(k->owner)) al_test_kill(k->owner);
  UNTIL("the keeper's end", !runs(k->pid));
}

/* ---- stand-ins ---- */

/* A process with the command line of one of the lane's. It never forks. */
AL_TEST_FN pid_t
pretend(const char *a1, const char *a2, const char *a3, const char *a4) {
  pid_t pid = al_test_fork();
  if (pid == 0) {
    execl("/bin/sh", "/usr/bin/limactl", "-c", "kill -STOP $$", a1, a2, a3, a4, (char *) NULL);
    _exit(127);
  }
  for (int i = 0; i < 10000; i++) { /* until it stands still, as the shell that it has become */
    int status;
    if (waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status)) return pid;
  }
  fail_msg("process %ld does not stand still", (long) pid);
  return -1;
}

AL_TEST_FN const char *
lane(const char *file) {
  return in("h/lima/" NAME "/%s", file);
}

#endif
