/* SPDX-License-Identifier: Apache-2.0 */
/* The built warden with a port as the lane's channel: the socket it makes, the devices it adds, the end of the port. */
#include "warden_run.h"
#include <sys/socket.h>
#include <sys/un.h>

static const char *
socket_path(void) {
  static char path[sizeof inst + 16];
  snprintf(path, sizeof path, "%s/lane.sock", inst);
  return path;
}

static int
connect_to_port(void) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_true(fd >= 0 && strlen(socket_path()) < sizeof at.sun_path);
  memcpy(at.sun_path, socket_path(), strlen(socket_path()));
  if (connect(fd, (const struct sockaddr *) &at, sizeof at) == 0) return fd;
  close(fd);
  return -1;
}

/* A QEMU that says `event` to its monitor after it was greeted, and waits. */
static void
write_speaker(const char *event) {
  char body[1400];
  snprintf(body, sizeof body,
    "exec python3 - \"$@\" <<'EOF'\n"
    "import re, socket, sys, time\n"
    "fd = int(re.search('id=agent-lane-monitor,fd=([0-9]+)', ' '.join(sys.argv)).group(1))\n"
    "s = socket.socket(fileno=fd)\n"
    "assert b'qmp_capabilities' in s.recv(100)\n"
    "s.sendall(b'{\"QMP\": {}}\\r\\n{\"return\": {}}\\r\\n')\n"
    "%s\n"
    "open('%s/said', 'w').close()\n"
    "time.sleep(60)\n"
    "EOF\n",
    event, dir);
  write_qemu(body);
}

#define CHANGE(id, open) \
  "s.sendall(b'{\"timestamp\": {\"seconds\": 1}, \"event\": \"VSERPORT_CHANGE\", " \
  "\"data\": {\"open\": " open ", \"id\": \"" id "\"}}\\r\\n')\n"

static run_t
start_port(void) {
  line_t l;
  unlink(in("seen"));
  unlink(socket_path());
  port_line(&l);
  run_t r = start(&l);
  until_seen();
  return r;
}

static void
end(run_t *r) {
  char text[2048];
  kill(r->pid, SIGTERM);
  finish(r, text, sizeof text);
}

static void
test_port_adds_one_device_and_a_private_socket(void **state) {
  struct stat st;
  (void) state;
  run_t r = start_port();
  char *seen = slurp(in("seen"));
  assert_non_null(strstr(seen, "\n-chardev\nsocket,id=agent-lane,fd="));
  assert_non_null(strstr(seen, ",server=on,wait=off\n-device\nvirtio-serial-pci,id=agent-lane-bus,max_ports=4\n"));
  assert_non_null(strstr(seen,
    "\n-device\nvirtserialport,bus=agent-lane-bus.0,nr=1,chardev=agent-lane,id=agent-lane-port,name=agent-lane\n"));
  assert_non_null(strstr(seen, "\n-mon\nchardev=agent-lane-monitor,mode=control\n"));
  assert_null(strstr(seen, "lane.sock")); /* QEMU gets a descriptor: it would unlink whatever has the name */
  al_free(seen);
  assert_int_equal(lstat(socket_path(), &st), 0);
  assert_true(S_ISSOCK(st.st_mode));
  assert_int_equal(st.st_mode & 07777, 0600);
  int fd = connect_to_port();
  assert_true(fd >= 0);
  close(fd);
  end(&r);
  assert_int_equal(connect_to_port(), -1); /* nobody takes callers for a QEMU that is gone */
}

static void
test_port_is_not_there_for_a_shell(void **state) {
  line_t l;
  (void) state;
  start_line(&l, "none", "tcg");
  run_t r = start(&l);
  until_seen();
  char *seen = slurp(in("seen"));
  assert_null(strstr(seen, "agent-lane-bus"));
  assert_null(strstr(seen, "virtserialport"));
  al_free(seen);
  assert_int_equal(access(socket_path(), F_OK), -1);
  end(&r);
}

static void
test_port_never_takes_a_name_that_is_there(void **state) {
  line_t l;
  (void) state;
  for (int i = 0; i < 2; i++) {
    unlink(socket_path());
    if (i == 0) al_test_write(inst, "lane.sock", "planted");
    else assert_int_equal(symlink("/tmp/elsewhere.sock", socket_path()), 0);
    port_line(&l);
    expect_refused(&l, "lane.sock cannot be made", "a planted socket");
    assert_int_equal(access("/tmp/elsewhere.sock", F_OK), -1);
  }
}

static void
test_port_needs_a_short_directory(void **state) {
  char longer[150];
  line_t l;
  (void) state;
  size_t room = 108 - sizeof "/lane.sock" - strlen(dir) - 2 - strlen(NAME);
  for (size_t pad = room; pad <= room + 1; pad++) {
    snprintf(longer, sizeof longer, "%s/%.*s", dir, (int) pad,
      "pppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppp");
    assert_int_equal(mkdir(longer, 0700), 0);
    snprintf(inst, sizeof inst, "%s/" NAME, longer);
    snprintf(logfile, sizeof logfile, "%s/warden.log", inst);
    assert_int_equal(mkdir(inst, 0700), 0);
    static const char *const files[] = {"disk", "cidata.iso", "kernel", "initrd"};
    for (size_t i = 0; i < 4; i++) al_test_write(inst, files[i], "x");
    if (pad == room) {
      run_t r = start_port();
      end(&r);
    } else {
      port_line(&l);
      expect_refused(&l, "the path of the channel's socket", "one byte too long");
    }
  }
}

static void
test_port_lima_may_not_bring_one(void **state) {
  static const char *const more[][2] = {
    {"-device", "virtserialport,bus=virtio-serial0.0,chardev=char-qmp,name=agent-lane"},
    {"-chardev", "socket,id=agent-lane,path=DIR/lane.sock,server=on,wait=off"},
    {"-device", "virtio-serial-pci,id=agent-lane-bus,max_ports=4"}, {"-mon", "chardev=char-qmp"}};
  line_t l;
  (void) state;
  for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
    port_line(&l);
    add(&l, more[i][0]), add(&l, more[i][1]);
    expect_refused(&l, more[i][0], more[i][1]);
  }
}

static void
until_said(void) {
  for (int i = 0; i < 2500 && access(in("said"), F_OK); i++) usleep(2000);
  assert_int_equal(access(in("said"), F_OK), 0);
  unlink(in("said"));
}

static void
test_port_closed_by_the_guest_ends_the_vm(void **state) {
  char text[2048];
  (void) state;
  write_speaker(CHANGE("agent-lane-port", "true") CHANGE("agent-lane-port", "false"));
  run_t r = start_port();
  assert_int_equal(finish(&r, text, sizeof text), 128 + SIGKILL);
  assert_non_null(strstr(text, "ended: the guest closed the channel's port"));
}

static void
test_port_other_words_of_the_monitor_change_nothing(void **state) {
  static const char *const said[] = {CHANGE("agent-lane-port", "true"), CHANGE("other-port", "false"),
    "s.sendall(b'x' * 300000 + b'\\n' + bytes(3000) + b'\\n')\n", "s.close()\n"};
  (void) state;
  for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
    write_speaker(said[i]);
    run_t r = start_port();
    pid_t pid = qemu_pid();
    until_said();
    usleep(50000);
    assert_int_equal(kill(pid, 0), 0);
    end(&r);
  }
  /* Behind a flood the word is still heard. */
  char text[2048];
  write_speaker("s.sendall(b'x' * 300000 + b'\\n')\n" CHANGE("agent-lane-port", "false"));
  run_t r = start_port();
  assert_int_equal(finish(&r, text, sizeof text), 128 + SIGKILL);
}

int
main(void) {
  if (!find_warden()) return 1;
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {T(test_port_adds_one_device_and_a_private_socket),
    T(test_port_is_not_there_for_a_shell), T(test_port_never_takes_a_name_that_is_there),
    T(test_port_needs_a_short_directory), T(test_port_lima_may_not_bring_one),
    T(test_port_closed_by_the_guest_ends_the_vm), T(test_port_other_words_of_the_monitor_change_nothing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
