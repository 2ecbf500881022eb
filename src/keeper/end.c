/* SPDX-License-Identifier: Apache-2.0 */
/* How a lane is ended: by the steps of teardown.c, in a process of its own, so that nothing that hangs holds the
 * keeper's watch. */
#include "keeper.h"
#include "mem.h"
#include "teardown.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define POLL_MS 10

static void
pause_ms(int ms) {
  (void) poll(NULL, 0, ms);
}

/* ---- the first blow ---- */

static bool
is_due(const al_keeper_t *k, const char *name) {
  for (size_t i = 0; i < k->count; i++) {
    if (k->lanes[i].state == AL_KEEPER_DUE && strcmp(k->lanes[i].name, name) == 0) return true;
  }
  return false;
}

/* Only the names that stand in the command line are looked up: there may be many lanes and many processes. */
static int
strike(void *data, const al_ident_t *id, const char *cmdline, size_t len) {
  const al_keeper_t *k = data;
  char name[AL_NAME_LEN + 1], dir[AL_KEEPER_HOME_MAX + AL_NAME_LEN + 2];
  for (const char *at = cmdline; al_name_next(&at, cmdline + len, name);) {
    if (!is_due(k, name)) continue;
    snprintf(dir, sizeof dir, "%s/%s", k->lima, name);
    if (al__lima_classify(dir, name, cmdline, len) == AL__PROC_NONE) continue;
    (void) al_plat_ident_kill(id, SIGKILL);
    return 0;
  }
  return 0;
}

void
al_keeper_end_kill(al_keeper_t *k) {
  int rc = al_plat_each_process(strike, k);
  if (rc) al_keeper_log(k, "the processes of this user could not be listed: %s", strerror(-rc));
}

/* ---- a worker ---- */

/* The whole environment, as the driver gives it. */
static void
become_limactl(const al_keeper_t *k, const al_keeper_tools_t *t, const char *name) {
  char path[AL_KEEPER_PATH_MAX / 2 + 8], user[AL_KEEPER_PATH_MAX + 8], lima[AL_KEEPER_HOME_MAX + 16],
    tmp[AL_KEEPER_HOME_MAX + 16], lang[] = "LANG=C.UTF-8";
  char *env[] = {path, user, lima, tmp, lang, NULL};
  const char *const argv[] = {t->limactl, "--tty=false", "--log-format", "json", "delete", "-f", name, NULL};
  snprintf(path, sizeof path, "PATH=%s", t->path_env);
  snprintf(user, sizeof user, "HOME=%s", t->user_home);
  snprintf(lima, sizeof lima, "LIMA_HOME=%s", k->lima);
  snprintf(tmp, sizeof tmp, "TMPDIR=%s", k->run);
  al_keeper_end_with_parent();
  if (setsid() < 0 || chdir(k->run) != 0) _exit(126);
  char **args;
  memcpy(&args, &(const char *const *) {argv}, sizeof args); /* execve changes nothing of it */
  execve(t->limactl, args, env);
  _exit(127);
}

/* limactl with its deadline, in a session of its own; what it came to is only a word for messages. */
static void
run_limactl(const al_keeper_t *k, const al_keeper_tools_t *tools, al_teardown_t *t) {
  int status = 0;
  uint64_t end = al_plat_mono_ms() + AL_TEARDOWN_DELETE_MS;
  pid_t pid = fork();
  if (pid == 0) become_limactl(k, tools, t->name);
  if (pid < 0) {
    snprintf(t->limactl_says, sizeof t->limactl_says, "no process for limactl: %s", strerror(errno));
    return;
  }
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (al_plat_mono_ms() < end) {
      pause_ms(POLL_MS);
      continue;
    }
    (void) kill(pid, SIGKILL); /* it may not have come to its setsid */
    (void) kill(-pid, SIGKILL);
    snprintf(t->limactl_says, sizeof t->limactl_says, "limactl delete did not end in time and was killed");
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  snprintf(t->limactl_says, sizeof t->limactl_says, "limactl delete ended with %s %d",
    WIFEXITED(status) ? "exit code" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static int
sweep(al_teardown_t *t) {
  for (uint64_t end = al_plat_mono_ms() + AL_TEARDOWN_SWEEP_MS;;) {
    int rc = al_teardown_sweep(t);
    if (rc || t->clean || al_plat_mono_ms() >= end) return rc;
    pause_ms(AL_TEARDOWN_SWEEP_PAUSE_MS);
  }
}

static int
prove(al_teardown_t *t) {
  for (uint64_t end = al_plat_mono_ms() + AL_TEARDOWN_PROVE_MS;;) {
    int rc = al_teardown_prove(t);
    if (rc != AL_EDESTROY_FAILED || !t->clean || al_plat_mono_ms() >= end) return rc;
    pause_ms(AL_TEARDOWN_PROVE_PAUSE_MS);
  }
}

/* What cannot be inspected is swept all the same: its VM must end whatever has become of its directory. The sweep comes
 * before the inspection, too: limactl may hang, and of a directory of ours without a process it is not needed. */
static int
end_lane(const al_keeper_t *k, const al_keeper_tools_t *tools, al_teardown_t *t) {
  int rc = sweep(t);
  if (rc) return rc;
  (void) al_teardown_inspect(t);
  if (t->needs_limactl) run_limactl(k, tools, t);
  t->sweep_start = 0;
  rc = sweep(t);
  return rc ? rc : prove(t);
}

static void
work(al_keeper_t *k, const al_keeper_lane_t *lane) {
  al_teardown_t *t = al_malloc(sizeof *t);
  if (t == NULL) {
    al_keeper_log(k, "%s: out of memory", lane->name);
    _exit(1);
  }
  int rc = al_teardown_init(t, k->lima, lane->name);
  if (rc == 0) rc = end_lane(k, &k->tools[lane->tools], t);
  if (rc) al_keeper_log(k, "%s: %s", lane->name, t->err.msg);
  _exit(rc ? 1 : 0);
}

pid_t
al_keeper_end_start(al_keeper_t *k, const al_keeper_lane_t *lane) {
  pid_t pid = fork();
  if (pid < 0) return -errno;
  if (pid > 0) return pid;
  if (k->link >= 0) close(k->link);
  al_keeper_watch_leave();
  work(k, lane);
  _exit(1);
}
