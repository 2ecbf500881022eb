/* SPDX-License-Identifier: Apache-2.0 */
/* Platform processes: identity, exact killing, enumeration, who listens. */
#include "al_test.h"
#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

static pid_t
child(const char *a, const char *b) {
  int ready[2];
  char c;
  assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl("/bin/sleep", "sleep", a, b, (char *) NULL);
    _exit(1);
  }
  close(ready[1]);
  assert_int_equal(read(ready[0], &c, 1), 0); /* EOF: exec is done */
  close(ready[0]);
  return pid;
}

static void
reap(pid_t pid) {
  kill(pid, SIGKILL);
  assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void
test_identity_lives_until_the_end(void **state) {
  al_ident_t id, other;
  char exe[PATH_MAX];
  (void) state;
  pid_t pid = child("60", NULL);
  assert_int_equal(al_plat_ident(pid, &id), 0);
  assert_non_null(realpath("/bin/sleep", exe));
  assert_int_equal(id.pid, pid);
  assert_string_equal(id.exe, exe);
  assert_true(id.start > 0 && id.boot[0]);
  assert_int_equal(al_plat_ident_alive(&id), 1);
  other = id, other.start++;
  assert_int_equal(al_plat_ident_alive(&other), 0);
  other = id, other.boot[0] = other.boot[0] == 'a' ? 'b' : 'a';
  assert_int_equal(al_plat_ident_alive(&other), 0);
  other = id, strcpy(other.exe, "/bin/other");
  assert_int_equal(al_plat_ident_alive(&other), 0);
  other = id, other.exe[0] = 0;
  assert_int_equal(al_plat_ident_alive(&other), 1);
  other = id, other.boot[0] = 0;
  assert_int_equal(al_plat_ident_alive(&other), -EINVAL);
  kill(pid, SIGKILL);
  siginfo_t info;
  assert_int_equal(waitid(P_PID, (id_t) pid, &info, WEXITED | WNOWAIT), 0);
  assert_int_equal(al_plat_ident_alive(&id), 0); /* a zombie is none */
  assert_int_equal(al_plat_ident(pid, &other), -ESRCH);
  reap(pid);
  assert_int_equal(al_plat_ident_alive(&id), 0);
  assert_int_equal(al_plat_ident(-1, &other), -EINVAL);
  assert_int_equal(al_plat_ident(0, &other), -EINVAL);
}

static void
test_kill_spares_everybody_else(void **state) {
  al_ident_t id, other;
  int status;
  (void) state;
  pid_t pid = child("60", NULL);
  assert_int_equal(al_plat_ident(pid, &id), 0);
  other = id, other.start++;
  assert_int_equal(al_plat_ident_kill(&other, SIGKILL), 0);
  other = id, strcpy(other.exe, "/bin/other");
  assert_int_equal(al_plat_ident_kill(&other, SIGKILL), 0);
  other = id, other.pid = 0;
  assert_int_equal(al_plat_ident_kill(&other, SIGKILL), -EINVAL);
  other = id, other.pid = -1;
  assert_int_equal(al_plat_ident_kill(&other, SIGKILL), -EINVAL);
  usleep(50000);
  assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
  assert_int_equal(al_plat_ident_kill(&id, SIGTERM), 0);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(WTERMSIG(status), SIGTERM);
  assert_int_equal(al_plat_ident_kill(&id, SIGTERM), 0);
}

static void
test_identity_survives_removal_of_the_program(void **state) {
  char dir[64], exe[128], cmd[256];
  al_ident_t id, now;
  (void) state;
  al_test_dir(dir);
  snprintf(exe, sizeof exe, "%s/prog) R 1", dir); /* a name that looks like the fields behind it */
  snprintf(cmd, sizeof cmd, "cp /bin/sleep '%s'", exe);
  assert_int_equal(system(cmd), 0);
  int ready[2];
  char c;
  assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
  pid_t pid = fork();
  if (pid == 0) execl(exe, "x", "60", (char *) NULL), _exit(1);
  close(ready[1]);
  assert_int_equal(read(ready[0], &c, 1), 0);
  close(ready[0]);
  assert_int_equal(al_plat_ident(pid, &id), 0);
  assert_string_equal(id.exe, exe);
  /* The right field was read: it is about the start of this program, in ticks of 1/100 s. */
  assert_int_equal(al_plat_ident(getpid(), &now), 0);
  assert_true(id.start >= now.start && id.start - now.start < 100 * 300);
  unlink(exe);
  assert_int_equal(al_plat_ident(pid, &now), 0);
  assert_string_equal(now.exe, exe);
  assert_int_equal(now.start, id.start);
  assert_int_equal(al_plat_ident_alive(&id), 1);
  reap(pid);
  al_test_dir_remove(dir);
}

typedef struct seek_s {
  pid_t want;
  int found, calls, stop_at;
  char cmdline[64];
  size_t len;
} seek_t;

static int
visit(void *data, const al_ident_t *id, const char *cmdline, size_t len) {
  seek_t *s = data;
  s->calls++;
  assert_true(id->pid > 0 && id->start > 0 && id->boot[0]);
  if (id->pid == s->want) {
    s->found++;
    s->len = len;
    memcpy(s->cmdline, cmdline, len < sizeof s->cmdline ? len : sizeof s->cmdline);
  }
  return s->calls == s->stop_at ? 55 : 0;
}

static void
test_each_process_finds_ours_with_its_arguments(void **state) {
  seek_t s = {0};
  (void) state;
  s.want = child("61", "1");
  assert_int_equal(al_plat_each_process(visit, &s), 0);
  assert_int_equal(s.found, 1);
  assert_int_equal(s.len, 11);
  assert_memory_equal(s.cmdline, "sleep\0" "61\0" "1", 11);
  seek_t stop = {.stop_at = 1};
  assert_int_equal(al_plat_each_process(visit, &stop), 55);
  assert_int_equal(stop.calls, 1);
  reap(s.want);
}

/* Who looks for processes that must be gone may not take one that he could not look at for none. */
static void
test_each_process_never_passes_one_over(void **state) {
  static const al_mem_table_t table = {al_test_oom_malloc, al_test_oom_realloc, al_test_oom_free};
  seek_t s = {0};
  struct rlimit usual, tight;
  int room, rc;
  (void) state;
  al_mem_set(&table);
  for (int n = 0; n < 25; n++) {
    atomic_store(&al_test_oom_left, n);
    assert_int_equal(al_plat_each_process(visit, &s), -ENOMEM);
  }
  atomic_store(&al_test_oom_left, -1);
  al_mem_set(NULL);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
  tight = usual;
  tight.rlim_cur = (rlim_t) dup(0);
  close((int) tight.rlim_cur); /* the lowest number that is free, and beyond it all are in this test */
  for (room = 0, rc = -EMFILE; rc == -EMFILE; room++, tight.rlim_cur++) {
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    rc = al_plat_each_process(visit, &s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
  }
  assert_int_equal(rc, 0);
  assert_int_equal(room, 3); /* with one for the directory and one for a file it is good */
}

static int
listener(uint32_t addr, uint16_t *port, bool listening) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(addr)};
  socklen_t n = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *) &a, sizeof a), 0);
  if (listening) assert_int_equal(listen(fd, 1), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *) &a, &n), 0);
  *port = ntohs(a.sin_port);
  return fd;
}

static void
test_tcp_listener_is_found(void **state) {
  uint16_t port, other;
  al_ident_t id;
  (void) state;
  int fd = listener(INADDR_LOOPBACK, &port, true);
  assert_int_equal(al_plat_tcp_listener(port, &id), 0);
  assert_int_equal(id.pid, getpid());
  assert_int_equal(al_plat_ident_alive(&id), 1);
  close(fd);
  assert_int_equal(al_plat_tcp_listener(port, &id), -ENOENT);
  fd = listener(INADDR_LOOPBACK, &port, true);
  int peer = listener(INADDR_LOOPBACK, &other, false); /* connected is not listening */
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
  assert_int_equal(connect(peer, (struct sockaddr *) &to, sizeof to), 0);
  assert_int_equal(al_plat_tcp_listener(other, &id), -ENOENT);
  close(peer);
  close(fd);
  fd = listener(0x7f000002, &other, true); /* another address of the loopback net */
  assert_int_equal(al_plat_tcp_listener(other, &id), -ENOENT);
  close(fd);
}

static void
test_tcp_listener_of_another_user_is_not_ours(void **state) {
  al_ident_t id;
  uint16_t port = 0;
  int up[2];
  (void) state;
  if (geteuid() != 0) skip(); /* needs root to be two users */
  assert_int_equal(pipe2(up, O_CLOEXEC), 0);
  pid_t pid = fork();
  if (pid == 0) {
    if (setgid(12345) || setuid(12345)) _exit(1);
    int fd = listener(INADDR_LOOPBACK, &port, true);
    if (write(up[1], &port, sizeof port) != sizeof port) _exit(1);
    sleep(60);
    _exit(fd < 0);
  }
  assert_int_equal(read(up[0], &port, sizeof port), sizeof port);
  assert_int_equal(al_plat_tcp_listener(port, &id), -EPERM);
  seek_t s = {.want = pid};
  assert_int_equal(al_plat_each_process(visit, &s), 0);
  assert_int_equal(s.found, 0);
  reap(pid);
  close(up[0]), close(up[1]);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_identity_lives_until_the_end),
    cmocka_unit_test(test_kill_spares_everybody_else),
    cmocka_unit_test(test_identity_survives_removal_of_the_program),
    cmocka_unit_test(test_each_process_finds_ours_with_its_arguments),
    cmocka_unit_test(test_each_process_never_passes_one_over),
    cmocka_unit_test(test_tcp_listener_is_found),
    cmocka_unit_test(test_tcp_listener_of_another_user_is_not_ours),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
