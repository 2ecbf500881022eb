/* SPDX-License-Identifier: Apache-2.0 */
/* The end: every process of every command dies, then the machine is powered off when the host asked for it. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void
nap(long ms) {
  struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

/* We are a subreaper: whoever loses its parent becomes our child, so killing all children until none is left ends the
 * whole tree, also where there are no cgroups. */
static bool
kill_children(void) {
  char text[4096];
  int fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool any = false;
  size_t len = 0;
  ssize_t n;
  while (len < sizeof(text) - 1 && (n = read(fd, text + len, sizeof(text) - 1 - len)) > 0) len += (size_t) n;
  close(fd);
  if (len == sizeof(text) - 1)
    while (len > 0 && text[len - 1] != ' ') len--; /* a number cut in half names somebody else */
  text[len] = 0;
  for (char *p = text; *p != 0;) {
    char *end;
    long pid = strtol(p, &end, 10);
    if (end == p) break;
    if (pid > 1) {
      kill((pid_t) pid, SIGKILL);
      any = true;
    }
    p = end + strspn(end, " ");
  }
  return any;
}

/* What unpacks gets a moment to remove what is not in place; not where the disk goes with the machine. */
static void
end_unpacking(void) {
  for (int i = 0; i < 400; i++) {
    bool any = false;
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
    for (size_t k = 0; k < al_agent.slots_high; k++) {
      const al_slot_t *s = &al_agent.slots[k];
      if (s->state == AL_SLOT_RUN && s->unpack && !s->reaped && kill(s->pid, i == 0 ? SIGTERM : 0) == 0) any = true;
    }
    if (!any) return;
    nap(5);
  }
}

static void
kill_everything(void) {
  for (size_t i = 0; i < al_agent.slots_high; i++) {
    al_slot_t *s = &al_agent.slots[i];
    if (s->state == AL_SLOT_RUN && !s->reaped && kill(-s->pid, SIGKILL) != 0) kill(s->pid, SIGKILL);
  }
  if (!al_agent.no_cgroup) al_cgroup_kill_all();
  for (int i = 0; i < 200; i++) {
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
    if (!kill_children()) break;
    nap(5);
  }
}

static void
power_off(void) {
  int fd = open("/proc/sysrq-trigger", O_WRONLY | O_CLOEXEC);
  if (fd >= 0) {
    ssize_t n = write(fd, "o", 1);
    close(fd);
    if (n == 1) nap(3000);
  }
  reboot(RB_POWER_OFF);
}

_Noreturn void
al_stop_eof(int code) {
  if (!al_agent.poweroff || al_agent.local) end_unpacking();
  kill_everything();
  al_cgroup_remove();
  if (al_agent.poweroff && !al_agent.local) power_off();
  _exit(code);
}

_Noreturn void
al_stop_reject(uint32_t code, const char *text) {
  static bool again;
  if (!again) {
    again = true;
    uint8_t out[4 + 256];
    size_t len = strnlen(text, 256);
    al_put32(out, code);
    memcpy(out + 4, text, len);
    al_io_frame(0, AL_F_REJECT, 0, out, (uint32_t) (4 + len));
    al_io_drain(AL_FLUSH_MS);
  }
  al_stop_eof(1);
}
