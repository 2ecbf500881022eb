/* SPDX-License-Identifier: Apache-2.0 */
/* The channel's port: a virtio-serial port whose host end is a socket in the lane's directory, and the watch over its
 * guest end. */
#include "warden.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * Theory of operation. The warden makes the socket, not QEMU: bind(2) never takes a name that is there already, while
 * QEMU would unlink whatever stands at it. So the process that the kernel names as the peer (the one that called
 * listen) is the warden, or QEMU where it calls listen once more; both are known to the driver by their identity. QEMU
 * takes one connection at a time.
 *
 * QEMU does not close the connection when the guest closes its end. It says VSERPORT_CHANGE to a monitor; ours is a
 * socket pair that nobody else has. What comes over it is counted in lines and looked at for these words only.
 */

#define BUS "agent-lane-bus"
#define PORT_ID "agent-lane-port"

static int
refuse(al_warden_vm_t *vm, const char *what) {
  snprintf(vm->why, sizeof vm->why, "%s: %s", what, strerror(errno));
  return -1;
}

static int
make_socket(al_warden_vm_t *vm) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  int n = snprintf(at.sun_path, sizeof at.sun_path, "%s/" AL_WARDEN_SOCKET, vm->dir);
  if (n < 0 || (size_t) n >= sizeof at.sun_path) {
    errno = ENAMETOOLONG;
    return refuse(vm, "the path of the channel's socket");
  }
  vm->channel.listen_fd = socket(AF_UNIX, SOCK_STREAM, 0); /* QEMU inherits it */
  if (vm->channel.listen_fd < 0) return refuse(vm, "no socket for the channel");
  mode_t before = umask(0177);
  int rc = bind(vm->channel.listen_fd, (const struct sockaddr *) &at, sizeof at);
  int why = errno;
  umask(before);
  errno = why;
  if (rc != 0) return refuse(vm, "the channel's socket " AL_WARDEN_SOCKET " cannot be made");
  return listen(vm->channel.listen_fd, 1) == 0 ? 0 : refuse(vm, "the channel's socket");
}

int
al_warden_channel_open(al_warden_vm_t *vm) {
  int pair[2];
  if (make_socket(vm) != 0) return -1;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return refuse(vm, "no socket pair for QEMU's monitor");
  vm->channel.monitor_fd = pair[0];
  vm->channel.qemu_fd = pair[1];
  (void) fcntl(pair[0], F_SETFD, FD_CLOEXEC);
  (void) fcntl(pair[0], F_SETFL, O_NONBLOCK);
  const char *const argv[] = {"-chardev", "-device", "-device", "-chardev", "-mon"};
  char values[5][128];
  snprintf(values[0], sizeof values[0], "socket,id=agent-lane,fd=%d,server=on,wait=off", vm->channel.listen_fd);
  snprintf(values[1], sizeof values[1], "virtio-serial-pci,id=" BUS ",max_ports=4");
  snprintf(values[2], sizeof values[2],
    "virtserialport,bus=" BUS ".0,nr=1,chardev=agent-lane,id=" PORT_ID ",name=" AL_WARDEN_PORT);
  snprintf(values[3], sizeof values[3], "socket,id=agent-lane-monitor,fd=%d", vm->channel.qemu_fd);
  snprintf(values[4], sizeof values[4], "chardev=agent-lane-monitor,mode=control");
  for (size_t i = 0; i < sizeof argv / sizeof argv[0]; i++) {
    if (al_warden_add(vm, "%s", argv[i]) != 0 || al_warden_add(vm, "%s", values[i]) != 0) return -1;
  }
  return 0;
}

/* In the warden, once QEMU has been started: what only QEMU needs is closed. */
void
al_warden_channel_started(al_warden_channel_t *c) {
  static const char hello[] = "{\"execute\":\"qmp_capabilities\"}\n";
  if (c->monitor_fd < 0) return;
  close(c->listen_fd);
  close(c->qemu_fd);
  c->listen_fd = c->qemu_fd = -1;
  if (write(c->monitor_fd, hello, sizeof hello - 1) != (ssize_t) sizeof hello - 1) {
    close(c->monitor_fd); /* QEMU has ended already, and that is seen elsewhere */
    c->monitor_fd = -1;
  }
}

static bool
is_closing(const char *line) {
  return strstr(line, "\"VSERPORT_CHANGE\"") != NULL && strstr(line, "\"open\": false") != NULL &&
         strstr(line, "\"id\": \"" PORT_ID "\"") != NULL;
}

bool
al_warden_channel_pump(al_warden_channel_t *c) {
  char block[4096];
  ssize_t n = c->monitor_fd >= 0 ? read(c->monitor_fd, block, sizeof block) : -1;
  if (n < 0) return false;
  if (n == 0) {
    close(c->monitor_fd);
    c->monitor_fd = -1;
    return false;
  }
  for (ssize_t i = 0; i < n; i++) {
    if (block[i] != '\n') { /* of a longer line the beginning is kept, which no line of ours needs */
      if (c->len < sizeof c->line - 1) c->line[c->len++] = block[i] != 0 ? block[i] : ' ';
      continue;
    }
    c->line[c->len] = 0;
    c->len = 0;
    if (is_closing(c->line)) return true;
  }
  return false;
}
