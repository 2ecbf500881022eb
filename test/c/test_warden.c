/* SPDX-License-Identifier: Apache-2.0 */
/* The built warden, run as a program with a script in QEMU's place: what it lets through, what it refuses, when it kills. */
#include "al_test.h"
#include <poll.h>

#define NAME "agent-lane-0123abcd-0123abcd"
#define ARGS_MAX 128

static char dir[64], inst[128], warden[1024], qemu[128], logfile[160], owner_word[64];
static pid_t owner;

/* ---- fixtures ---- */

static const char *
in(const char *name) {
  static char path[8][512];
  static int turn;
  char *p = path[turn = (turn + 1) % 8];
  snprintf(p, 512, "%s/%s", dir, name);
  return p;
}

static void
write_qemu(const char *body) {
  char text[2048];
  snprintf(text, sizeof text, "#!/bin/sh\nprintf '%%s\\n' \"$@\" >%s/seen.tmp; mv %s/seen.tmp %s/seen\n%s\n", dir, dir, dir, body);
  al_test_write(dir, "bin/qemu", text);
  assert_int_equal(chmod(qemu, 0755), 0);
}

static uint64_t
start_of(pid_t pid) {
  al_ident_t id;
  assert_int_equal(al_plat_ident(pid, &id), 0);
  return id.start;
}

static pid_t
sleeper(void) {
  pid_t pid = fork();
  if (pid == 0) {
    for (;;) pause();
  }
  assert_true(pid > 0);
  return pid;
}

static void
end(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
}

static int
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
  owner = sleeper();
  snprintf(owner_word, sizeof owner_word, "%ld:%llu", (long) owner, (unsigned long long) start_of(owner));
  return 0;
}

static int
teardown(void **state) {
  (void) state;
  end(owner);
  al_test_dir_remove(dir);
  return 0;
}

typedef struct line_s {
  const char *argv[ARGS_MAX];
  int argc, first; /* first: the first of Lima's words */
  char text[ARGS_MAX][256];
} line_t;

static void
add(line_t *l, const char *word) {
  char *out = l->text[l->argc];
  const char *at = strstr(word, "DIR");
  if (at) snprintf(out, 256, "%.*s%s%s", (int) (at - word), word, inst, at + 3);
  else snprintf(out, 256, "%s", word);
  at = strstr(out, "DIR"); /* at most two in one word */
  if (at) {
    char rest[256];
    snprintf(rest, sizeof rest, "%s", at + 3);
    snprintf(out + (at - out), 256 - (size_t) (at - out), "%s%s", inst, rest);
  }
  l->argv[l->argc] = out;
  l->argv[++l->argc] = NULL;
}

static void
policy(line_t *l, const char *network, const char *accel) {
  const char *const words[] = {warden, "--agent-lane-policy", "1", "--qemu", qemu, "--network", network, "--accel", accel, "--owner", owner_word, "--log", logfile, "--"};
  memset(l, 0, sizeof *l);
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) add(l, words[i]);
  l->first = l->argc;
}

/* What Lima 2.2.0 passed on Linux with KVM, word for word. */
static const char *const lima[] = {"-m", "1024", "-cpu", "host", "-machine", "q35,accel=kvm", "-smp", "2,sockets=1,cores=2,threads=1", "-device", "qemu-xhci,id=usb-bus",
  "-drive", "file=DIR/disk,if=none,discard=on,id=boot-disk", "-device", "virtio-blk-pci,drive=boot-disk,bootindex=1", "-boot", "order=c,splash-time=0,menu=on",
  "-drive", "id=cdrom0,if=none,format=raw,readonly=on,file=DIR/cidata.iso", "-device", "virtio-scsi,id=scsi0", "-device", "scsi-cd,bus=scsi0.0,drive=cdrom0",
  "-kernel", "DIR/kernel", "-append", "root=/dev/vda rw console=ttyS0 quiet", "-initrd", "DIR/initrd",
  "-netdev", "user,id=net0,net=192.168.5.0/24,dhcpstart=192.168.5.15,hostfwd=tcp:127.0.0.1:40123-:22", "-device", "virtio-net-pci,netdev=net0,mac=52:55:55:df:ed:e6",
  "-device", "virtio-rng-pci", "-audiodev", "none,id=snd0", "-display", "none", "-vga", "none", "-parallel", "none",
  "-chardev", "socket,id=char-serial,path=DIR/serial.sock,server=on,wait=off,logfile=DIR/serial.log", "-serial", "chardev:char-serial",
  "-chardev", "socket,id=char-serial-virtio,path=DIR/serialv.sock,server=on,wait=off,logfile=DIR/serialv.log", "-device", "virtio-serial-pci,id=virtio-serial0,max_ports=1",
  "-device", "virtconsole,chardev=char-serial-virtio,id=console0", "-chardev", "socket,id=char-qmp,path=DIR/qmp.sock,server=on,wait=off", "-qmp", "chardev:char-qmp",
  "-name", "lima-" NAME, "-pidfile", "DIR/qemu.pid"};
#define LIMA (sizeof lima / sizeof lima[0])

static void
start_line(line_t *l, const char *network, const char *accel) {
  policy(l, network, accel);
  for (size_t i = 0; i < LIMA; i++) add(l, lima[i]);
}

/* ---- running ---- */

typedef struct run_s {
  pid_t pid;
  int fd; /* stdout and stderr */
} run_t;

static run_t
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
static int
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
      end(r->pid);
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

static int
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

static void
until_seen(void) {
  for (int i = 0; i < 2500 && access(in("seen"), F_OK); i++) usleep(2000);
  assert_int_equal(access(in("seen"), F_OK), 0);
}

static pid_t
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

static void
until_gone(pid_t pid) {
  al_ident_t id;
  for (int i = 0; i < 2500; i++) {
    if (al_plat_ident(pid, &id) == -ESRCH) return;
    usleep(2000);
  }
  kill(pid, SIGKILL);
  fail_msg("process %ld is still there", (long) pid);
}

static void
expect_refused(const line_t *l, const char *word, const char *what) {
  char text[2048];
  unlink(in("seen"));
  int rc = run(l, text, sizeof text);
  if (rc != 1 || strncmp(text, "warden: refused: ", 17) || !strstr(text, word)) fail_msg("%s: status %d, %s (not \"%s\")", what, rc, text, word);
  if (access(in("seen"), F_OK) == 0) fail_msg("%s: QEMU was started", what);
}

/* ---- tests ---- */

static void
test_warden_questions_pass(void **state) {
  static const char *const good[][5] = {{"--version"}, {"-M", "none", "-accel", "help"}, {"-M", "none", "-netdev", "help"}, {"-machine", "help"}, {"-cpu", "help", "-machine", "q35"}};
  static const char *const bad[][6] = {{"-version"}, {"--help"}, {"-M", "none"}, {"-M", "none", "-accel", "help", "-nographic"}, {"--version", "-nic", "user"}, {"-M", "q35", "-accel", "help"},
    {"-cpu", "help", "-machine", "none"}, {"-netdev", "help"}, {"disk.qcow2"}};
  line_t l;
  char text[2048];
  (void) state;
  write_qemu("echo asked; exit 7");
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    policy(&l, "none", "tcg");
    for (int k = 0; k < 5 && good[i][k]; k++) add(&l, good[i][k]);
    assert_int_equal(run(&l, text, sizeof text), 7);
    assert_string_equal(text, "asked\n");
  }
  assert_int_equal(access(logfile, F_OK), -1); /* the log is for starts */
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    policy(&l, "none", "tcg");
    for (int k = 0; k < 6 && bad[i][k]; k++) add(&l, bad[i][k]);
    expect_refused(&l, "", bad[i][0]);
  }
  policy(&l, "none", "tcg");
  expect_refused(&l, "no -pidfile", "nothing");
}

/* Lima asks its questions without our words. */
static void
test_warden_questions_without_policy_go_to_path(void **state) {
  line_t l = {0};
  char text[2048], name[64];
  char *kept = strdup(getenv("PATH"));
  (void) state;
  write_qemu("echo asked; exit 7");
  snprintf(name, sizeof name, "bin/qemu-system-%s", sizeof(void *) == 8 && access("/lib/ld-linux-aarch64.so.1", F_OK) == 0 ? "aarch64" : "x86_64");
  assert_int_equal(rename(qemu, in(name)), 0);
  add(&l, warden), add(&l, "--version");
  setenv("PATH", in("bin"), 1);
  assert_int_equal(run(&l, text, sizeof text), 7);
  assert_string_equal(text, "asked\n");
  chmod(in(name), 0777);
  expect_refused(&l, "no QEMU in PATH", "writable by all");
  setenv("PATH", "bin:/nowhere", 1);
  expect_refused(&l, "no QEMU in PATH", "relative PATH");
  setenv("PATH", kept, 1);
  free(kept);
}

static void
test_warden_policy_must_be_whole(void **state) {
  static const struct {
    int at; /* index of the word in the line that is replaced; the value after it when odd */
    const char *to, *word;
  } bad[] = {{2, "2", "policy version"}, {2, "", "policy version"}, {1, "--agent-lane", "unknown policy word"}, {4, "qemu", "absolute"}, {4, "/nowhere/qemu", "not a program"},
    {4, "/etc/passwd", "cannot be run"}, {4, "/tmp", "not a program"}, {6, "closed", "--network"}, {6, "None", "--network"}, {8, "xen", "--accel"}, {10, "1:1", "--owner"}, {10, "77", "--owner"},
    {10, "77:", "--owner"}, {10, "77:1x", "--owner"}, {10, "-5:1", "--owner"}, {10, " 77:1", "--owner"}, {12, "warden.log", "--log"}, {5, "--qemu", "given twice"}, {13, "-", "unknown policy word"}};
  line_t l;
  (void) state;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    start_line(&l, "none", "kvm");
    l.argv[bad[i].at] = bad[i].to;
    expect_refused(&l, bad[i].word, bad[i].to);
  }
  for (int gone = 1; gone < 13; gone += 2) { /* each word is needed */
    start_line(&l, "none", "kvm");
    memmove(&l.argv[gone], &l.argv[gone + 2], sizeof l.argv[0] * (size_t) (l.argc - gone - 1));
    expect_refused(&l, "missing policy word", l.text[gone]);
  }
  memset(&l, 0, sizeof l);
  add(&l, warden);
  expect_refused(&l, "no \"--\"", "no words");
  for (size_t i = 0; i < LIMA; i++) add(&l, lima[i]);
  expect_refused(&l, "unknown policy word", "Lima's words alone");
  start_line(&l, "none", "kvm");
  chmod(qemu, 0777);
  expect_refused(&l, "changed by others", "a QEMU that all may write");
}

/* What QEMU got, one argument a line. */
static char *
started(const char *network, const char *accel, int drop_to_tcg) {
  line_t l;
  char text[2048];
  start_line(&l, network, accel);
  if (drop_to_tcg) { /* what Lima passes where there is no /dev/kvm */
    l.argv[l.first + 5] = "q35,vmport=off";
    static const char *const more[] = {"-accel", "tcg,thread=multi,tb-size=512", "-global", "ICH9-LPC.disable_s3=1", "-global", "ICH9-LPC.disable_s4=1"};
    for (size_t i = 0; i < 6; i++) add(&l, more[i]);
  }
  unlink(in("seen"));
  write_qemu("exit 5");
  int rc = run(&l, text, sizeof text);
  if (rc != 5) fail_msg("status %d: %s", rc, text);
  char *seen = slurp(in("seen"));
  assert_non_null(seen);
  return seen;
}

static void
expect_line(const char *seen, const char *line, int times) {
  int n = 0;
  size_t len = strlen(line);
  for (const char *p = seen; (p = strstr(p, line)); p += len) n += (p == seen || p[-1] == '\n') && p[len] == '\n';
  if (n != times) fail_msg("%d times %s in\n%s", n, line, seen);
}

static void
test_warden_adds_the_policy(void **state) {
  const char *restricted = "user,id=net0,net=192.168.5.0/24,dhcpstart=192.168.5.15,hostfwd=tcp:127.0.0.1:40123-:22,restrict=on,ipv6=off";
  const char *open_net = "user,id=net0,net=192.168.5.0/24,dhcpstart=192.168.5.15,hostfwd=tcp:127.0.0.1:40123-:22";
  char disk[256];
  (void) state;
  snprintf(disk, sizeof disk, "file=%s/disk,if=none,discard=on,id=boot-disk,format=qcow2", inst);
  for (int i = 0; i < 3; i++) {
    char *seen = started(i == 1 ? "open" : "none", i == 1 ? "kvm" : "tcg", i == 2);
    expect_line(seen, restricted, i != 1);
    expect_line(seen, open_net, i == 1);
    expect_line(seen, i == 1 ? "q35,accel=kvm" : "q35,vmport=off", 1);
    expect_line(seen, "tcg,thread=multi,tb-size=512", i != 1);
    expect_line(seen, i == 1 ? "host" : "max", 1);
    expect_line(seen, disk, 1);
    expect_line(seen, "-no-user-config\n-nodefaults", 1);
    if (access("/proc/self", F_OK) == 0) expect_line(seen, "-sandbox\non,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny", 1);
    assert_null(strstr(seen, "serial.log"));
    al_free(seen);
  }
}

static void
test_warden_refuses_what_a_lane_must_not_have(void **state) {
  static const struct {
    const char *option, *value, *word;
  } more[] = { /* one more pair */
    {"-netdev", "user,id=net0,net=192.168.5.0/24,dhcpstart=192.168.5.15,hostfwd=tcp:127.0.0.1:40124-:22", "twice"}, {"-netdev", "user,id=net1", "-netdev"}, {"-netdev", "tap,id=net1", "-netdev"},
    {"-nic", "user", "no option -nic"}, {"-net", "user", "no option -net"}, {"-virtfs", "local,path=/,mount_tag=x,security_model=none", "no option -virtfs"}, {"-fsdev", "local,id=f,path=/", "no option -fsdev"},
    {"-monitor", "stdio", "no option"}, {"-incoming", "exec:id", "no option"}, {"-plugin", "/tmp/x.so", "no option"}, {"-chardev", "file,id=x,path=/tmp/x", "-chardev"}, {"-chardev", "socket,id=x,path=DIR/x.sock", "-chardev"},
    {"-chardev", "socket,id=char-qmp,path=DIR/qmp.sock,server=on,wait=off", "twice"}, {"-device", "usb-host,hostbus=1", "-device"}, {"-device", "vfio-pci,host=01:00.0", "-device"}, {"-device", "vhost-user-fs-pci", "-device"},
    {"-device", "virtio-rng-pci", "twice"}, {"-drive", "file=/etc/shadow,if=virtio", "-drive"}, {"-drive", "file=DIR/other,if=virtio,discard=on", "-drive"}, {"-drive", "if=pflash,format=raw,readonly=on,file=/etc/shadow", "-drive"},
    {"-drive", "if=pflash,format=raw,file=DIR/qemu-efi-code.fd", "-drive"}, {"-sandbox", "off", "no option"}, {"-readconfig", "/tmp/x", "no option"}, {"-daemonize", "", "no option"}, {"-runas", "root", "no option"}, {"-chroot", "/", "no option"},
    {"-object", "memory-backend-file,id=m,size=1,mem-path=/tmp/x", "no option"}, {"-blockdev", "driver=file,filename=/etc/shadow", "no option"}, {"-hda", "/etc/shadow", "no option"}, {"-vnc", ":0", "no option"}, {"-display", "none", "twice"},
    {"-qmp", "tcp:0.0.0.0:1,server", "-qmp"}, {"-serial", "chardev:char-serial", "twice"}, {"-serial", "pty", "-serial"}, {"-gdb", "tcp::1", "no option"}, {"-bios", "/tmp/x", "no option"}, {"-smbios", "type=0,file=/etc/shadow", "no option"},
    {"-fw_cfg", "name=opt/x,file=/etc/shadow", "no option"}, {"-global", "driver=x,property=y,value=z", "-global"}, {"-pidfile", "/tmp/qemu.pid", ""}, {"-m", "2048", "twice"}, {"-accel", "kvm", "-accel"}, {"-append", "init=/bin/sh", "twice"},
    {"--netdev", "user,id=net1", "no option --netdev"}, {"-usbdevice", "disk:/etc/shadow", "no option"}, {"disk.img", "", "no option disk.img"}};
  line_t l;
  (void) state;
  for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
    start_line(&l, "none", "kvm");
    add(&l, more[i].option), add(&l, more[i].value);
    expect_refused(&l, more[i].word, more[i].value[0] ? more[i].value : more[i].option);
    char *log = slurp(logfile);
    if (!log || strncmp(log, "warden: refused: ", 17)) fail_msg("the log says %s", log ? log : "nothing");
    al_free(log);
  }
  start_line(&l, "none", "kvm");
  add(&l, "-snapshot");
  expect_refused(&l, "without a value", "an odd word at the end");
}

static void
test_warden_refuses_other_values(void **state) {
  static const struct {
    const char *from, *to; /* a part of one word */
  } change[] = {{"hostfwd=tcp:127.0.0.1:", "hostfwd=tcp::"}, {"127.0.0.1:40123", "0.0.0.0:40123"}, {"40123-:22", "40123-:80"}, {"40123-:22", "40123-192.168.5.3:22"}, {"40123", "0"}, {"40123", "65536"}, {"40123", "040123"},
    {"hostfwd=tcp", "hostfwd=udp"}, {"-:22", "-:22,restrict=off"}, {"-:22", "-:22,restrict=on"}, {"-:22", "-:22,smb=/"}, {"-:22", "-:22,guestfwd=tcp:1.2.3.4:5-cmd:id"}, {"-:22", "-:22,hostfwd=tcp:127.0.0.1:40125-:23"},
    {"-:22", "-:22,tftp=/"}, {"-:22", "-:22,hostname=x"}, {"-:22", "-:22,"}, {"user,id=net0", "tap,id=net0"}, {"user,id=net0", "user,id=net1"}, {"192.168.5.0/24", "10.0.0.0/8"}, {"user,id=net0,net", "user,id=net0,,net"},
    {"DIR/disk,", "/etc/shadow,"}, {"DIR/disk,", "DIR/../disk,"}, {"DIR/disk,", "DIR/disk2,"}, {"discard=on", "discard=on,snapshot=on"}, {"discard=on", "discard=on,format=raw"}, {"if=none,discard", "if=virtio,discard"},
    {"file=DIR/cidata.iso", "file=/etc/passwd"}, {"readonly=on,file", "readonly=off,file"}, {"DIR/kernel", "/boot/vmlinuz"}, {"DIR/initrd", "DIR/../initrd"}, {"quiet", "qui\net"}, {"quiet", "qui\x80t"},
    {"q35,accel=kvm", "q35,accel=tcg"}, {"q35,accel=kvm", "pc,accel=kvm"}, {"q35,accel=kvm", "q35,accel=kvm,memory-encryption=x"}, {"q35,accel=kvm", "q35,accel=kvm:tcg"}, {"cores=2", "cores=3"}, {"1024", "1024M"}, {"1024", "1024,maxmem=2G"},
    {"logfile=DIR/serial.log", "logfile=/tmp/x"}, {"logfile=DIR/serial.log", "logfile=DIR/lima.yaml"}, {"DIR/serial.sock", "/tmp/x.sock"}, {"DIR/qmp.sock", "/tmp/x.sock"}, {"server=on,wait=off", "server=on,wait=on"},
    {"lima-" NAME, "lima-other"}, {"DIR/qemu.pid", "DIR/other.pid"}, {"DIR/qemu.pid", "/qemu.pid"}, {"52:55:55", "52:55:5"}, {"52:55:55", "52:55:5g"}, {"-display", "-nographic"}, {"mac=52:55:55:df:ed:e6", "mac=52:55:55:df:ed:e6,romfile=/etc/shadow"},
    {"id=snd0", "id=snd0,out.path=/tmp/x"}, {"host", "host,+x"}, {"virtio-blk-pci", "virtio-blk-pci,romfile=/x"}};
  line_t l;
  (void) state;
  for (size_t i = 0; i < sizeof change / sizeof change[0]; i++) {
    bool done = false;
    policy(&l, "none", "kvm");
    for (size_t k = 0; k < LIMA; k++) {
      char word[512];
      const char *at = done ? NULL : strstr(lima[k], change[i].from);
      if (at) snprintf(word, sizeof word, "%.*s%s%s", (int) (at - lima[k]), lima[k], change[i].to, at + strlen(change[i].from));
      add(&l, at ? word : lima[k]);
      done = done || at;
    }
    assert_true(done);
    expect_refused(&l, "", change[i].to);
  }
  for (size_t gone = 0; gone < LIMA; gone += 2) { /* what a lane cannot be without */
    static const char *const needed[] = {"-netdev", "-display", "-vga", "-qmp", "-name", "-pidfile", "-serial", "-m", "-machine", "-cpu", "-smp"};
    for (size_t n = 0; n < sizeof needed / sizeof needed[0]; n++) {
      if (strcmp(needed[n], lima[gone])) continue;
      policy(&l, "none", "kvm");
      for (size_t k = 0; k < LIMA; k++) {
        if (k != gone && k != gone + 1) add(&l, lima[k]);
      }
      expect_refused(&l, strcmp(needed[n], "-pidfile") ? "a lane needs" : "no -pidfile", needed[n]);
    }
  }
}

static void
test_warden_order_of_items_is_free(void **state) {
  line_t l;
  char text[2048];
  (void) state;
  write_qemu("exit 5");
  policy(&l, "none", "kvm");
  for (size_t k = 0; k < LIMA; k++) {
    add(&l, strncmp(lima[k], "user,id", 7) ? lima[k] : "user,hostfwd=tcp:127.0.0.1:40123-:22,dhcpstart=192.168.5.15,net=192.168.5.0/24,id=net0");
  }
  assert_int_equal(run(&l, text, sizeof text), 5);
  char *seen = slurp(in("seen"));
  assert_non_null(strstr(seen, "id=net0,restrict=on,ipv6=off\n"));
  al_free(seen);
}

static void
test_warden_files_must_be_ours(void **state) {
  line_t l;
  (void) state;
  start_line(&l, "none", "kvm");
  static const char *const files[] = {"disk", "cidata.iso", "kernel", "initrd"};
  for (size_t i = 0; i < 4; i++) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", inst, files[i]);
    unlink(path);
    expect_refused(&l, "not a plain file", files[i]);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    expect_refused(&l, "not a plain file", files[i]);
    unlink(path);
    al_test_write(inst, files[i], "x");
    chmod(path, 0666);
    expect_refused(&l, "not ours alone", files[i]);
    chmod(path, 0600);
  }
  chmod(inst, 0777);
  expect_refused(&l, "not ours alone", "directory");
  chmod(inst, 0700);
  unlink(logfile);
  assert_int_equal(symlink("/tmp/al-test-warden-log", logfile), 0);
  expect_refused(&l, "the log", "a link in the log's place");
  unlink(logfile);
}

static void
test_warden_owner_gone_kills_qemu(void **state) {
  line_t l;
  char text[2048], pidfile[256];
  (void) state;
  start_line(&l, "none", "kvm");
  run_t r = start(&l);
  until_seen();
  pid_t pid = qemu_pid();
  snprintf(text, sizeof text, "%ld\n", (long) pid);
  al_test_write(inst, "qemu.pid", text);
  snprintf(pidfile, sizeof pidfile, "%s/qemu.pid", inst);
  uint64_t t = al_plat_mono_ms();
  kill(owner, SIGKILL);
  assert_int_equal(finish(&r, text, sizeof text), 128 + SIGKILL);
  assert_true(al_plat_mono_ms() - t < 2000);
  until_gone(pid);
  assert_non_null(strstr(text, "the owner is gone"));
  assert_int_equal(access(pidfile, F_OK), -1); /* nobody is left whom it could name */
  end(owner);
  expect_refused(&l, "the owner of this lane is gone", "an owner that was gone before");
  owner = sleeper();
  snprintf(owner_word, sizeof owner_word, "%ld:%llu", (long) owner, (unsigned long long) start_of(owner) + 1);
  start_line(&l, "none", "kvm");
  expect_refused(&l, "the owner of this lane is gone", "another process with the owner's pid");
}

static void
test_warden_killed_ends_qemu(void **state) {
  line_t l;
  char text[2048];
  (void) state;
  start_line(&l, "none", "kvm");
  run_t r = start(&l);
  until_seen();
  pid_t pid = qemu_pid();
  kill(r.pid, SIGKILL);
  assert_int_equal(finish(&r, text, sizeof text), 128 + SIGKILL);
  until_gone(pid);
}

static void
test_warden_hostagent_killed_ends_qemu(void **state) {
  line_t l;
  (void) state;
  start_line(&l, "none", "kvm");
  pid_t hostagent = fork();
  if (hostagent == 0) {
    start(&l);
    for (;;) pause();
  }
  until_seen();
  pid_t pid = qemu_pid();
  end(hostagent);
  until_gone(pid);
  for (int i = 0; i < 500; i++, usleep(2000)) {
    char *log = slurp(logfile);
    bool said = log && strstr(log, "the hostagent is gone");
    al_free(log);
    if (said) return;
  }
  fail_msg("the log does not say why");
}

static void
test_warden_passes_signals_and_status(void **state) {
  line_t l;
  char text[2048];
  (void) state;
  write_qemu("trap 'exit 9' TERM; while :; do sleep 0.05; done");
  start_line(&l, "none", "kvm");
  run_t r = start(&l);
  until_seen();
  (void) qemu_pid();
  usleep(100000); /* the script's trap */
  kill(r.pid, SIGTERM);
  assert_int_equal(finish(&r, text, sizeof text), 9);
  assert_non_null(strstr(text, "asked to stop"));
  write_qemu("exit 0");
  assert_int_equal(run(&l, text, sizeof text), 0);
  char *log = slurp(logfile);
  assert_true(strncmp(log, "{\"warden\":", 10) == 0 && strstr(log, "\"argv\":[\"") && strstr(log, "warden: ended: QEMU ended (status 0)"));
  assert_null(strstr(log, "asked to stop")); /* the log is of this start only */
  al_free(log);
}

static void
test_warden_qemu_inherits_nothing(void **state) {
  line_t l;
  char text[4096];
  (void) state;
  write_qemu("ls -l /proc/self/fd; env");
  start_line(&l, "none", "kvm");
  int secret = open("/etc/passwd", O_RDONLY); /* no O_CLOEXEC */
  setenv("AL_TEST_SECRET", "hunter2", 1);
  assert_int_equal(run(&l, text, sizeof text), 0);
  close(secret);
  unsetenv("AL_TEST_SECRET");
  if (strstr(text, "passwd") || strstr(text, "hunter2") || !strstr(text, "PATH=/usr/bin:/bin")) fail_msg("%s", text);
}

static void
test_warden_serial_log_is_bounded(void **state) {
  line_t l;
  char text[2048], path[256];
  struct stat now, old;
  (void) state;
  write_qemu("for a in \"$@\"; do case $a in *char-serial,*logfile=*) f=${a##*logfile=};; esac; done; head -c 3000000 /dev/zero | tr '\\0' x >$f; echo last >$f");
  start_line(&l, "none", "kvm");
  assert_int_equal(run(&l, text, sizeof text), 0);
  snprintf(path, sizeof path, "%s/serial.log", inst);
  assert_int_equal(stat(path, &now), 0);
  char *log = slurp(path);
  assert_non_null(log);
  assert_string_equal(log + strlen(log) - 5, "last\n");
  al_free(log);
  snprintf(path, sizeof path, "%s/serial.log.1", inst);
  assert_int_equal(stat(path, &old), 0);
  assert_true(now.st_size <= 524288 && old.st_size <= 524288 && old.st_size > 500000);
  assert_int_equal(now.st_mode & 07777, 0600);
}

int
main(void) {
  char exe[900];
  if (al_plat_exe_path(exe, sizeof exe)) return 1;
  *strrchr(exe, '/') = 0;
  snprintf(warden, sizeof warden, "%s/warden", exe);
  if (access(warden, X_OK)) {
    fprintf(stderr, "%s is not built\n", warden);
    return 1;
  }
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {T(test_warden_questions_pass), T(test_warden_questions_without_policy_go_to_path), T(test_warden_policy_must_be_whole), T(test_warden_adds_the_policy),
    T(test_warden_refuses_what_a_lane_must_not_have), T(test_warden_refuses_other_values), T(test_warden_order_of_items_is_free), T(test_warden_files_must_be_ours), T(test_warden_owner_gone_kills_qemu),
    T(test_warden_killed_ends_qemu), T(test_warden_hostagent_killed_ends_qemu), T(test_warden_passes_signals_and_status), T(test_warden_qemu_inherits_nothing), T(test_warden_serial_log_is_bounded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
