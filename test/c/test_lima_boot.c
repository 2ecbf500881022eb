/* SPDX-License-Identifier: Apache-2.0 */
/* Lima driver: boot, against a scripted limactl and a stand-in for QEMU. */
#include "lima_fixture.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

typedef struct boot_answer_s {
  answer_t a;
  uint16_t port;
} boot_answer_t;

static void
on_booted(al_boot_t *b, void *data, int status, const al_err_t *err, uint16_t port) {
  boot_answer_t *a = data;
  (void) b;
  a->port = port;
  on_answer(&a->a, status, err);
}

static void
on_closed(void *data) {
  *(bool *) data = true;
}

/* One boot to its answer and closed; what the answer was. */
static boot_answer_t
boot(uint64_t deadline_ms) {
  boot_answer_t a = {.port = 0};
  bool closed = false;
  al_boot_t *b;
  build();
  assert_int_equal(al_lima_boot(&lima, &spec, deadline_ms, on_booted, &a, &b), 0);
  assert_false(a.a.done);
  al_test_until(&loop, &a.a.done, 20000);
  al_lima_boot_close(b, on_closed, &closed);
  assert_false(closed);
  al_test_until(&loop, &closed, 5000);
  return a;
}

static void
boot_fails(const char *how, uint64_t deadline_ms, int code, const char *text) {
  script(how);
  boot_answer_t a = boot(deadline_ms);
  assert_answer(&a.a, code, text);
  assert_string_equal(a.a.err.lane, NAME);
  destroyed();
}

static void
test_boot_failures_say_why(void **state) {
  (void) state;
  boot_fails("fake_start() { fatal 'disk shrinking is not supported'; }\n", 5000, AL_ESTART_FAILED,
    "disk shrinking is not supported");
  boot_fails("fake_start() { echo 'limactl: must not run as the root user' >&2; exit 1; }\n", 5000, AL_ESTART_FAILED,
    "must not run as the root user");
  boot_fails("fake_start() { kill -9 $$; }\n", 5000, AL_ESTART_FAILED, "signal 9");
  boot_fails(
    "fake_start() { echo '{\"level\":\"fatal\",\"msg\":\"no firmware\"}' >$LIMA_HOME/$1/ha.stderr.log; event $1 '{\"exiting\":true,\"errors\":[\"e1\",\"e2\"]}'; sleep 60; }\n",
    5000, AL_ESTART_FAILED, "reported: e2; its log ends with: no firmware");
  boot_fails(
    "fake_start() { echo 'warden: refused: unknown argument -virtfs' >$LIMA_HOME/$1/warden.log; fatal 'exit status 1'; }\n",
    5000, AL_EWARDEN_REFUSED, "-virtfs");
  boot_fails(
    "fake_start() { echo 'warden: not started: the owner is gone' >$LIMA_HOME/$1/warden.log; fatal 'exit status 1'; }\n",
    5000, AL_ESTART_FAILED, "exit status 1; the warden did not start QEMU: the owner is gone");
  boot_fails("fake_start() { printf 'a\\nKernel panic: no init\\nKernel Offset: 0\\n' >$LIMA_HOME/$1/serial.log; fatal 'exit status 1'; }\n", 5000,
    AL_ESTART_FAILED, "exit status 1; the guest's last words: Kernel panic: no init");
  boot_fails(
    "fake_start() { event $1 '{\"sshLocalPort\":70000}'; sleep 60; }\n", 5000, AL_ESTART_FAILED, "port that is none");
  boot_fails("fake_start() { echo junk >$LIMA_HOME/$1/ha.stdout.log; event $1 '{}'; sleep 60; }\n", 500,
    AL_ESTART_TIMEOUT, "ssh port");
  boot_fails("fake_start() { event $1 '{\"sshLocalPort\":1}'; sleep 60; }\n", 500, AL_ESTART_TIMEOUT, "the VM to listen");
}

static void
test_boot_port_of_a_stranger_is_refused(void **state) {
  (void) state;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t n = sizeof at;
  char how[200];
  int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(s >= 0 && bind(s, (struct sockaddr *) &at, sizeof at) == 0 && listen(s, 8) == 0 &&
    getsockname(s, (struct sockaddr *) &at, &n) == 0);
  snprintf(how, sizeof how, "fake_start() { event $1 '{\"sshLocalPort\":%u}'; sleep 60; }\n", ntohs(at.sin_port));
  boot_fails(how, 5000, AL_EPEER_UNPROVEN, "not by the lane's QEMU");
  close(s);
}

#define QEMU(banner, delay) QEMU_AFTER("", banner, delay)
#define QEMU_AFTER(first, banner, delay) \
  "fake_start() { " first \
  " rm -f $TMPDIR/port; PATH=$PATH:/usr/local/bin setsid python3 \"$(cat $TMPDIR/here)/test/fixtures/fake-qemu.py\" $TMPDIR/port '" banner \
  "' " delay \
  " -pidfile $LIMA_HOME/$1/qemu.pid </dev/null >/dev/null 2>&1 &\n until [ -s $TMPDIR/port ]; do sleep 0.02; done; event $1 \"{\\\"sshLocalPort\\\":$(cat $TMPDIR/port)}\"; "

static void
write_here(void) {
  char here[1024];
  assert_non_null(getcwd(here, sizeof here));
  al_test_write(home.run, "here", here);
}

static void
test_boot_ends_with_the_banner(void **state) {
  (void) state;
  write_here();
  script(QEMU("SSH-2.0-OpenSSH_9.2", "0") "sleep 60; }\n");
  boot_answer_t a = boot(15000);
  assert_answer(&a.a, 0, NULL);
  char *port = slurp(in("h/run/%s", "port"));
  assert_int_equal(a.port, atoi(port));
  al_free(port);
  destroyed(); /* and with it the stand-in for QEMU */
  assert_int_equal(lane_processes(), 0);
  /* A guest that has refused and then needs longer than the pace of the tries is waited for, not asked again and
   * again. */
  script(QEMU("SSH-2.0-slow", "1.6/2") "sleep 60; }\n");
  a = boot(15000);
  assert_answer(&a.a, 0, NULL);
  destroyed();
  boot_fails(QEMU("HTTP/1.1 200 OK", "0") "sleep 60; }\n", 2000, AL_ESTART_TIMEOUT, "ssh in the guest to answer");
}

static void
test_boot_sees_a_config_that_appears(void **state) {
  (void) state;
  write_here();
  boot_fails(
    QEMU_AFTER("mkdir -p $LIMA_HOME/_config; : >$LIMA_HOME/_config/override.yaml;", "SSH-2.0-x", "0") "sleep 60; }\n",
    15000, AL_ECONFIG_REFUSED, "override.yaml");
}

static void
test_boot_close_before_the_answer(void **state) {
  (void) state;
  boot_answer_t a = {.port = 0};
  bool closed = false;
  al_boot_t *b;
  script("fake_start() { sleep 60; }\n");
  build();
  assert_int_equal(al_lima_boot(&lima, &spec, 5000, on_booted, &a, &b), 0);
  al_test_spin(&loop, 200);
  al_lima_boot_close(b, on_closed, &closed);
  al_test_until(&loop, &closed, 5000);
  assert_false(a.a.done);
  assert_int_equal(lane_processes(), 0);
}

/* A lane with a port: told as soon as the socket is there, and watched until it is settled. */
static void
test_boot_with_a_port_answers_at_the_socket(void **state) {
  boot_answer_t a = {.port = 0};
  bool closed = false;
  al_boot_t *b;
  (void) state;
  spec.port = true;
  script("fake_start() { event $1 '{\"sshLocalPort\":4711}'; sleep 0.2; : >$LIMA_HOME/$1/lane.sock; sleep 60; }\n");
  build();
  assert_int_equal(al_lima_boot(&lima, &spec, 10000, on_booted, &a, &b), 0);
  al_test_until(&loop, &a.a.done, 10000);
  assert_answer(&a.a, 0, NULL);
  al_test_spin(&loop, 100);
  assert_int_equal(al_lima_boot_settle(b), 4711);
  assert_int_equal(al_lima_boot_settle(b), 4711);
  al_lima_boot_close(b, on_closed, &closed);
  al_test_until(&loop, &closed, 5000);
  assert_int_equal(a.a.count, 1);
  destroyed();
}

static void
port_boot_fails_late(const char *rest, uint64_t deadline_ms, int code, const char *text) {
  boot_answer_t a = {.port = 0};
  bool closed = false;
  char how[1024];
  al_boot_t *b;
  snprintf(how, sizeof how, "fake_start() { : >$LIMA_HOME/$1/lane.sock; sleep 0.3; %s; }\n", rest);
  script(how);
  build();
  assert_int_equal(al_lima_boot(&lima, &spec, deadline_ms, on_booted, &a, &b), 0);
  al_test_until(&loop, &a.a.done, 10000);
  assert_answer(&a.a, 0, NULL);
  for (int i = 0; i < 500 && a.a.count < 2; i++) al_test_spin(&loop, 20);
  assert_int_equal(a.a.count, 2);
  if (a.a.status != code || !strstr(a.a.err.msg, text)) fail_msg("%s: “%s”", al_err_name(a.a.status), a.a.err.msg);
  al_lima_boot_close(b, on_closed, &closed);
  al_test_until(&loop, &closed, 5000);
  destroyed();
}

static void
test_boot_with_a_port_is_watched_until_ready(void **state) {
  (void) state;
  spec.port = true;
  port_boot_fails_late("fatal 'exit status 1'", 10000, AL_ESTART_FAILED, "exit status 1");
  port_boot_fails_late("event $1 '{\"exiting\":true,\"errors\":[\"no memory\"]}'; sleep 60", 10000, AL_ESTART_FAILED,
    "reported: no memory");
  port_boot_fails_late("echo 'warden: refused: -virtfs' >$LIMA_HOME/$1/warden.log; fatal 'exit status 1'", 10000,
    AL_EWARDEN_REFUSED, "-virtfs");
  port_boot_fails_late("echo 'lane-init 3.1 waiting for eth0' >$LIMA_HOME/$1/serial.log; sleep 60", 1500, AL_ESTART_TIMEOUT,
    "waited in vain for the lane agent to start in the guest; the guest's last words: lane-init 3.1 waiting for eth0");
  boot_fails("fake_start() { event $1 '{\"sshLocalPort\":4711}'; sleep 60; }\n", 500, AL_ESTART_TIMEOUT,
    "waited in vain for the warden to make the channel's socket");
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void) {
  const struct CMUnitTest tests[] = {
    T(test_boot_failures_say_why),
    T(test_boot_port_of_a_stranger_is_refused),
    T(test_boot_ends_with_the_banner),
    T(test_boot_sees_a_config_that_appears),
    T(test_boot_close_before_the_answer),
    T(test_boot_with_a_port_answers_at_the_socket),
    T(test_boot_with_a_port_is_watched_until_ready),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
