/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the guest's Docker daemon on first use: holds /run/docker.sock and hands it over when somebody connects.
 *
 * Nothing of Docker runs in a lane that does not use it. The socket is there from the boot on, so that every client finds
 * it, not only the command `docker`. When the daemon ends, the next connection starts it again. Without systemd this
 * program is what passes the socket, in systemd's way (LISTEN_PID, LISTEN_FDS, descriptor 3). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SOCKET_PATH "/run/docker.sock"
#define LOG_PATH "/var/log/docker.log"
#define DAEMON "/usr/sbin/dockerd"
#define BACKLOG 128
#define REST_SECONDS 2 /* between two starts: a daemon that cannot start must not take the processor for itself */
#define SOCKET_FD 3    /* where systemd's way has it */

static int
fail(const char *what) {
  fprintf(stderr, "docker-socket: %s: %s\n", what, strerror(errno));
  return 1;
}

/* The group's number from /etc/group; getgrnam would pull the name service into a static program. 0 when it is not there. */
static gid_t
docker_group(void) {
  char line[512];
  unsigned gid = 0;
  FILE *file = fopen("/etc/group", "re");

  if (!file) return 0;
  while (fgets(line, sizeof line, file)) {
    if (sscanf(line, "docker:%*[^:]:%u:", &gid) == 1) break;
  }
  fclose(file);
  return (gid_t) gid;
}

static int
listen_there(void) {
  struct sockaddr_un at = {.sun_family = AF_UNIX, .sun_path = SOCKET_PATH};

  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  unlink(SOCKET_PATH);
  mode_t before = umask(0777);
  int rc = bind(fd, (struct sockaddr *) &at, sizeof at);
  umask(before);
  /* The owner before the mode: nobody else can connect in between. */
  if (rc != 0 || chown(SOCKET_PATH, 0, docker_group()) != 0 || chmod(SOCKET_PATH, 0660) != 0 || listen(fd, BACKLOG) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

/* Never returns. The log is a new one for each start, so it cannot grow for the lane's whole life. */
static void
become_daemon(int socket_fd) {
  char pid[16];
  char *argv[] = {DAEMON, "--host", "fd://", "--pidfile", "/run/docker.pid", NULL};

  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  int log = open(LOG_PATH, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
  setsid();
  snprintf(pid, sizeof pid, "%ld", (long) getpid());
  if (null < 0 || log < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) _exit(126);
  if (socket_fd == SOCKET_FD ? fcntl(SOCKET_FD, F_SETFD, 0) < 0 : dup2(socket_fd, SOCKET_FD) < 0) _exit(126);
  setenv("LISTEN_PID", pid, 1);
  setenv("LISTEN_FDS", "1", 1);
  execv(DAEMON, argv);
  _exit(127);
}

static int
serve_once(int socket_fd) {
  struct pollfd ready = {.fd = socket_fd, .events = POLLIN};
  struct timespec rest = {.tv_sec = REST_SECONDS};
  int status = 0;

  while (poll(&ready, 1, -1) < 0) {
    if (errno != EINTR) return fail("poll");
  }
  pid_t child = fork();
  if (child < 0) return fail("fork");
  if (child == 0) become_daemon(socket_fd);
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return fail("waitpid");
  }
  fprintf(stderr, "docker-socket: the daemon ended with status %d; the next connection starts it again\n", status);
  nanosleep(&rest, NULL);
  return 0;
}

int
main(void) {
  if (chdir("/") != 0) return fail("chdir");
  setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
  int fd = listen_there();
  if (fd < 0) return fail("listen on " SOCKET_PATH);
  while (serve_once(fd) == 0) { }
  return 1;
}
