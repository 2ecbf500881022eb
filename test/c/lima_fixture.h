/* SPDX-License-Identifier: Apache-2.0 */
/* A driver on a scripted limactl, in a home of its own; the other programs are scripts too, ssh-keygen is the real
 * one. */
#ifndef LIMA_FIXTURE_H
#define LIMA_FIXTURE_H

#include "al_test.h"
#include "lima_int.h"

#define NAME "agent-lane-0123abcd-0123abcd"

static char dir[64], old_path[4096];
static uv_loop_t loop;
static al_worker_t *io;
static al_home_t home;
static al_lima_t lima;
static al_lane_spec_t spec;

typedef struct answer_s {
  bool done;
  int count, status;
  al_err_t err;
} answer_t;

AL_TEST_FN void
on_answer(void *data, int status, const al_err_t *err) {
  answer_t *a = data;
  a->done = true;
  a->count++;
  a->status = status;
  if (err) a->err = *err;
}

/* Fails unless the answer came once and is `code` with `text` in its message. */
AL_TEST_FN void
assert_answer(const answer_t *a, int code, const char *text) {
  assert_int_equal(a->count, 1);
  if (a->status != code || (text && !strstr(a->err.msg, text))) {
    fail_msg("%s (%d): “%s”, expected %s with “%s”", al_err_name(a->status), a->status, a->err.msg,
      code ? al_err_name(code) : "success", text ? text : "");
  }
  if (code) assert_int_equal(a->err.code, code);
}

AL_TEST_FN const char *
in(const char *fmt, const char *name) {
  static char path[8][512];
  static int turn;
  char *p = path[turn = (turn + 1) % 8];
  int n = snprintf(p, 512, "%s/", dir);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  snprintf(p + n, 512 - (size_t) n, fmt, name);
#pragma GCC diagnostic pop
  return p;
}

AL_TEST_FN bool
exists(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0;
}

AL_TEST_FN char *
slurp(const char *path) {
  char *text = NULL;
  size_t len = 0;
  if (al_plat_read_file(AT_FDCWD, path, 1 << 20, &text, &len) != 0) return al_strdup("");
  return text;
}

AL_TEST_FN void
program(const char *name, const char *body) {
  char text[1024];
  snprintf(text, sizeof text, "#!/bin/sh\n%s\n", body);
  al_test_write(in("bin%s", ""), name, text);
  assert_int_equal(chmod(in("bin/%s", name), 0755), 0);
}

/* What the scripted limactl does: shell functions. */
AL_TEST_FN void
script(const char *text) {
  al_test_write(home.run, "fake.sh", text);
}

/* How many processes of the lane there are. */
AL_TEST_FN size_t
lane_processes(void) {
  static al__lima_procs_t procs;
  assert_int_equal(al__lima_scan(in("h/lima/%s", NAME), NAME, &procs), 0);
  return procs.count;
}

AL_TEST_FN void
make_spec(void) {
  memset(&spec, 0, sizeof spec);
  snprintf(spec.name, sizeof spec.name, "%s", NAME);
  snprintf(spec.dir, sizeof spec.dir, "%s/%s", home.lima, NAME);
  spec.row = 7;
  spec.cpus = 3;
  spec.memory_mib = 1536;
  spec.disk_gib = 20;
  memset(spec.proof, 'a', 64);
  assert_int_equal(al_plat_ident(getpid(), &spec.owner), 0);
  spec.keeper = (al_ident_t) {.pid = 77, .start = 99};
  al_image_t *im = &spec.image;
  snprintf(im->arch, sizeof im->arch, "%s", lima.arch);
  snprintf(im->disk, sizeof im->disk, "%s", in("image/%s", "disk"));
  snprintf(im->disk_format, sizeof im->disk_format, "qcow2");
  snprintf(im->kernel, sizeof im->kernel, "%s", in("image/%s", "kernel"));
  snprintf(im->initrd, sizeof im->initrd, "%s", in("image/%s", "initrd"));
  snprintf(im->cmdline, sizeof im->cmdline, "root=/dev/vda quiet");
  snprintf(im->login_user, sizeof im->login_user, "lane");
  snprintf(im->probe_marker, sizeof im->probe_marker, "agentlane-probe-ok");
  snprintf(im->kernel_sha256, sizeof im->kernel_sha256, "%s", "00");
  im->virtual_size = 8ull << 30;
}

AL_TEST_FN void
open_driver(void) {
  al_lima_opts_t opts = {.limactl = in("bin/%s", "limactl"),
    .allow_root_for_tests = true,
    .warden = in("bin/%s", "warden"),
    .agent_x86_64 = in("bin/%s", "agent-x86_64"),
    .agent_aarch64 = in("bin/%s", "agent-aarch64")};
  al_err_t err = {0};
  if (al_lima_open(&lima, &loop, io, &home, &opts, &err)) fail_msg("%s", err.msg);
  /* vz is macOS's; its differences are tested by name where they matter. */
  snprintf(lima.vm_type, sizeof lima.vm_type, "qemu");
}

AL_TEST_FN int
setup(void **state) {
  char path[4200];
  al_err_t err = {0};
  (void) state;
  umask(022);
  signal(SIGPIPE, SIG_IGN);
  al_test_dir(dir);
  assert_int_equal(mkdir(in("bin%s", ""), 0755), 0);
  assert_int_equal(mkdir(in("image%s", ""), 0755), 0);
  al_test_write(in("image%s", ""), "disk", "the disk");
  al_test_write(in("image%s", ""), "kernel", "the kernel");
  al_test_write(in("image%s", ""), "initrd", "the initrd");
  char *fake = slurp("test/fixtures/fake-limactl");
  assert_true(fake[0] == '#'); /* run from the root of the repository */
  al_test_write(in("bin%s", ""), "limactl", fake);
  al_free(fake);
  assert_int_equal(chmod(in("bin/%s", "limactl"), 0755), 0);
  program("qemu-img",
    "[ \"$1 $6 $8 ${10}\" = \"create $(dirname $0 | sed 's:/bin$::')/image/disk qcow2 20G\" ] && echo overlay >\"$9\"");
  program("qemu-system-x86_64", ":"), program("qemu-system-aarch64", ":"), program("warden", ":");
  program("agent-x86_64", "# x86"), program("agent-aarch64", "# arm");
  snprintf(old_path, sizeof old_path, "%s", getenv("PATH"));
  snprintf(path, sizeof path, "%s:%s", in("bin%s", ""), old_path);
  setenv("PATH", path, 1);
  assert_int_equal(uv_loop_init(&loop), 0);
  assert_int_equal(al_worker_open(&loop, &io), 0);
  if (al_home_open(in("h%s", ""), &home, &err)) fail_msg("%s", err.msg);
  open_driver();
  make_spec();
  return 0;
}

AL_TEST_FN void
worker_closed(void *data) {
  *(bool *) data = true;
}

AL_TEST_FN int
teardown(void **state) {
  bool closed = false;
  (void) state;
  al_worker_close(io, worker_closed, &closed);
  al_test_until(&loop, &closed, 5000);
  al_test_loop_close(&loop);
  setenv("PATH", old_path, 1);
  al_test_dir_remove(dir);
  return 0;
}

/* A directory as the driver builds it, by the driver. */
AL_TEST_FN void
build(void) {
  answer_t a = {0};
  al_lima_build(&lima, &spec, on_answer, &a);
  assert_false(a.done);
  al_test_until(&loop, &a.done, 20000);
  assert_answer(&a, 0, NULL);
}

AL_TEST_FN answer_t
destroy_name(const char *name) {
  answer_t a = {.done = false};
  al_lima_destroy(&lima, name, on_answer, &a);
  assert_false(a.done);
  al_test_until(&loop, &a.done, 30000);
  return a;
}

AL_TEST_FN void
destroyed(void) {
  answer_t a = destroy_name(NAME);
  assert_answer(&a, 0, NULL);
  assert_false(exists(spec.dir));
}

#endif
