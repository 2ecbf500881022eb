/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares LIMA_HOME once: the key pair and networks.yaml in _config, made without the races that Lima itself has
 * there. */
#include "lima_int.h"

#include "mem.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Theory of operation. Lima makes the key pair and networks.yaml at first use, by check-then-write: two first uses at
 * once can fail. So they are made here: the keys into a private directory below <home>/run, then put in place under a
 * lock of ours, where whoever comes second finds them and throws its own away. `user` is renamed last: where it exists,
 * user.pub does too. */

#define LOCK_MS 10000
#define KEYGEN_MS 10000u

typedef struct prepare_s {
  al__lima_op_t op;
  al_proc_t proc;
  bool need_keys, need_networks;
  char tmp[AL_HOME_MAX + 48];
} prepare_t;

static int
check_entry(int dir, const char *name, al_err_t *err) {
  static const char *const allowed[] = {"user", "user.pub", "networks.yaml"};
  bool known = false;
  for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) known |= strcmp(name, allowed[i]) == 0;
  if (!known)
    return al_err_set(err, AL_ECONFIG_REFUSED,
      "Lima's _config holds “%.100s”, which would change every lane; only user, user.pub and networks.yaml may be there",
      name);
  struct stat st;
  if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? 0 : al_err_set(err, -errno, "_config/%s: %s", name, strerror(errno));
  if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022) != 0) {
    return al_err_set(
      err, AL_ECONFIG_REFUSED, "Lima's _config/%s is not a plain file of ours that only we can write", name);
  }
  return 0;
}

int
al__lima_config_check(const al_home_t *home, al_err_t *err) {
  char path[AL_HOME_MAX + 16];
  snprintf(path, sizeof path, "%s/_config", home->lima);
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return 0;
  if (fd < 0) return al_err_set(err, AL_ECONFIG_REFUSED, "Lima's _config cannot be read: %s", strerror(errno));
  struct stat st;
  if (fstat(fd, &st) != 0 || st.st_uid != geteuid() || (st.st_mode & 022) != 0) {
    close(fd);
    return al_err_set(err, AL_ECONFIG_REFUSED, "Lima's _config is not a directory that only we can write");
  }
  DIR *d = fdopendir(fd);
  if (!d) {
    close(fd);
    return al_err_set(err, -ENOMEM, "out of memory");
  }
  int rc = 0;
  for (struct dirent *e; rc == 0 && (e = readdir(d));) {
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) rc = check_entry(dirfd(d), e->d_name, err);
  }
  closedir(d);
  return rc;
}

static bool
have(const al_home_t *home, const char *name) {
  char path[AL_HOME_MAX + 32];
  struct stat st;
  snprintf(path, sizeof path, "%s/_config/%s", home->lima, name);
  return lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
}

static void
look(prepare_t *q) {
  const al_home_t *home = q->op.l->home;
  q->need_keys = !have(home, "user") || !have(home, "user.pub");
  q->need_networks = !have(home, "networks.yaml");
}

static int
check(al_job_t *job) {
  prepare_t *q = (prepare_t *) job;
  int rc = al__lima_config_check(q->op.l->home, &q->op.err);
  if (rc) return rc;
  look(q);
  if (!q->need_keys) return 0;
  uint8_t r[8];
  rc = al_plat_random(r, sizeof r);
  if (rc) return al_err_set(&q->op.err, rc, "no random bytes");
  snprintf(q->tmp, sizeof q->tmp, "%s/key-%02x%02x%02x%02x%02x%02x%02x%02x", q->op.l->home->run, r[0], r[1], r[2], r[3],
    r[4], r[5], r[6], r[7]);
  rc = al_plat_mkdir(q->tmp, 0700);
  return rc ? al_err_set(&q->op.err, rc, "%s: %s", q->tmp, strerror(-rc)) : 0;
}

static int
lock(const al_home_t *home, al_err_t *err) {
  char path[AL_HOME_MAX + 32];
  snprintf(path, sizeof path, "%s/config.lock", home->run);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return al_err_set(err, -errno, "%s: %s", path, strerror(errno));
  for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; waited += 20) {
    if (errno != EWOULDBLOCK || waited >= LOCK_MS) {
      al_err_set(
        err, errno == EWOULDBLOCK ? -ETIMEDOUT : -errno, "the lock %s could not be taken: %s", path, strerror(errno));
      close(fd);
      return err->code;
    }
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  }
  return fd;
}

/* By their names first, which needs no descriptor: there may be none left. */
static void
drop_keys(prepare_t *q) {
  static const char *const made[] = {"user", "user.pub"};
  for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
    char path[sizeof q->tmp + 16];
    snprintf(path, sizeof path, "%s/%s", q->tmp, made[i]);
    unlink(path);
  }
  if (rmdir(q->tmp) == 0 || errno == ENOENT) return;
  AL_AUTO_FD int run = open(q->op.l->home->run, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (run >= 0) al_plat_remove_tree(run, strrchr(q->tmp, '/') + 1);
}

static int
put(prepare_t *q, const char *name) {
  char from[sizeof q->tmp + 16], to[AL_HOME_MAX + 32];
  snprintf(from, sizeof from, "%s/%s", q->tmp, name);
  snprintf(to, sizeof to, "%s/_config/%s", q->op.l->home->lima, name);
  if (rename(from, to) != 0) return al_err_set(&q->op.err, -errno, "%s: %s", to, strerror(errno));
  return 0;
}

static int
publish(al_job_t *job) {
  prepare_t *q = (prepare_t *) job;
  const al_home_t *home = q->op.l->home;
  char config[AL_HOME_MAX + 16];
  snprintf(config, sizeof config, "%s/_config", home->lima);
  int rc = 0;
  AL_AUTO_FD int locked = lock(home, &q->op.err);
  if (locked < 0) rc = q->op.err.code;
  else if (mkdir(config, 0700) != 0 && errno != EEXIST)
    rc = al_err_set(&q->op.err, -errno, "%s: %s", config, strerror(errno));
  if (rc == 0) {
    look(q);
    if (q->need_keys) {
      rc = put(q, "user.pub");
      if (rc == 0) rc = put(q, "user");
    }
  }
  drop_keys(q);
  return rc;
}

static void
networks_made(al_proc_t *p, int status) {
  prepare_t *q = p->data;
  int rc = al__lima_child_result(p, status, AL_ELIMA_FAILED, "limactl network list", &q->op.err);
  al_proc_deinit(p);
  al__lima_op_end(&q->op, rc);
}

static void
make_networks(prepare_t *q) {
  al_lima_t *l = q->op.l;
  const char *const argv[] = {l->limactl, "--tty=false", "--log-format", "json", "network", "list", NULL};
  memset(&q->proc, 0, sizeof q->proc);
  q->proc.data = q;
  int rc = al__lima_spawn(l, NULL, &q->proc, argv, AL__LIMA_QUICK_MS, 65536, networks_made);
  if (rc) al__lima_op_end(&q->op, rc);
}

static void
published(al_job_t *job, int status) {
  prepare_t *q = (prepare_t *) job;
  if (status == 0 && q->need_networks) make_networks(q);
  else al__lima_op_end(&q->op, status);
}

static int
discard(al_job_t *job) {
  prepare_t *q = (prepare_t *) job;
  drop_keys(q);
  return q->op.err.code;
}

static void
discarded(al_job_t *job, int status) {
  prepare_t *q = (prepare_t *) job;
  al__lima_op_end(&q->op, q->op.err.code ? q->op.err.code : status);
}

static void
no_keys(prepare_t *q, int rc) {
  if (q->op.err.code == 0) al_err_set(&q->op.err, rc, "ssh-keygen could not be run: %s", uv_strerror(rc));
  al_worker_post(q->op.l->io, &q->op.job, discard, discarded);
}

static void
keys_made(al_proc_t *p, int status) {
  prepare_t *q = p->data;
  int rc = al__lima_child_result(p, status, AL_ELIMA_FAILED, "ssh-keygen", &q->op.err);
  al_proc_deinit(p);
  if (rc == 0) al_worker_post(q->op.l->io, &q->op.job, publish, published);
  else no_keys(q, rc);
}

static void
checked(al_job_t *job, int status) {
  prepare_t *q = (prepare_t *) job;
  al_lima_t *l = q->op.l;
  if (status != 0 || !q->need_keys) {
    published(job, status);
    return;
  }
  char key[sizeof q->tmp + 16];
  snprintf(key, sizeof key, "%s/user", q->tmp);
  const char *const argv[] = {l->ssh_keygen, "-t", "ed25519", "-q", "-N", "", "-C", "lima", "-f", key, NULL};
  q->proc.data = q;
  int rc = al__lima_spawn(l, NULL, &q->proc, argv, KEYGEN_MS, 0, keys_made);
  if (rc) no_keys(q, rc);
}

void
al_lima_prepare(al_lima_t *l, al_lima_cb cb, void *data) {
  prepare_t *q = al__lima_op_new(l, sizeof *q, cb, data);
  if (q) al_worker_post(l->io, &q->op.job, check, checked);
}
