/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the transfers: one copy with its outcome, files and shell lines in the scratch directory. */
#ifndef AL_XFER_TEST_H
#define AL_XFER_TEST_H

#include "chan_test.h"
#include "xfer_int.h"
#include <dirent.h>
#include <sys/un.h>

typedef struct outcome_s {
  bool done;
  unsigned told; /* calls of on_progress */
  al_xfer_stats_t stats;
  al_err_t err;
} outcome_t;

static inline void
on_xfer(al_xfer_t *x, void *data, const al_xfer_stats_t *stats, const al_err_t *err) {
  outcome_t *o = data;
  (void) x;
  assert_false(o->done);
  o->done = true;
  o->stats = *stats;
  o->err = *err;
}

/* What is told only grows, and nothing comes after the end. */
static inline void
on_progress(al_xfer_t *x, void *data, const al_xfer_stats_t *stats) {
  outcome_t *o = data;
  (void) x;
  assert_false(o->done);
  assert_true(stats->bytes >= o->stats.bytes && stats->files >= o->stats.files);
  o->told++;
  o->stats = *stats;
}

static const al_xfer_cbs_t xfer_cbs = { .on_progress = on_progress, .on_end = on_xfer };

static inline const char *
path(const rig_t *r, const char *rest) {
  return al_test_path(r->dir, rest);
}

static inline void
read_file(const char *p, char *out, size_t cap) {
  FILE *f = fopen(p, "r");
  assert_non_null(f);
  out[fread(out, 1, cap - 1, f)] = 0;
  fclose(f);
}

__attribute__((format(printf, 2, 3))) static inline void
sh(const rig_t *r, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int status = al_test_system(r->dir, fmt, ap);
  va_end(ap);
  if (status != 0) fail_msg("status %d of: %s", status, fmt);
}

static inline al_xfer_t *
begin_in(rig_t *r, const char *from, const char *to, outcome_t *o) {
  al_xfer_t *x;
  memset(o, 0, sizeof *o);
  assert_int_equal(al_xfer_in(r->chan, from, to, NULL, &xfer_cbs, o, &x, &o->err), 0);
  assert_false(o->done);
  return x;
}

static inline al_xfer_t *
begin_out(rig_t *r, const char *from, const char *to, const char *root, uint64_t max, outcome_t *o) {
  al_xfer_t *x;
  const al_xfer_limits_t limits = { .max_bytes = max };
  memset(o, 0, sizeof *o);
  assert_int_equal(al_xfer_out(r->chan, from, to, root, &limits, &xfer_cbs, o, &x, &o->err), 0);
  assert_false(o->done);
  return x;
}

static inline al_xfer_t *
begin_tree(rig_t *r, const char *from, const char *to, const al_xfer_limits_t *limits, outcome_t *o) {
  al_xfer_t *x;
  memset(o, 0, sizeof *o);
  assert_int_equal(al_xfer_tree(r->chan, from, to, NULL, limits, &xfer_cbs, o, &x, &o->err), 0);
  assert_false(o->done);
  return x;
}

static inline void
copy_tree(rig_t *r, const char *from, const char *to, const al_xfer_limits_t *limits, outcome_t *o) {
  begin_tree(r, from, to, limits, o);
  rig_wait(r, &o->done, 60000);
}

static inline void
copy_in(rig_t *r, const char *from, const char *to, outcome_t *o) {
  begin_in(r, from, to, o);
  rig_wait(r, &o->done, 60000);
}

static inline void
copy_out(rig_t *r, const char *from, const char *to, const char *root, uint64_t max, outcome_t *o) {
  begin_out(r, from, to, root, max, o);
  rig_wait(r, &o->done, 60000);
}

static inline void
assert_ok(const outcome_t *o) {
  if (o->err.code) fail_msg("%s: %s", al_err_name(o->err.code), o->err.msg);
}

static inline void
assert_fails(const outcome_t *o, int code, const char *word) {
  if (o->err.code != code || (word && !strstr(o->err.msg, word)))
    fail_msg(
      "expected %s with \"%s\", got %s: %s", al_err_name(code), word ? word : "", al_err_name(o->err.code), o->err.msg);
}

/* Temporary files of ours in a directory. */
static inline int
leftovers(const char *dir) {
  int n = 0;
  DIR *d = opendir(dir);
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));)
    if (strncmp(e->d_name, ".agent-lane-", 12) == 0) n++;
  closedir(d);
  return n;
}

/* `target` has its old content, and nothing lies beside it. */
static inline void
assert_target_kept(const rig_t *r) {
  assert_int_equal(leftovers(r->dir), 0);
  sh(r, "test \"$(cat target)\" = old");
}

static inline void
wait_for_leftover(rig_t *r, const outcome_t *o) {
  for (int i = 0; i < 500 && !o->done && leftovers(r->dir) == 0; i++) rig_idle(r, 2);
  assert_false(o->done);
  assert_int_equal(leftovers(r->dir), 1);
}

/* Cancels a copy to `target` that is half-way there. */
static inline void
cancel_half_way(rig_t *r, al_xfer_t *x, outcome_t *o) {
  wait_for_leftover(r, o);
  al_xfer_cancel(x, NULL);
  al_xfer_cancel(x, NULL);
  assert_false(o->done);
  rig_wait(r, &o->done, 5000);
  assert_fails(o, AL_EABORTED, NULL);
  assert_target_kept(r);
}

/* A file system of its own below "small"; false = it cannot be had here. */
static inline bool
mounted(const rig_t *r, const char *options) {
  if (geteuid() != 0) return false;
  sh(r, "rm -f nomount; mkdir -p small && mount -t tmpfs -o %s tmpfs small 2>/dev/null || touch nomount", options);
  return access(path(r, "nomount"), F_OK) != 0;
}

typedef struct pair_s {
  int dir; /* of both names, whatever it is called meanwhile */
  const char *a, *b;
} pair_t;

/* Exchanges names all the time. */
static inline pid_t
start_racer(const pair_t *pairs, int n) {
  pid_t racer = al_test_fork();
  for (int i = 0; racer == 0; i++) {
    renameat2(pairs[i % n].dir, pairs[i % n].a, pairs[i % n].dir, pairs[i % n].b, RENAME_EXCHANGE);
    if (i % 1000 == 0 && getppid() == 1) _exit(0);
  }
  return racer;
}

static inline int
open_dir(const char *p) {
  int fd = open(p, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  assert_true(fd >= 0);
  return fd;
}

static inline void
stop_racer(pid_t racer) {
  kill(racer, SIGKILL);
  waitpid(racer, NULL, 0);
}

/* Runs `copy_for_ever` in a process of its own, which closes `ready` when it has begun, and kills it within `most_us`. */
static inline void
kill_within(const char *dir, void (*copy_for_ever)(const char *dir, int ready), useconds_t most_us, unsigned *seed) {
  int status, ready[2];
  char byte;
  assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
  pid_t pid = al_test_fork();
  if (pid == 0) copy_for_ever(dir, ready[1]);
  close(ready[1]);
  assert_int_equal(read(ready[0], &byte, 1), 0);
  close(ready[0]);
  usleep((useconds_t) rand_r(seed) % most_us);
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  assert_true(WIFSIGNALED(status));
}

#endif
