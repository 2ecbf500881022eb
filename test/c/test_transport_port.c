/* SPDX-License-Identifier: Apache-2.0 */
/* The port transport against a peer on its socket that behaves well, badly, or is somebody else. */
#include "lima_fixture.h"
#include "transport.h"
#include <sys/socket.h>
#include <sys/un.h>

typedef struct side_s {
  bool opened, failed, eof, closed, enough;
  uv_stream_t *in, *out;
  al_err_t err;
  char got[64], chunk[64];
  size_t len, want;
} side_t;

static void
on_open(al_transport_t *t, void *data, uv_stream_t *in, uv_stream_t *out) {
  side_t *s = data;
  (void) t;
  assert_false(s->opened || s->failed);
  s->opened = true;
  s->in = in;
  s->out = out;
}

static void
on_failed(al_transport_t *t, void *data, const al_err_t *err) {
  side_t *s = data;
  (void) t;
  assert_false(s->opened || s->failed);
  s->failed = true;
  s->err = *err;
}

static const al_transport_cbs_t cbs = {on_open, on_failed};

static void
on_alloc(uv_handle_t *h, size_t n, uv_buf_t *buf) {
  side_t *s = h->data;
  (void) n;
  *buf = uv_buf_init(s->chunk, sizeof s->chunk);
}

static void
on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
  side_t *s = stream->data;
  if (n < 0) {
    s->eof = true;
    uv_read_stop(stream);
    return;
  }
  assert_true(s->len + (size_t) n <= sizeof s->got);
  memcpy(s->got + s->len, buf->base, (size_t) n);
  s->len += (size_t) n;
  s->enough = s->len >= s->want;
}

static void
on_closed(void *data) {
  *(bool *) data = true;
}

static void
close_side(side_t *s, al_transport_t *t) {
  al_transport_close(t, on_closed, &s->closed);
  assert_false(s->closed);
  al_test_until(&loop, &s->closed, 5000);
}

static const char *
lane(const char *file) {
  return in("h/lima/" NAME "/%s", file);
}

static pid_t
peer(const char *mode, bool ours) {
  char path[512], pidfile[512];
  static const char *const files[] = {"lane.sock", "lane.sock.seen", "lane.sock.agent"};
  for (size_t i = 0; i < 3; i++) unlink(lane(files[i]));
  snprintf(path, sizeof path, "%s", lane("lane.sock"));
  snprintf(pidfile, sizeof pidfile, "%s", lane("qemu.pid"));
  pid_t pid = al_test_fork();
  if (pid == 0) {
    execlp("python3", "qemu", "test/fixtures/fake-port.py", path, mode, ours ? "-pidfile" : NULL, pidfile,
      (char *) NULL);
    _exit(127);
  }
  return pid;
}

static size_t
seen_bytes(void) {
  char *text = NULL;
  size_t len = 0;
  if (al_plat_read_file(-1, lane("lane.sock.seen"), 1 << 20, &text, &len)) return 0;
  al_free(text);
  return len;
}

static void
wait_end(side_t *s) {
  for (int i = 0; i < 1000 && !s->opened && !s->failed; i++) al_test_spin(&loop, 20);
}

static uv_write_t write_req;

static void
port_opens(const char *mode) {
  side_t s = {.opened = false};
  al_transport_t *t;
  assert_int_equal(al_transport_port(&lima, &spec, 15000, &cbs, &s, &t), 0);
  assert_false(s.opened || s.failed);
  al_test_spin(&loop, 60); /* the socket comes later than the call */
  assert_false(s.opened || s.failed);
  pid_t pid = peer(mode, true);
  wait_end(&s);
  if (!s.opened) fail_msg("%s: %s", mode, s.err.msg);
  uv_buf_t b = uv_buf_init("frames", 6);
  s.in->data = &s;
  s.want = 6;
  assert_ptr_equal(s.in, s.out);
  assert_int_equal(uv_read_start(s.in, on_alloc, on_read), 0);
  assert_int_equal(uv_write(&write_req, s.out, &b, 1, NULL), 0);
  al_test_until(&loop, &s.enough, 5000);
  assert_memory_equal(s.got, "frames", 6);
  char *agent = slurp(lane("lane.sock.agent")), *seen = slurp(lane("lane.sock.seen"));
  assert_string_equal(agent, strcmp(lima.arch, "aarch64") == 0 ? "#!/bin/sh\n# arm\n" : "#!/bin/sh\n# x86\n");
  assert_int_equal(strncmp(seen, "agent-lane-port 1 16 ", 21), 0);
  assert_null(strstr(seen, spec.proof));
  al_free(agent), al_free(seen);
  close_side(&s, t);
  al_test_kill(pid);
}

static void
test_port_delivers_the_agent_and_opens(void **state) {
  (void) state;
  build();
  port_opens("ok");
  port_opens("noise"); /* dropped; half a marker in it changes nothing */
  port_opens("bytewise");
}

static void
port_fails(const char *mode, bool ours, uint64_t deadline, int code, const char *text) {
  side_t s = {.opened = false};
  al_transport_t *t;
  pid_t pid = peer(mode, ours);
  for (int i = 0; i < 2500 && !exists(lane("lane.sock")); i++) usleep(2000);
  bool gone = strcmp(mode, "gone") == 0; /* its socket is left, and nobody behind it when it is dialled */
  if (gone) al_test_kill(pid);
  assert_int_equal(al_transport_port(&lima, &spec, deadline, &cbs, &s, &t), 0);
  wait_end(&s);
  if (!s.failed || s.err.code != code || !strstr(s.err.msg, text))
    fail_msg("%s: %s: “%s”", mode, al_err_name(s.err.code), s.err.msg);
  close_side(&s, t);
  if (!gone) al_test_kill(pid);
}

static void
test_port_hostile_peers_end_in_words(void **state) {
  (void) state;
  build();
  al_test_write(spec.dir, "serial.log", "lane-init 1.0 start\r\nlane-init 2.0 FAILED: \033[31mno agent\r\n");
  port_fails("flood", true, 15000, AL_ESTART_FAILED, "16 KiB");
  port_fails("speaks", true, 15000, AL_EPROTOCOL_VIOLATION, "before it was asked");
  port_fails("garbage", true, 2000, AL_ESTART_TIMEOUT, "waited in vain for the lane agent");
  port_fails("silent", true, 1000, AL_ESTART_TIMEOUT, "waited in vain for the lane agent");
  port_fails("deaf", true, 1000, AL_ESTART_TIMEOUT, "waited in vain for the lane agent");
  port_fails("gone", true, 1000, AL_ESTART_TIMEOUT, "waited in vain for QEMU");
  /* Whoever boots the lane has a moment to say it better. */
  port_fails("closes", true, 15000, AL_ESTART_FAILED, "the guest's last words: lane-init 2.0 FAILED: ");
  port_fails("midway", true, 15000, AL_ESTART_FAILED, "the VM ended before the lane agent started");
}

/* A process that is no part of the lane gets not one byte, whether or not the lane's QEMU is there too. */
static void
test_port_refuses_a_stranger(void **state) {
  (void) state;
  build();
  port_fails("ok", false, 15000, AL_EPEER_UNPROVEN, "not by the lane's QEMU");
  assert_int_equal(seen_bytes(), 0);
  pid_t qemu = peer("ok", true);
  for (int i = 0; i < 2500 && !exists(lane("lane.sock")); i++) usleep(2000);
  port_fails("ok", false, 15000, AL_EPEER_UNPROVEN, "not by the lane's QEMU"); /* it takes the name over */
  assert_int_equal(seen_bytes(), 0);
  al_test_kill(qemu);
}

static int
listen_here(const char *path, mode_t mode) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0 && strlen(path) < sizeof at.sun_path);
  memcpy(at.sun_path, path, strlen(path));
  unlink(path);
  assert_int_equal(bind(fd, (const struct sockaddr *) &at, sizeof at) | chmod(path, mode) | listen(fd, 1), 0);
  return fd;
}

static void
planted(const char *text) {
  side_t s = {.opened = false};
  al_transport_t *t;
  assert_int_equal(al_transport_port(&lima, &spec, 15000, &cbs, &s, &t), 0);
  wait_end(&s);
  if (!s.failed || s.err.code != AL_EPEER_UNPROVEN || !strstr(s.err.msg, text))
    fail_msg("%s: “%s”", al_err_name(s.err.code), s.err.msg);
  close_side(&s, t);
}

static void
test_port_refuses_what_was_planted(void **state) {
  (void) state;
  build();
  int fd = listen_here(lane("lane.sock"), 0600); /* this very process, which is no QEMU */
  planted("not by the lane's QEMU");
  close(fd);
  fd = listen_here(lane("lane.sock"), 0666);
  planted("not a socket of ours alone");
  close(fd);
  unlink(lane("lane.sock"));
  fd = listen_here(in("h/%s", "elsewhere"), 0600);
  assert_int_equal(symlink(in("h/%s", "elsewhere"), lane("lane.sock")), 0);
  planted("not a socket of ours alone");
  close(fd);
  unlink(lane("lane.sock"));
  al_test_write(spec.dir, "lane.sock", "");
  assert_int_equal(chmod(lane("lane.sock"), 0600), 0);
  planted("not a socket of ours alone");
  if (geteuid() == 0) { /* only root can make another user's */
    unlink(lane("lane.sock"));
    fd = listen_here(lane("lane.sock"), 0600);
    assert_int_equal(chown(lane("lane.sock"), 12345, 12345), 0);
    planted("not a socket of ours alone");
    close(fd);
  }
}

static void
test_port_reads_the_configuration_again(void **state) {
  side_t s = {.opened = false};
  al_transport_t *t;
  (void) state;
  build();
  assert_int_equal(al_plat_mkdirs(in("h/lima/%s", "_config"), 0700), 0);
  al_test_write(in("h/lima/%s", "_config"), "override.yaml", "mounts: []");
  pid_t pid = peer("ok", true);
  assert_int_equal(al_transport_port(&lima, &spec, 15000, &cbs, &s, &t), 0);
  wait_end(&s);
  assert_true(s.failed);
  assert_int_equal(s.err.code, AL_ECONFIG_REFUSED);
  assert_int_equal(seen_bytes(), 0);
  close_side(&s, t);
  al_test_kill(pid);
}

static void
test_port_without_an_agent(void **state) {
  side_t s = {.opened = false};
  al_transport_t *t;
  (void) state;
  build();
  lima.agent[0][0] = lima.agent[1][0] = 0;
  assert_int_equal(al_transport_port(&lima, &spec, 15000, &cbs, &s, &t), 0);
  wait_end(&s);
  assert_int_equal(s.err.code, AL_EINTERNAL);
  close_side(&s, t);
}

static void
test_port_close_at_any_time(void **state) {
  static const char *const modes[] = {"silent", "deaf", "closes", "ok"};
  (void) state;
  build();
  for (size_t m = 0; m < 4; m++) {
    pid_t pid = peer(modes[m], true);
    for (int i = 0; i < 2500 && !exists(lane("lane.sock")); i++) usleep(2000);
    for (uint64_t ms = 0; ms <= 40; ms += 20) {
      side_t s = {.opened = false};
      al_transport_t *t;
      assert_int_equal(al_transport_port(&lima, &spec, 15000, &cbs, &s, &t), 0);
      if (ms) al_test_spin(&loop, ms);
      bool before = s.failed; /* a peer that closes may have been heard by then */
      assert_false(before && strcmp(modes[m], "closes"));
      close_side(&s, t);
      assert_int_equal(s.failed, before);
    }
    al_test_kill(pid);
  }
}

/* The stream outlives the peer: its end is EOF, and nothing is freed under who reads it. */
static void
test_port_peer_that_dies_is_eof(void **state) {
  side_t s = {.opened = false};
  al_transport_t *t;
  (void) state;
  build();
  pid_t pid = peer("dies", true);
  assert_int_equal(al_transport_port(&lima, &spec, 15000, &cbs, &s, &t), 0);
  wait_end(&s);
  assert_true(s.opened);
  s.in->data = &s;
  assert_int_equal(uv_read_start(s.in, on_alloc, on_read), 0);
  al_test_until(&loop, &s.eof, 10000);
  assert_false(s.failed);
  close_side(&s, t);
  al_test_kill(pid);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void) {
  const struct CMUnitTest tests[] = {T(test_port_delivers_the_agent_and_opens), T(test_port_hostile_peers_end_in_words),
    T(test_port_refuses_a_stranger), T(test_port_refuses_what_was_planted), T(test_port_reads_the_configuration_again),
    T(test_port_without_an_agent), T(test_port_close_at_any_time), T(test_port_peer_that_dies_is_eof)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
