/* SPDX-License-Identifier: Apache-2.0 */
/* What Lima 2.2 passes to QEMU, option by option: anything that is not on this list stops the lane. */
#include "warden.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum { KEEP, MACHINE, ACCEL, CPU, SMP, WORDS, NETDEV, DISK, SINK } act_t;

typedef struct rule_s {
  const char *option, *pattern;
  act_t act;
  char needed; /* a VM without it is refused; the same letter: one of them is enough */
} rule_t;

/* Each rule is good for one argument. A pattern's first item is the value's first, the others come in any order. */
static const rule_t rules[] = {
  {"-m", "%n", KEEP, 'm'},
  {"-cpu", "max", CPU, 'c'},
  {"-cpu", "host", CPU, 'c'},
  {"-cpu", "max,-avx512vl,-pdpe1gb", CPU, 'c'},
  {"-cpu", "host,-avx512vl,-pdpe1gb", CPU, 'c'},
  {"-machine", "q35,accel=%c", MACHINE, 'M'},
  {"-machine", "q35,vmport=off", MACHINE, 'M'},
  {"-machine", "virt,accel=%c", MACHINE, 'M'},
  {"-accel", "tcg,thread=multi,tb-size=512", ACCEL, 0},
  {"-global", "ICH9-LPC.disable_s3=1", KEEP, 0},
  {"-global", "ICH9-LPC.disable_s4=1", KEEP, 0},
  {"-smp", "%n,sockets=1,cores=%n,threads=1", SMP, 's'},
  {"-drive", "if=pflash,format=raw,readonly=on,file=%f", KEEP, 0},
  {"-drive", "if=pflash,format=raw,readonly=on,file=%d/qemu-efi-code.fd", KEEP, 0},
  {"-device", "qemu-xhci,id=usb-bus", KEEP, 0},
  {"-drive", "file=%d/disk,if=none,discard=on,id=boot-disk", DISK, 'd'},
  {"-device", "virtio-blk-pci,drive=boot-disk,bootindex=1", KEEP, 'b'},
  {"-boot", "order=c,splash-time=0,menu=on", KEEP, 0},
  {"-drive", "id=cdrom0,if=none,format=raw,readonly=on,file=%d/cidata.iso", KEEP, 'i'},
  {"-device", "virtio-scsi,id=scsi0", KEEP, 0},
  {"-device", "scsi-cd,bus=scsi0.0,drive=cdrom0", KEEP, 0},
  {"-kernel", "%d/kernel", KEEP, 0},
  {"-append", "%t", WORDS, 0},
  {"-initrd", "%d/initrd", KEEP, 0},
  {"-netdev", "user,id=net0,net=192.168.5.0/24,dhcpstart=192.168.5.15,hostfwd=tcp:127.0.0.1:%p-:22", NETDEV, 'n'},
  {"-device", "virtio-net-pci,netdev=net0,mac=%m", KEEP, 'N'},
  {"-device", "virtio-rng-pci", KEEP, 0},
  {"-audiodev", "none,id=snd0", KEEP, 0},
  {"-display", "none", KEEP, 'D'},
  {"-vga", "none", KEEP, 'V'},
  {"-parallel", "none", KEEP, 0},
  {"-chardev", "socket,id=char-serial,path=%d/serial.sock,server=on,wait=off,logfile=%d/serial.log", SINK, 'S'},
  {"-serial", "chardev:char-serial", KEEP, 'R'},
  {"-chardev", "socket,id=char-serial-pci,path=%d/serialp.sock,server=on,wait=off,logfile=%d/serialp.log", SINK, 0},
  {"-device", "pci-serial,chardev=char-serial-pci", KEEP, 0},
  {"-chardev", "socket,id=char-serial-virtio,path=%d/serialv.sock,server=on,wait=off,logfile=%d/serialv.log", SINK, 0},
  {"-device", "virtio-serial-pci,id=virtio-serial0,max_ports=1", KEEP, 0},
  {"-device", "virtconsole,chardev=char-serial-virtio,id=console0", KEEP, 0},
  {"-chardev", "socket,id=char-qmp,path=%d/qmp.sock,server=on,wait=off", KEEP, 'q'},
  {"-qmp", "chardev:char-qmp", KEEP, 'Q'},
  {"-name", "lima-%N", KEEP, 'l'},
  {"-pidfile", "%d/qemu.pid", KEEP, 'p'},
};
#define RULES (sizeof rules / sizeof rules[0])

/* The kernel's own words. A guest that panics ends, instead of standing still until somebody's patience ends. And Linux
 * looks at boot whether ten ticks of the timer come in time; with an emulator on a busy host they may not, and it panics
 * ("IO-APIC + timer doesn't work").
 * Linux rewrites its own running code when the first memory cgroup is made, to count what the kernel itself allocates.
 * QEMU 7.2 may keep its translation of a breakpoint that stood there for a moment, and then the guest is lost: so that is
 * not counted where QEMU translates (docs/adr/0011-code-that-changes.md). */
#define ALWAYS " panic=-1"
#define EMULATED_WORDS ALWAYS " no_timer_check cgroup.memory=nokmem,nosocket"

/* QEMU emulates `rep movsb` and `rep stosb` byte by byte. A guest that is told of a CPU on which they are fast clears and
 * copies memory by nothing else (Linux' clear_page and copy_user, glibc's memcpy): without these two features of the
 * CPU it clears pages seven times and fills pipes three times as fast. */
#if defined(__x86_64__)
#define EMULATED_CPU ",-erms,-fsrm"
#else
#define EMULATED_CPU ""
#endif

static const char *const accel_names[] = {"tcg", "kvm", "hvf"};

static int
refuse(al_warden_vm_t *vm, const char *what, const char *option, const char *value) {
  char shown[256];
  size_t n = 0;
  for (; value[n] != 0 && n < sizeof shown - 1; n++) shown[n] = value[n] < 0x20 || value[n] > 0x7e ? '?' : value[n];
  shown[n] = 0;
  snprintf(vm->why, sizeof vm->why, "%s %.40s%s%s", what, option, n > 0 && option[0] != 0 ? " " : "", shown);
  return -1;
}

bool
al_warden_is_probe(int argc, char **argv) {
  static const char *const probes[][5] = {
    {"--version", NULL},
    {"-M", "none", "-accel", "help", NULL},
    {"-M", "none", "-netdev", "help", NULL},
    {"-machine", "help", NULL},
    {"-cpu", "help", "-machine", "q35", NULL},
    {"-cpu", "help", "-machine", "virt", NULL},
  };
  for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++) {
    int n = 0;
    while (n < argc && probes[i][n] != NULL && strcmp(probes[i][n], argv[n]) == 0) n++;
    if (n == argc && probes[i][n] == NULL) return true;
  }
  return false;
}

int
al_warden_add(al_warden_vm_t *vm, const char *fmt, ...) {
  size_t room = sizeof vm->bytes - vm->used;
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(vm->bytes + vm->used, room, fmt, ap);
  va_end(ap);
  if (n < 0 || (size_t) n >= room || vm->argc >= AL_WARDEN_ARGS_MAX) {
    return refuse(vm, "more arguments than a lane has", "", "");
  }
  vm->argv[vm->argc++] = vm->bytes + vm->used;
  vm->argv[vm->argc] = NULL;
  vm->used += (size_t) n + 1;
  return 0;
}

/* The instance directory comes from -pidfile; it must be plain and ours alone, and every other path must lie in it. */
static int
find_dir(al_warden_vm_t *vm, int argc, char **argv) {
  static const char tail[] = "/qemu.pid";
  const char *pidfile = NULL;
  struct stat st;
  for (int i = 0; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "-pidfile") == 0) pidfile = argv[i + 1];
  }
  if (pidfile == NULL) {
    return refuse(vm, "no -pidfile, so this is neither a known question nor the start of a lane:",
      argc > 0 ? argv[0] : "", argc > 1 ? argv[1] : "");
  }
  size_t n = strlen(pidfile);
  if (pidfile[0] != '/' || n < sizeof tail + 1 || n >= sizeof vm->dir || strcmp(pidfile + n - (sizeof tail - 1),
    tail) != 0) {
    return refuse(vm, "-pidfile is not an instance directory's qemu.pid:", "", pidfile);
  }
  memcpy(vm->dir, pidfile, n - (sizeof tail - 1));
  vm->dir[n - (sizeof tail - 1)] = 0;
  vm->name = strrchr(vm->dir, '/') + 1;
  if (strpbrk(vm->dir, ",%\\\"'\n\r") != NULL || strstr(vm->dir, "//") != NULL || strstr(vm->dir, "/./") != NULL ||
      strstr(vm->dir, "/../") != NULL || vm->name[0] == 0 || vm->name[0] == '.') {
    return refuse(vm, "the instance directory's path is not plain:", "", vm->dir);
  }
  if (lstat(vm->dir, &st) != 0 || !S_ISDIR(st.st_mode)) return refuse(vm, "not a directory:", "", vm->dir);
  if (st.st_uid != geteuid() || (st.st_mode & 022) != 0) return refuse(vm, "not ours alone:", "", vm->dir);
  return 0;
}

/* Disk, kernel and the like are what the driver built: files of ours in the directory, not links to something else. */
static int
check_file(al_warden_vm_t *vm, const char *name) {
  char path[AL_WARDEN_PATH_MAX + 16];
  struct stat st;
  snprintf(path, sizeof path, "%s/%s", vm->dir, name);
  if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode)) return refuse(vm, "not a plain file:", "", path);
  if (st.st_uid != geteuid() || (st.st_mode & 022) != 0) return refuse(vm, "not ours alone:", "", path);
  return 0;
}

static int
add_machine(const al_warden_policy_t *policy, const char *value, al_warden_vm_t *vm) {
  const char *asked = strstr(value, "accel=");
  const char *accel = accel_names[policy->accel];
  bool tcg = policy->accel == AL_WARDEN_TCG;
  asked = asked != NULL ? asked + 6 : "tcg";
  if (!tcg && strcmp(asked, accel) != 0) {
    return refuse(vm, "the policy names another accelerator than Lima chose:", accel, asked);
  }
  if (!tcg) return al_warden_add(vm, "%s", value);
  if (strncmp(value, "q35", 3) == 0) return al_warden_add(vm, "q35,vmport=off");
  return al_warden_add(vm, "virt");
}

static int
add_sink(const char *value, al_warden_vm_t *vm) {
  const char *log = strstr(value, "logfile=") + 8;
  al_warden_sink_t *sink = &vm->sinks[vm->sink_count];
  size_t n = strcspn(log, ",");
  memcpy(sink->path, log, n);
  sink->path[n] = 0;
  sink->read_fd = sink->write_fd = sink->file_fd = -1;
  if (al_warden_add(vm, "%s", value) != 0) return -1;
  vm->sink_count++;
  return 0;
}

static int
add_value(const al_warden_policy_t *policy, const rule_t *rule, const char *value, al_warden_vm_t *vm) {
  const char *cores;
  switch (rule->act) {
  case MACHINE: return add_machine(policy, value, vm);
  case CPU: /* "host" needs a hypervisor */
    if (policy->accel == AL_WARDEN_TCG) return al_warden_add(vm, "max%s" EMULATED_CPU, value + strcspn(value, ","));
    break;
  case WORDS: return al_warden_add(vm, policy->accel == AL_WARDEN_TCG ? "%s" EMULATED_WORDS : "%s" ALWAYS, value);
  case SMP:
    cores = strstr(value, ",cores=") + 7;
    if (strcspn(value, ",") != strcspn(cores, ",") || strncmp(value, cores, strcspn(value, ",")) != 0) {
      return refuse(vm, "-smp contradicts itself:", "", value);
    }
    break;
  case NETDEV: return al_warden_add(vm, policy->network_open ? "%s" : "%s,restrict=on,ipv6=off", value);
  case DISK: /* the format is never guessed from the guest's bytes */
    return check_file(vm, "disk") != 0 ? -1 : al_warden_add(vm, "%s,format=qcow2", value);
  case SINK: return add_sink(value, vm);
  case KEEP:
  case ACCEL: break;
  }
  if (strcmp(rule->option, "-kernel") == 0 && check_file(vm, "kernel") != 0) return -1;
  if (strcmp(rule->option, "-initrd") == 0 && check_file(vm, "initrd") != 0) return -1;
  return al_warden_add(vm, "%s", value);
}

/* One pair OPTION VALUE. `used` counts the rules that are spent. */
static int
check_pair(const al_warden_policy_t *policy, const char *option, const char *value, bool used[RULES],
  al_warden_vm_t *vm) {
  bool known = false, spent = false;
  for (size_t i = 0; i < RULES; i++) {
    if (strcmp(rules[i].option, option) != 0) continue;
    known = true;
    if (!al_warden_match(rules[i].pattern, value, policy, vm->dir, vm->name)) continue;
    spent = used[i];
    for (size_t k = 0; k < RULES; k++) { /* two rules with one letter are alternatives */
      spent = spent || (used[k] && rules[k].needed != 0 && rules[k].needed == rules[i].needed);
    }
    if (spent) continue;
    used[i] = true;
    if (rules[i].act == ACCEL) return 0; /* our own follows -machine */
    if (al_warden_add(vm, "%s", option) != 0 || add_value(policy, &rules[i], value, vm) != 0) return -1;
    if (rules[i].act != MACHINE || policy->accel != AL_WARDEN_TCG) return 0;
    return al_warden_add(vm, "-accel") != 0 || al_warden_add(vm, "tcg,thread=multi,tb-size=512") != 0 ? -1 : 0;
  }
  if (spent) return refuse(vm, "given twice:", option, value);
  return refuse(vm, known ? "a lane must not have" : "a lane has no option", option, value);
}

int
al_warden_check(const al_warden_policy_t *policy, int argc, char **argv, al_warden_vm_t *vm) {
  bool used[RULES] = {false};
  vm->argc = vm->sink_count = 0;
  vm->port = policy->port;
  vm->channel = (al_warden_channel_t) {.listen_fd = -1, .qemu_fd = -1, .monitor_fd = -1};
  vm->used = 0;
  if (argc % 2 != 0) return refuse(vm, "an option without a value at the end:", "", argv[argc - 1]);
  if (find_dir(vm, argc, argv) != 0 || al_warden_add(vm, "%s", policy->qemu) != 0) return -1;
  if (al_warden_add(vm, "-no-user-config") != 0 || al_warden_add(vm, "-nodefaults") != 0 ||
      al_warden_add(vm, "-no-reboot") != 0)
    return -1;
  for (int i = 0; i < argc; i += 2) {
    if (check_pair(policy, argv[i], argv[i + 1], used, vm) != 0) return -1;
  }
  for (size_t i = 0; i < RULES; i++) {
    bool there = rules[i].needed == 0;
    for (size_t k = 0; k < RULES; k++) there = there || (used[k] && rules[k].needed == rules[i].needed);
    if (!there) return refuse(vm, "a lane needs", rules[i].option, rules[i].pattern);
  }
  return check_file(vm, "cidata.iso");
}
