/* SPDX-License-Identifier: Apache-2.0 */
/* Transports: the lane agent's way into the guest by `limactl shell`, and programs of this machine in its place. */
#include "lima_fixture.h"
#include "transport.h"

typedef struct side_s {
  bool opened, failed, eof, closed;
  al_transport_t *t;
  uv_stream_t *in, *out;
  al_err_t err;
  char got[4096], chunk[1024];
  size_t len;
  bool enough; /* got holds `want` bytes */
  size_t want;
} side_t;

static void
on_open(al_transport_t *t, void *data, uv_stream_t *in, uv_stream_t *out) {
  side_t *s = data;
  assert_false(s->opened || s->failed);
  s->opened = true;
  s->t = t;
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

static uv_write_t write_req;

static void
echo(side_t *s, const char *text) {
  uv_buf_t b = uv_buf_init((char *) (uintptr_t) text, (unsigned) strlen(text));
  s->in->data = s;
  s->want = strlen(text);
  assert_int_equal(uv_read_start(s->in, on_alloc, on_read), 0);
  assert_int_equal(uv_write(&write_req, s->out, &b, 1, NULL), 0);
  al_test_until(&loop, &s->enough, 5000);
  assert_memory_equal(s->got, text, strlen(text));
}

/* ---- shell ---- */

static void
shell_opens(const char *how) {
  side_t s = {.opened = false};
  al_transport_t *t;
  script(how);
  assert_int_equal(al_transport_shell(&lima, &spec, 10000, &cbs, &s, &t), 0);
  assert_false(s.opened || s.failed);
  for (int i = 0; i < 500 && !s.opened && !s.failed; i++) al_test_spin(&loop, 20);
  if (!s.opened) fail_msg("%s", s.err.msg);
  echo(&s, "frames");
  close_side(&s, t);
}

static void
test_shell_delivers_the_agent_and_opens(void **state) {
  (void) state;
  shell_opens("");
  char *agent = slurp(in("h/run/%s", "fake.agent")), *calls = slurp(in("h/run/%s", "fake.calls"));
  assert_string_equal(agent, strcmp(lima.arch, "aarch64") == 0 ? "#!/bin/sh\n# arm\n" : "#!/bin/sh\n# x86\n");
  assert_int_equal(strncmp(calls, "--tty=false shell --workdir / " NAME " sudo -n /bin/sh -c umask 077;", 60), 0);
  assert_null(strstr(calls, spec.proof));
  al_free(agent), al_free(calls);
  /* What a login prints is dropped; half a marker in it changes nothing. */
  shell_opens("fake_login() { echo Welcome; printf '\\nagent-lane-00\\n'; head -c 15000 /dev/zero; }\n");
}

static void
shell_fails(const char *how, uint64_t deadline, int code, const char *text) {
  side_t s = {.opened = false};
  al_transport_t *t;
  script(how);
  assert_int_equal(al_transport_shell(&lima, &spec, deadline, &cbs, &s, &t), 0);
  al_test_until(&loop, &s.failed, 10000);
  if (s.err.code != code || !strstr(s.err.msg, text)) fail_msg("%s: “%s”", al_err_name(s.err.code), s.err.msg);
  close_side(&s, t);
  assert_int_equal(lane_processes(), 0);
}

static void
test_shell_failures_say_why(void **state) {
  (void) state;
  shell_fails("fake_shell() { fatal 'instance is stopped'; }\n", 10000, AL_ESTART_FAILED, "instance is stopped");
  shell_fails("fake_shell() { exec >&-; echo 'sudo: a password is required' >&2; exit 1; }\n", 10000, AL_ESTART_FAILED,
    "a password is required");
  shell_fails("fake_shell() { sleep 60; }\n", 300, AL_ESTART_TIMEOUT, "waited in vain");
  shell_fails("fake_login() { head -c 17000 /dev/zero; sleep 60; }\n", 10000, AL_ESTART_FAILED, "16 KiB");
  shell_fails("fake_login() { head -c 99 <<<$'\\n'\"$token\"$'\\nhello'; sleep 60; }\n", 10000 /* one write */,
    AL_EPROTOCOL_VIOLATION, "before it was asked");
  unlink(lima.agent[0]), unlink(lima.agent[1]);
  shell_fails("", 10000, -ENOENT, "cannot be read");
  lima.agent[0][0] = lima.agent[1][0] = 0;
  shell_fails("", 10000, AL_EINTERNAL, "no lane agent");
  unlink(lima.limactl);
}

/* sshd of a busy guest drops a connection now and then: ssh ends with 255. */
static void
test_shell_tries_again_when_ssh_failed(void **state) {
  (void) state;
  shell_opens(
    "fake_login() { echo x >>$TMPDIR/tries; [ $(wc -l <$TMPDIR/tries) -ge 3 ] || { echo 'kex_exchange: closed' >&2; exit 255; }; }\n");
  shell_fails("fake_shell() { echo 'kex_exchange: closed' >&2; exit 255; }\n", 10000, AL_ESTART_FAILED, "kex_exchange");
  unlink(in("h/run/%s", "fake.calls"));
  shell_fails("fake_shell() { echo 'sudo: no' >&2; exit 1; }\n", 10000, AL_ESTART_FAILED, "sudo: no");
  char *calls = slurp(in("h/run/%s", "fake.calls"));
  assert_null(strstr(strchr(calls, '\n'), "shell")); /* a failure in the guest is final */
  al_free(calls);
}

/* sshd of a lane on the port starts after the lane is ready, so ssh fails more often than a busy sshd makes it. */
static void
test_attach_waits_for_sshd(void **state) {
  (void) state;
  side_t s = {.opened = false};
  al_transport_t *t;
  script("fake_shell() { echo x >>$TMPDIR/late; [ $(wc -l <$TMPDIR/late) -ge 6 ] || exit 255; echo 'sshd is here' >&2; exit 1; }\n");
  assert_int_equal(al_transport_attach(&lima, NAME, 30000, &cbs, &s, &t), 0);
  al_test_until(&loop, &s.failed, 30000);
  if (s.err.code != AL_ESTART_FAILED || !strstr(s.err.msg, "sshd is here")) fail_msg("“%s”", s.err.msg);
  close_side(&s, t);
}

static void
test_shell_close_at_any_time(void **state) {
  (void) state;
  for (uint64_t ms = 0; ms <= 60; ms += 20) {
    side_t s = {.opened = false};
    al_transport_t *t;
    script("fake_login() { sleep 60; }\n");
    assert_int_equal(al_transport_shell(&lima, &spec, 10000, &cbs, &s, &t), 0);
    if (ms) al_test_spin(&loop, ms);
    close_side(&s, t);
    assert_false(s.opened || s.failed);
  }
}

/* The streams outlive the child: whoever reads them sees EOF, whoever writes gets an error, and nothing is freed under
 * them. */
static void
test_shell_child_that_dies_is_eof(void **state) {
  (void) state;
  side_t s = {.opened = false};
  al_transport_t *t;
  script("fake_agent() { sleep 0.2; echo gone >&2; kill -9 $$; }\n");
  assert_int_equal(al_transport_shell(&lima, &spec, 10000, &cbs, &s, &t), 0);
  al_test_until(&loop, &s.opened, 10000);
  s.in->data = &s;
  assert_int_equal(uv_read_start(s.in, on_alloc, on_read), 0);
  al_test_until(&loop, &s.eof, 10000);
  al_test_spin(&loop, 800);
  assert_true(uv_is_writable(s.out));
  assert_string_equal(al_transport_stderr(t), "gone");
  assert_false(s.failed);
  close_side(&s, t);
}

/* ---- local ---- */

static void
test_local_is_a_program_of_this_machine(void **state) {
  (void) state;
  static const char *const cat[] = {"/bin/cat", NULL}, *const none[] = {"/nonexistent", NULL},
                           *const relative[] = {"cat", NULL}, *const env[] = {NULL};
  side_t s = {.opened = false}, gone = {.opened = false};
  al_transport_t *t;
  assert_int_equal(al_transport_local(&loop, relative, env, &cbs, &s, &t), -EINVAL);
  assert_int_equal(al_transport_local(&loop, cat, env, &cbs, &s, &t), 0);
  assert_false(s.opened);
  al_test_until(&loop, &s.opened, 5000);
  echo(&s, "hello");
  close_side(&s, t);
  /* A program that is not there is either told or is EOF at once. */
  assert_int_equal(al_transport_local(&loop, none, env, &cbs, &gone, &t), 0);
  for (int i = 0; i < 100 && !gone.opened && !gone.failed; i++) al_test_spin(&loop, 20);
  if (gone.opened) {
    gone.in->data = &gone;
    assert_int_equal(uv_read_start(gone.in, on_alloc, on_read), 0);
    al_test_until(&loop, &gone.eof, 5000);
  }
  close_side(&gone, t);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void) {
  const struct CMUnitTest tests[] = {
    T(test_shell_delivers_the_agent_and_opens),
    T(test_shell_failures_say_why),
    T(test_shell_tries_again_when_ssh_failed), T(test_attach_waits_for_sshd),
    T(test_shell_close_at_any_time),
    T(test_shell_child_that_dies_is_eof),
    T(test_local_is_a_program_of_this_machine),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
