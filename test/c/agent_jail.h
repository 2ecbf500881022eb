/* SPDX-License-Identifier: Apache-2.0 */
/* The lane agent as root, as in a guest, in namespaces of its own: for the tests of users, cgroups and the end. */
#ifndef AGENT_JAIL_H
#define AGENT_JAIL_H

#include "agent_host.h"
#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>

#define LEFT_OVER 77   /* exit codes of the jail's first process */
#define POWERED_OFF 42

static bool expect_poweroff;

static inline int
put(const char *path, const char *text, mode_t mode) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (fd < 0) return -1;
  int err = write(fd, text, strlen(text)) == (ssize_t) strlen(text) ? 0 : -1;
  close(fd);
  return err;
}

/* Own /etc, /home and cgroup tree; and a plain file over sysrq-trigger (where the kernel has it), so that nothing here
 * can stop the machine. reboot(2) only ends a PID namespace, with SIGINT for its first process. */
static inline int
furnish(void) {
  if (mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("proc", "/proc", "proc", 0, NULL) != 0) return -1;
  if (mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL) != 0) return -1;
  if (mount("etc", "/etc", "tmpfs", 0, NULL) != 0 || mount("home", "/home", "tmpfs", 0, "mode=755") != 0) return -1;
  if (put("/etc/passwd", "root:x:0:0::/root:/bin/sh\n+::::::\nagent:x:4242:4243::/home/agent:/bin/dash\n", 0644) != 0)
    return -1;
  if (put("/etc/group", "root:x:0:\nagent:x:4243:\nother:x:4244:root\ntools:x:4245:root,agent\n", 0644) != 0) return -1;
  if (put("/home/trigger", "-", 0600) != 0) return -1;
  if (mount("/home/trigger", "/proc/sysrq-trigger", NULL, MS_BIND, NULL) != 0 &&
    access("/proc/sysrq-trigger", F_OK) == 0)
    return -1;
  if (mkdir("/home/agent", 0755) != 0 || chown("/home/agent", 4242, 4243) != 0) return -1;
  return put("/home/agent/secret", "root's\n", 0600);
}

static inline bool
triggered(void) {
  char c = 0;
  int fd = open("/home/trigger", O_RDONLY | O_CLOEXEC);
  ssize_t n = read(fd, &c, 1);
  close(fd);
  return n == 1 && c == 'o';
}

static inline int
processes(void) {
  int n = 0;
  DIR *d = opendir("/proc");
  for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) n += e->d_name[0] >= '1' && e->d_name[0] <= '9';
  closedir(d);
  return n;
}

static inline void
remove_cgroups(const char *group) {
  char lane[96];
  snprintf(lane, sizeof(lane), "%s/lane", group);
  DIR *d = opendir(lane);
  for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
    if (e->d_name[0] >= '0' && e->d_name[0] <= '9') unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
  if (d != NULL) closedir(d);
  rmdir(lane);
}

/* The first process of the jail: ends with the agent's exit code, or says what the agent has left behind. */
static inline _Noreturn void
guard(pid_t agent) {
  int status = 0, left = 0;
  for (;;) {
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (expect_poweroff && triggered())
      _exit(processes() == 2 ? POWERED_OFF : LEFT_OVER); /* the agent waits for the end */
    if (pid == agent) break;
    usleep(2000);
  }
  for (int i = 0; i < 100 && (left = processes()) > 1; i++, usleep(2000))
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
  remove_cgroups("/sys/fs/cgroup");
  _exit(left > 1 ? LEFT_OVER : WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

/* A cgroup of this test alone becomes the root of what the jail sees, so that tests may run beside each other. */
static inline int
enter_cgroup(char *path, size_t room) {
  char procs[96];
  if (unshare(CLONE_NEWNS) != 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return -1;
  if (mount("cgroup2", "/mnt", "cgroup2", 0, NULL) != 0) return -1;
  snprintf(path, room, "/mnt/al-test-%d", (int) getpid());
  snprintf(procs, sizeof(procs), "%s/cgroup.procs", path);
  return mkdir(path, 0755) == 0 || errno == EEXIST ? put(procs, "0", 0) : -1;
}

static inline int
jail(void) {
  int status = 0;
  char group[64];
  if (enter_cgroup(group, sizeof(group)) != 0 || unshare(CLONE_NEWPID | CLONE_NEWCGROUP) != 0) return -1;
  pid_t first = fork();
  if (first < 0) return -1;
  if (first > 0) {
    waitpid(first, &status, 0);
    (void) put("/mnt/cgroup.procs", "0", 0);
    /* What was killed with the jail may still be dying. */
    for (int i = 0; i < 400 && rmdir(group) != 0 && errno != ENOENT; i++, usleep(5000)) remove_cgroups(group);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : expect_poweroff && WTERMSIG(status) == SIGINT ? POWERED_OFF : 98);
  }
  if (furnish() != 0) _exit(120);
  pid_t agent = fork();
  if (agent > 0) guard(agent);
  return agent;
}

static inline void
start(peer_t *p) {
  static int possible = -1;
  if (possible < 0) {
    pid_t pid = fork();
    int status = -1;
    if (pid == 0) _exit(jail() == 0 ? 0 : 121);
    waitpid(pid, &status, 0);
    possible = geteuid() == 0 && status == 0;
  }
  if (!possible) {
    print_message("skipped: needs root, namespaces and cgroup2\n");
    skip();
  }
  const char *args[] = {"agent", "--secret", peer_path("secret"), NULL};
  peer_start_with(p, args, jail);
  peer_hello(p);
}

static inline void
config(peer_t *p, const char *user, const char *path, uint32_t flags, uint32_t err) {
  al_frame_t f;
  peer_tlvs.len = 0;
  if (user != NULL) tlv_text(&peer_tlvs, AL_TLV_USER, user);
  if (path != NULL) tlv_text(&peer_tlvs, AL_TLV_PATH, path);
  tlv_u32(&peer_tlvs, AL_TLV_FLAGS, flags);
  peer_send(p, 0, AL_F_CONFIG, 0, peer_tlvs.bytes, peer_tlvs.len);
  assert_int_equal(peer_next(p, &f, PEER_WAIT_MS), 1);
  assert_int_equal(f.type, AL_F_CONFIG_ACK);
  if (al_get32(f.payload) != err)
    fail_msg(
      "CONFIG_ACK %u %.*s, expected %u", al_get32(f.payload), (int) f.len - 4, (const char *) f.payload + 4, err);
  assert_int_equal(f.len > 4, err != 0);
}

static inline uint32_t
exec_as(peer_t *p, const char *user, const char *script) {
  peer_tlvs.len = 0;
  tlv_text(&peer_tlvs, AL_TLV_ARG, "sh");
  tlv_text(&peer_tlvs, AL_TLV_ARG, "-c");
  tlv_text(&peer_tlvs, AL_TLV_ARG, script);
  tlv_text(&peer_tlvs, AL_TLV_USER, user);
  tlv_text(&peer_tlvs, AL_TLV_ENV, "HOME=/given");
  tlv_text(&peer_tlvs, AL_TLV_ENV, "USER=given");
  tlv_text(&peer_tlvs, AL_TLV_ENV, "KEPT=yes");
  tlv_text(&peer_tlvs, AL_TLV_CWD, "/");
  return peer_exec_tlvs(p, &peer_tlvs, AL_FRAME_MAX);
}

static inline void
expect_as(peer_t *p, const char *user, const char *script, const char *out) {
  peer_expect(p, exec_as(p, user, script), AL_EXIT_CODE, 0, out);
}

static const char count_sleeps[] = "grep -l '^sleep$' /proc/[0-9]*/comm 2>/dev/null | wc -l";

static inline void
expect_sleeps(peer_t *p, const char *count) {
  for (int i = 0;; i++, usleep(10000)) {
    result_t r;
    peer_result(p, exec_as(p, "agent", count_sleeps), &r);
    if (r.kind != AL_EXIT_CODE || r.out == NULL) fail_msg("counting: kind %u value %u %s", r.kind, r.value, r.text);
    bool same = strcmp(r.out, count) == 0;
    if (!same && i == 200) fail_msg("%s sleeps, expected %s", r.out, count);
    free(r.out);
    if (same) return;
  }
}

static inline void
await_data(peer_t *p) {
  al_frame_t f;
  do assert_int_equal(peer_next(p, &f, PEER_WAIT_MS), 1);
  while (f.type != AL_F_DATA);
}

#endif
