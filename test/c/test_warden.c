/* SPDX-License-Identifier: Apache-2.0 */
/* The built warden, run as a program with a script in QEMU's place: what it lets through and what it refuses. */
#include "warden_run.h"

static void
test_warden_questions_pass(void **state) {
  static const char *const good[][5] = {{"--version"}, {"-M", "none", "-accel", "help"},
    {"-M", "none", "-netdev", "help"}, {"-machine", "help"}, {"-cpu", "help", "-machine", "q35"}};
  static const char *const bad[][6] = {{"-version"}, {"--help"}, {"-M", "none"},
    {"-M", "none", "-accel", "help", "-nographic"}, {"--version", "-nic", "user"}, {"-M", "q35", "-accel", "help"},
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
  snprintf(name, sizeof name, "bin/qemu-system-%s",
    sizeof(void *) == 8 && access("/lib/ld-linux-aarch64.so.1", F_OK) == 0 ? "aarch64" : "x86_64");
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
  } bad[] = {{2, "2", "policy version"}, {2, "", "policy version"}, {1, "--agent-lane", "unknown policy word"},
    {4, "qemu", "absolute"}, {4, "/nowhere/qemu", "not a program"}, {4, "/etc/passwd", "cannot be run"},
    {4, "/tmp", "not a program"}, {6, "closed", "--network"}, {6, "None", "--network"}, {8, "xen", "--accel"},
    {10, "ssh", "--channel"}, {12, "1:1", "--owner"}, {12, "77", "--owner"}, {12, "77:", "--owner"},
    {12, "77:1x", "--owner"}, {12, "-5:1", "--owner"}, {12, " 77:1", "--owner"}, {14, "0:0", "--keeper"},
    {14, "77:-1", "--keeper"}, {16, "warden.log", "--log"}, {5, "--qemu", "given twice"}, {17, "-", "unknown policy word"}};
  line_t l;
  (void) state;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    start_line(&l, "none", "kvm");
    l.argv[bad[i].at] = bad[i].to;
    expect_refused(&l, bad[i].word, bad[i].to);
  }
  for (int gone = 1; gone < 17; gone += 2) { /* each word is needed */
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
    static const char *const more[] = {
      "-accel", "tcg,thread=multi,tb-size=512", "-global", "ICH9-LPC.disable_s3=1", "-global", "ICH9-LPC.disable_s4=1"};
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

#if defined(__x86_64__)
#define EMULATED_CPU "max,-erms,-fsrm"
#else
#define EMULATED_CPU "max"
#endif

#define WORDS "root=/dev/vda rw console=ttyS0 quiet panic=-1"

static void
test_warden_adds_the_policy(void **state) {
  const char *restricted =
    "user,id=net0,net=192.168.5.0/24,dhcpstart=192.168.5.15,hostfwd=tcp:127.0.0.1:40123-:22,restrict=on,ipv6=off";
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
    expect_line(seen, i == 1 ? "host" : EMULATED_CPU, 1);
    expect_line(seen, disk, 1);
    expect_line(seen, i == 1 ? WORDS : WORDS " no_timer_check cgroup.memory=nokmem,nosocket", 1);
    expect_line(seen, "-no-user-config\n-nodefaults\n-no-reboot", 1);
    if (access("/proc/self", F_OK) == 0)
      expect_line(seen, "-sandbox\non,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny", 1);
    assert_null(strstr(seen, "serial.log"));
    al_free(seen);
  }
}

static void
test_warden_refuses_what_a_lane_must_not_have(void **state) {
  static const struct {
    const char *option, *value, *word;
  } more[] = {/* one more pair */
    {"-netdev", "user,id=net0,net=192.168.5.0/24,dhcpstart=192.168.5.15,hostfwd=tcp:127.0.0.1:40124-:22", "twice"},
    {"-netdev", "user,id=net1", "-netdev"}, {"-netdev", "tap,id=net1", "-netdev"}, {"-nic", "user", "no option -nic"},
    {"-net", "user", "no option -net"},
    {"-virtfs", "local,path=/,mount_tag=x,security_model=none", "no option -virtfs"},
    {"-fsdev", "local,id=f,path=/", "no option -fsdev"}, {"-monitor", "stdio", "no option"},
    {"-incoming", "exec:id", "no option"}, {"-plugin", "/tmp/x.so", "no option"},
    {"-chardev", "file,id=x,path=/tmp/x", "-chardev"}, {"-chardev", "socket,id=x,path=DIR/x.sock", "-chardev"},
    {"-chardev", "socket,id=char-qmp,path=DIR/qmp.sock,server=on,wait=off", "twice"},
    {"-device", "usb-host,hostbus=1", "-device"}, {"-device", "vfio-pci,host=01:00.0", "-device"},
    {"-device", "vhost-user-fs-pci", "-device"}, {"-device", "virtio-rng-pci", "twice"},
    {"-drive", "file=/etc/shadow,if=virtio", "-drive"}, {"-drive", "file=DIR/other,if=virtio,discard=on", "-drive"},
    {"-drive", "if=pflash,format=raw,readonly=on,file=/etc/shadow", "-drive"},
    {"-drive", "if=pflash,format=raw,file=DIR/qemu-efi-code.fd", "-drive"}, {"-sandbox", "off", "no option"},
    {"-readconfig", "/tmp/x", "no option"}, {"-daemonize", "", "no option"}, {"-runas", "root", "no option"},
    {"-chroot", "/", "no option"}, {"-object", "memory-backend-file,id=m,size=1,mem-path=/tmp/x", "no option"},
    {"-blockdev", "driver=file,filename=/etc/shadow", "no option"}, {"-hda", "/etc/shadow", "no option"},
    {"-vnc", ":0", "no option"}, {"-display", "none", "twice"}, {"-qmp", "tcp:0.0.0.0:1,server", "-qmp"},
    {"-serial", "chardev:char-serial", "twice"}, {"-serial", "pty", "-serial"}, {"-gdb", "tcp::1", "no option"},
    {"-bios", "/tmp/x", "no option"}, {"-smbios", "type=0,file=/etc/shadow", "no option"},
    {"-fw_cfg", "name=opt/x,file=/etc/shadow", "no option"}, {"-global", "driver=x,property=y,value=z", "-global"},
    {"-pidfile", "/tmp/qemu.pid", ""}, {"-m", "2048", "twice"}, {"-accel", "kvm", "-accel"},
    {"-append", "init=/bin/sh", "twice"}, {"--netdev", "user,id=net1", "no option --netdev"},
    {"-usbdevice", "disk:/etc/shadow", "no option"}, {"disk.img", "", "no option disk.img"}};
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
  } change[] = {{"hostfwd=tcp:127.0.0.1:", "hostfwd=tcp::"}, {"127.0.0.1:40123", "0.0.0.0:40123"},
    {"40123-:22", "40123-:80"}, {"40123-:22", "40123-192.168.5.3:22"}, {"40123", "0"}, {"40123", "65536"},
    {"40123", "040123"}, {"hostfwd=tcp", "hostfwd=udp"}, {"-:22", "-:22,restrict=off"}, {"-:22", "-:22,restrict=on"},
    {"-:22", "-:22,smb=/"}, {"-:22", "-:22,guestfwd=tcp:1.2.3.4:5-cmd:id"},
    {"-:22", "-:22,hostfwd=tcp:127.0.0.1:40125-:23"}, {"-:22", "-:22,tftp=/"}, {"-:22", "-:22,hostname=x"},
    {"-:22", "-:22,"}, {"user,id=net0", "tap,id=net0"}, {"user,id=net0", "user,id=net1"},
    {"192.168.5.0/24", "10.0.0.0/8"}, {"user,id=net0,net", "user,id=net0,,net"}, {"DIR/disk,", "/etc/shadow,"},
    {"DIR/disk,", "DIR/../disk,"}, {"DIR/disk,", "DIR/disk2,"}, {"discard=on", "discard=on,snapshot=on"},
    {"discard=on", "discard=on,format=raw"}, {"if=none,discard", "if=virtio,discard"},
    {"file=DIR/cidata.iso", "file=/etc/passwd"}, {"readonly=on,file", "readonly=off,file"},
    {"DIR/kernel", "/boot/vmlinuz"}, {"DIR/initrd", "DIR/../initrd"}, {"quiet", "qui\net"}, {"quiet", "qui\x80t"},
    {"q35,accel=kvm", "q35,accel=tcg"}, {"q35,accel=kvm", "pc,accel=kvm"},
    {"q35,accel=kvm", "q35,accel=kvm,memory-encryption=x"}, {"q35,accel=kvm", "q35,accel=kvm:tcg"},
    {"q35,accel=kvm", "q35,accel=xen"}, {"q35,accel=kvm", "q35"}, {"cores=2", "cores=3"}, {"1024", "1024M"},
    {"1024", "1024,maxmem=2G"}, {"logfile=DIR/serial.log", "logfile=/tmp/x"},
    {"logfile=DIR/serial.log", "logfile=DIR/lima.yaml"}, {"DIR/serial.sock", "/tmp/x.sock"},
    {"DIR/qmp.sock", "/tmp/x.sock"}, {"server=on,wait=off", "server=on,wait=on"}, {"lima-" NAME, "lima-other"},
    {"DIR/qemu.pid", "DIR/other.pid"}, {"DIR/qemu.pid", "/qemu.pid"}, {"52:55:55", "52:55:5"}, {"52:55:55", "52:55:5g"},
    {"-display", "-nographic"}, {"mac=52:55:55:df:ed:e6", "mac=52:55:55:df:ed:e6,romfile=/etc/shadow"},
    {"id=snd0", "id=snd0,out.path=/tmp/x"}, {"host", "host,+x"}, {"virtio-blk-pci", "virtio-blk-pci,romfile=/x"}};
  line_t l;
  (void) state;
  for (size_t i = 0; i < sizeof change / sizeof change[0]; i++) {
    bool done = false;
    policy(&l, "none", "kvm");
    for (size_t k = 0; k < LIMA; k++) {
      char word[512];
      const char *at = done ? NULL : strstr(lima[k], change[i].from);
      if (at)
        snprintf(
          word, sizeof word, "%.*s%s%s", (int) (at - lima[k]), lima[k], change[i].to, at + strlen(change[i].from));
      add(&l, at ? word : lima[k]);
      done = done || at;
    }
    assert_true(done);
    expect_refused(&l, "", change[i].to);
  }
  for (size_t gone = 0; gone < LIMA; gone += 2) { /* what a lane cannot be without */
    static const char *const needed[] = {
      "-netdev", "-display", "-vga", "-qmp", "-name", "-pidfile", "-serial", "-m", "-machine", "-cpu", "-smp"};
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
    add(&l,
      strncmp(lima[k], "user,id", 7)
        ? lima[k]
        : "user,hostfwd=tcp:127.0.0.1:40123-:22,dhcpstart=192.168.5.15,net=192.168.5.0/24,id=net0");
  }
  assert_int_equal(run(&l, text, sizeof text), 5);
  char *seen = slurp(in("seen"));
  assert_non_null(strstr(seen, "id=net0,restrict=on,ipv6=off\n"));
  al_free(seen);
}

static void
test_warden_takes_a_path_with_a_space(void **state) {
  line_t l;
  char text[2048], moved[sizeof inst], disk[256], *seen;
  (void) state;
  assert_int_equal(mkdir(in("a b"), 0700), 0);
  snprintf(moved, sizeof moved, "%s", in("a b/" NAME));
  assert_int_equal(rename(inst, moved), 0);
  snprintf(inst, sizeof inst, "%s", moved);
  snprintf(logfile, sizeof logfile, "%s/warden.log", inst);
  write_qemu("exit 5");
  start_line(&l, "none", "kvm");
  if (run(&l, text, sizeof text) != 5) fail_msg("%s", text);
  seen = slurp(in("seen"));
  snprintf(disk, sizeof disk, "file=%s/disk,if=none,discard=on,id=boot-disk,format=qcow2", inst);
  expect_line(seen, disk, 1);
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
  assert_int_equal(symlink(in("elsewhere"), logfile), 0);
  expect_refused(&l, "the log", "a link in the log's place");
  assert_int_equal(access(in("elsewhere"), F_OK), -1);
  unlink(logfile);
}

int
main(void) {
  if (!find_warden()) return 1;
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_warden_questions_pass),
    T(test_warden_questions_without_policy_go_to_path),
    T(test_warden_policy_must_be_whole),
    T(test_warden_adds_the_policy),
    T(test_warden_refuses_what_a_lane_must_not_have),
    T(test_warden_refuses_other_values),
    T(test_warden_order_of_items_is_free),
    T(test_warden_takes_a_path_with_a_space),
    T(test_warden_files_must_be_ours),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
