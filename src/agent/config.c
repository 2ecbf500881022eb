/* SPDX-License-Identifier: Apache-2.0 */
/* CONFIG: clock, unprivileged user, worktree, sudo and what happens at the end; answered by CONFIG_ACK. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATH_SIZE 4096
#define SUDOERS_DIR "/etc/sudoers.d"
#define SUDOERS SUDOERS_DIR "/agent-lane"
#define SUDOERS_NEW SUDOERS_DIR "/agent-lane.new" /* sudo skips names with a dot */

typedef struct config_s {
  char user[64], path[PATH_SIZE];
  uint32_t flags;
  uint64_t time_ns;
} config_t;

static int
take_text(char *out, size_t room, const uint8_t *value, uint32_t len) {
  if (len == 0 || memchr(value, 0, len) != NULL) return -EINVAL;
  if (len >= room) return -ENAMETOOLONG;
  memcpy(out, value, len);
  out[len] = 0;
  return 0;
}

static int
parse(const al_frame_t *f, config_t *c) {
  size_t pos = 0;
  uint16_t tag;
  const uint8_t *value;
  uint32_t len;
  int more, err = 0;
  while (err == 0 && (more = al_tlv_next(f->payload, f->len, &pos, &tag, &value, &len)) != 0) {
    if (more < 0) return -EINVAL;
    if (tag == AL_TLV_USER) err = take_text(c->user, sizeof(c->user), value, len);
    else if (tag == AL_TLV_PATH) err = take_text(c->path, sizeof(c->path), value, len);
    else if (tag == AL_TLV_FLAGS && len == 4) c->flags = al_get32(value);
    else if (tag == AL_TLV_TIME && len == 8) c->time_ns = al_get64(value);
    else err = -EINVAL;
  }
  return err;
}

#define CLOCK_STEP_NS 1000000000ll
static int64_t clock_base; /* the host's time of day minus our monotonic clock, as last told; 0 = never */

static int
set_clock(uint64_t ns) {
  struct timespec t;
  if (ns == 0 || al_agent.local) return 0;
  clock_base = (int64_t) (ns - al_main_now());
  clock_gettime(CLOCK_REALTIME, &t);
  int64_t off = (int64_t) ns - ((int64_t) t.tv_sec * 1000000000 + t.tv_nsec);
  if (off > -1000000000 && off < 1000000000) return 0;
  t = (struct timespec) {.tv_sec = (time_t) (ns / 1000000000u), .tv_nsec = (long) (ns % 1000000000u)};
  return clock_settime(CLOCK_REALTIME, &t) == 0 ? 0 : -errno;
}

/* Missing directories are made and given to the user; nothing that is there already changes hands but the last one.
 * Links are refused: the agent is root here. */
static int
make_worktree(char *path, const al_user_t *u) {
  if (path[0] != '/') return -EINVAL;
  int dir = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = dir < 0 ? -errno : 0;
  char *save = NULL, *name = strtok_r(path, "/", &save);
  while (err == 0 && name != NULL) {
    char *next = strtok_r(NULL, "/", &save);
    if (strcmp(name, "..") == 0) err = -EINVAL;
    bool made = err == 0 && mkdirat(dir, name, 0755) == 0;
    if (err == 0 && !made && errno != EEXIST) err = -errno;
    int fd = err == 0 ? openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (err == 0 && fd < 0) err = -errno;
    if (err == 0 && u != NULL && (made || next == NULL) && fchown(fd, u->uid, u->gid) != 0) err = -errno;
    if (err == 0 && next == NULL && u != NULL && fchmod(fd, 0755) != 0) err = -errno;
    close(dir);
    dir = fd;
    name = next;
  }
  if (dir >= 0) close(dir);
  return err;
}

static int
set_sudo(bool on, const char *user) {
  if (al_agent.local) return 0;
  if (!on) return unlink(SUDOERS) == 0 || errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
  for (const char *p = user; *p; p++)
    if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || *p == '-' || *p == '_')) return -EINVAL;
  if (mkdir(SUDOERS_DIR, 0750) != 0 && errno != EEXIST) return -errno;
  (void) unlink(SUDOERS_NEW);
  int fd = open(SUDOERS_NEW, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0440);
  if (fd < 0) return -errno;
  char line[128];
  int n = snprintf(line, sizeof(line), "%s ALL=(ALL) NOPASSWD:ALL\n", user);
  int err = fchmod(fd, 0440) == 0 && write(fd, line, (size_t) n) == n ? 0 : errno ? -errno : -EIO;
  close(fd);
  if (err == 0 && rename(SUDOERS_NEW, SUDOERS) != 0) err = -errno;
  return err;
}

static int
apply(config_t *c, const char **what) {
  const al_user_t *u = NULL;
  int err;
  *what = "clock";
  if ((err = set_clock(c->time_ns)) != 0) return err;
  *what = "user";
  if (c->user[0] != 0) snprintf(al_agent.user_name, sizeof(al_agent.user_name), "%s", c->user);
  if (!al_agent.local && (err = al_users_find(al_agent.user_name, &u)) != 0) return err;
  if (u != NULL && u->uid == 0) return -EPERM;
  *what = "cgroup2 at /sys/fs/cgroup";
  if (!al_agent.no_cgroup && (err = al_cgroup_init()) != 0) return err;
  *what = "worktree";
  memcpy(al_agent.worktree, c->path, sizeof(al_agent.worktree)); /* make_worktree takes it apart */
  if (c->path[0] != 0 && (err = make_worktree(c->path, u)) != 0) return err;
  *what = "sudo";
  return set_sudo(c->flags & AL_CONFIG_SUDO, al_agent.user_name);
}

/* A virtual machine that stood still, or was starved, has missed time on all of its clocks. Only that is made good, so a
 * clock that somebody in the guest has set stays as far off as it was. Late frames look like a clock that goes back. */
void
al_config_clock(uint64_t ns) {
  struct timespec t;
  int64_t base = (int64_t) (ns - al_main_now()), missed = base - clock_base;
  if (al_agent.local || clock_base == 0 || (missed < CLOCK_STEP_NS && missed > -10 * CLOCK_STEP_NS)) return;
  clock_base = base;
  clock_gettime(CLOCK_REALTIME, &t);
  int64_t now = (int64_t) t.tv_sec * 1000000000 + t.tv_nsec + missed;
  t = (struct timespec) {.tv_sec = (time_t) (now / 1000000000), .tv_nsec = (long) (now % 1000000000)};
  if (now > 0) (void) clock_settime(CLOCK_REALTIME, &t);
}

void
al_config_apply(const al_frame_t *f) {
  static config_t c;
  if (al_agent.attached) al_stop_reject(AL_REJECT_PROTOCOL, "CONFIG from an attached host");
  if (al_agent.configured) al_stop_reject(AL_REJECT_PROTOCOL, "CONFIG twice");
  al_agent.configured = true;
  const char *what = "request";
  int err = parse(f, &c);
  if (err == 0) {
    al_agent.poweroff = c.flags & AL_CONFIG_POWEROFF;
    err = apply(&c, &what);
    if (err == 0) al_attach_listen();
  }
  uint8_t out[4 + 256];
  int n = 0;
  al_put32(out, (uint32_t) -err);
  if (err != 0) n = snprintf((char *) out + 4, 256, "%s: %s", what, strerror(-err));
  if (!al_io_frame(0, AL_F_CONFIG_ACK, 0, out, (uint32_t) (4 + n)))
    al_stop_reject(AL_REJECT_PROTOCOL, "no room for CONFIG_ACK");
}
