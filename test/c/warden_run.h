/* SPDX-License-Identifier: Apache-2.0 */
/* Running the built warden: a script in QEMU's place, an owner, an instance directory, and what Lima passes. */
#ifndef AL_WARDEN_RUN_H
#define AL_WARDEN_RUN_H

#include "al_test.h"
#include <poll.h>

#define NAME "agent-lane-0123abcd-0123abcd"
#define ARGS_MAX 128

static char dir[64], inst[192], warden[1024], qemu[128], logfile[208], owner_word[64], keeper_word[64];
static pid_t owner, keeper;

/* ---- fixtures ---- */

AL_TEST_FN const char *
in(const char *name) {
  return al_test_path(dir, name);
}

AL_TEST_FN void
write_qemu(const char *body) {
  char text[2048];
  snprintf(text, sizeof text, "#!/bin/sh\nprintf '%%s\\n' \"$@\" >%s/seen.tmp; mv %s/seen.tmp %s/seen\n%s\n", dir, dir,
    dir, body);
  al_test_write(dir, "bin/qemu", text);
  assert_int_equal(chmod(qemu, 0755), 0);
}

AL_TEST_FN uint64_t
start_of(pid_t pid) {
  al_ident_t id;
  assert_int_equal(al_plat_ident(pid, &id), 0);
  return id.start;
}

/* Both that are gone by now; `off`: what is wrong with the owner's start. */
AL_TEST_FN void
new_owner(unsigned off) {
  if (kill(owner, 0) != 0) owner = al_test_sleeper();
  if (kill(keeper, 0) != 0) keeper = al_test_sleeper();
  snprintf(owner_word, sizeof owner_word, "%ld:%llu", (long) owner, (unsigned long long) start_of(owner) + off);
  snprintf(keeper_word, sizeof keeper_word, "%ld:%llu", (long) keeper, (unsigned long long) start_of(keeper));
}

AL_TEST_FN int
setup(void **state) {
  (void) state;
  umask(022);
  al_test_dir(dir);
  snprintf(inst, sizeof inst, "%s/%s", dir, NAME);
  snprintf(qemu, sizeof qemu, "%s/bin/qemu", dir);
  snprintf(logfile, sizeof logfile, "%s/warden.log", inst);
  assert_int_equal(mkdir(in("bin"), 0755) | mkdir(inst, 0700), 0);
  static const char *const files[] = {"disk", "cidata.iso", "kernel", "initrd"};
  for (size_t i = 0; i < 4; i++) al_test_write(inst, files[i], "x");
  write_qemu("exec sleep 60");
  owner = al_test_sleeper();
  keeper = al_test_sleeper();
  new_owner(0);
  return 0;
}

AL_TEST_FN int
teardown(void **state) {
  (void) state;
  al_test_kill(owner);
  al_test_kill(keeper);
  al_test_dir_remove(dir);
  return 0;
}

typedef struct line_s {
  const char *argv[ARGS_MAX];
  int argc, first; /* first: the first of Lima's words */
  char text[ARGS_MAX][400];
} line_t;

AL_TEST_FN void
add(line_t *l, const char *word) {
  char *out = l->text[l->argc];
  const char *at = strstr(word, "DIR");
  if (at) snprintf(out, sizeof l->text[0], "%.*s%s%s", (int) (at - word), word, inst, at + 3);
  else snprintf(out, sizeof l->text[0], "%s", word);
  at = strstr(out, "DIR"); /* at most two in one word */
  if (at) {
    char rest[400];
    snprintf(rest, sizeof rest, "%s", at + 3);
    snprintf(out + (at - out), sizeof l->text[0] - (size_t) (at - out), "%s%s", inst, rest);
  }
  l->argv[l->argc] = out;
  l->argv[++l->argc] = NULL;
}

AL_TEST_FN void
policy_for(line_t *l, const char *network, const char *accel, const char *channel) {
  const char *const words[] = {warden, "--agent-lane-policy", "1", "--qemu", qemu, "--network", network, "--accel",
    accel, "--channel", channel, "--owner", owner_word, "--keeper", keeper_word, "--log", logfile, "--"};
  memset(l, 0, sizeof *l);
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) add(l, words[i]);
  l->first = l->argc;
}

AL_TEST_FN void
policy(line_t *l, const char *network, const char *accel) {
  policy_for(l, network, accel, "shell");
}

/* What Lima 2.2.0 passed on Linux with KVM, word for word. */
static const char *const lima[] = {"-m", "1024", "-cpu", "host", "-machine", "q35,accel=kvm", "-smp",
  "2,sockets=1,cores=2,threads=1", "-device", "qemu-xhci,id=usb-bus", "-drive",
  "file=DIR/disk,if=none,discard=on,id=boot-disk", "-device", "virtio-blk-pci,drive=boot-disk,bootindex=1", "-boot",
  "order=c,splash-time=0,menu=on", "-drive", "id=cdrom0,if=none,format=raw,readonly=on,file=DIR/cidata.iso", "-device",
  "virtio-scsi,id=scsi0", "-device", "scsi-cd,bus=scsi0.0,drive=cdrom0", "-kernel", "DIR/kernel", "-append",
  "root=/dev/vda rw console=ttyS0 quiet", "-initrd", "DIR/initrd", "-netdev",
  "user,id=net0,net=192.168.5.0/24,dhcpstart=192.168.5.15,hostfwd=tcp:127.0.0.1:40123-:22", "-device",
  "virtio-net-pci,netdev=net0,mac=52:55:55:df:ed:e6", "-device", "virtio-rng-pci", "-audiodev", "none,id=snd0",
  "-display", "none", "-vga", "none", "-parallel", "none", "-chardev",
  "socket,id=char-serial,path=DIR/serial.sock,server=on,wait=off,logfile=DIR/serial.log", "-serial",
  "chardev:char-serial", "-chardev",
  "socket,id=char-serial-virtio,path=DIR/serialv.sock,server=on,wait=off,logfile=DIR/serialv.log", "-device",
  "virtio-serial-pci,id=virtio-serial0,max_ports=1", "-device", "virtconsole,chardev=char-serial-virtio,id=console0",
  "-chardev", "socket,id=char-qmp,path=DIR/qmp.sock,server=on,wait=off", "-qmp", "chardev:char-qmp", "-name",
  "lima-" NAME, "-pidfile", "DIR/qemu.pid"};
#define LIMA (sizeof lima / sizeof lima[0])

AL_TEST_FN void
start_line(line_t *l, const char *network, const char *accel) {
  policy(l, network, accel);
  for (size_t i = 0; i < LIMA; i++) add(l, lima[i]);
}

AL_TEST_FN void
port_line(line_t *l) {
  policy_for(l, "none", "tcg", "port");
  for (size_t i = 0; i < LIMA; i++) add(l, lima[i]);
}

/* ---- running ---- */

typedef struct run_s {
  pid_t pid;
  int fd; /* stdout and stderr */
} run_t;

AL_TEST_FN run_t
start(const line_t *l) {
  run_t r;
  int fds[2];
  assert_int_equal(pipe(fds), 0);
  r.pid = fork();
  if (r.pid == 0) {
    dup2(fds[1], 1), dup2(fds[1], 2);
    fcntl(fds[0], F_SETFD, FD_CLOEXEC), close(fds[1]);
    execv(l->argv[0], (char *const *) (uintptr_t) l->argv);
    _exit(99);
  }
  close(fds[1]);
  r.fd = fds[0];
  return r;
}

/* Waits for the end; the exit status, 128 + signal, or a failed test after 10 s. */
AL_TEST_FN int
finish(run_t *r, char *text, size_t cap) {
  size_t n = 0;
  int status = -1;
  for (uint64_t late = al_plat_mono_ms() + 10000;;) {
    struct pollfd p = {r->fd, POLLIN, 0};
    if (poll(&p, 1, 5) == 1) {
      ssize_t got = read(r->fd, text + n, cap - 1 - n);
      if (got > 0) n += (size_t) got;
    }
    if (waitpid(r->pid, &status, WNOHANG) == r->pid) break;
    if (al_plat_mono_ms() > late) {
      al_test_kill(r->pid);
      fail_msg("the warden did not end: %.*s", (int) n, text);
    }
  }
  ssize_t got;
  struct pollfd p = {r->fd, POLLIN, 0};
  while (poll(&p, 1, 0) == 1 && (got = read(r->fd, text + n, cap - 1 - n)) > 0) n += (size_t) got;
  text[n] = 0;
  close(r->fd);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

AL_TEST_FN int
run(const line_t *l, char *text, size_t cap) {
  run_t r = start(l);
  return finish(&r, text, cap);
}

static char *
slurp(const char *path) {
  char *text = NULL;
  if (al_plat_read_file(AT_FDCWD, path, 1 << 20, &text, NULL)) return NULL;
  return text;
}

AL_TEST_FN void
until_there(const char *name) {
  for (int i = 0; i < 2500 && access(in(name), F_OK); i++) usleep(2000);
  assert_int_equal(access(in(name), F_OK), 0);
}

AL_TEST_FN void
until_seen(void) {
  until_there("seen");
}

AL_TEST_FN pid_t
qemu_pid(void) {
  char *log = NULL, *at = NULL;
  for (int i = 0; i < 500 && !(at && strchr(at, '\n')); i++) {
    al_free(log);
    log = slurp(logfile);
    at = log ? strstr(log, "\"qemu\":") : NULL;
    usleep(2000);
  }
  assert_non_null(at);
  pid_t pid = (pid_t) strtol(at + 7, NULL, 10);
  al_free(log);
  return pid;
}

AL_TEST_FN void
until_gone(pid_t pid) {
  al_ident_t id;
  for (int i = 0; i < 2500; i++) {
    if (al_plat_ident(pid, &id) == -ESRCH) return;
    usleep(2000);
  }
  kill(pid, SIGKILL);
  fail_msg("process %ld is still there", (long) pid);
}

AL_TEST_FN void
expect_no_qemu(const line_t *l, const char *how, const char *word, const char *what) {
  char text[2048];
  unlink(in("seen"));
  int rc = run(l, text, sizeof text);
  if (rc != 1 || strncmp(text, how, strlen(how)) || !strstr(text, word))
    fail_msg("%s: status %d, %s (not \"%s\")", what, rc, text, word);
  if (access(in("seen"), F_OK) == 0) fail_msg("%s: QEMU was started", what);
}

AL_TEST_FN void
expect_refused(const line_t *l, const char *word, const char *what) {
  expect_no_qemu(l, "warden: refused: ", word, what);
}

/* The one beside this program. */
AL_TEST_FN bool
find_warden(void) {
  char exe[900];
  if (al_plat_exe_path(exe, sizeof exe)) return false;
  *strrchr(exe, '/') = 0;
  snprintf(warden, sizeof warden, "%s/warden", exe);
  if (access(warden, X_OK) == 0) return true;
  fprintf(stderr, "%s is not built\n", warden);
  return false;
}

#endif
