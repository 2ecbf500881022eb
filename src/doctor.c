/* SPDX-License-Identifier: Apache-2.0 */
/* Doctor: looks at everything a lane needs and says what is missing, with the cure. */
#include "doctor.h"
#include "ask.h"
#include "home.h"
#include "image.h"
#include "lima.h"
#include "mem.h"
#include "platform.h"
#include "registry.h"
#include "utf8.h"
#include "version.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#define ROOM_LEAST (2ull << 30)
#define QEMU_LEAST 6, 2
#define MEMORY_DEFAULT_GIB 8

typedef struct doctor_s {
  const al_doctor_opts_t *opts;
  al_val_t *checks;
  bool ok, linux_host, home_usable;
  char arch[16];
  al_home_t home;
  int rc; /* -ENOMEM, sticky */
} doctor_t;

static void
say(doctor_t *d, const char *name, const char *status, const char *detail, const char *cure) {
  al_val_t *row = al_val_map();

  int rc = row ? 0 : -ENOMEM;
  if (!rc) rc = al_val_set(row, "name", al_val_text(name));
  if (!rc) rc = al_val_set(row, "status", al_val_text(status));
  if (!rc) rc = al_val_set(row, "detail", al_val_text(detail));
  if (!rc && cure) rc = al_val_set(row, "cure", al_val_text(cure));
  if (rc) al_val_free(row);
  else rc = al_val_add(d->checks, row);
  if (rc) d->rc = rc;
  if (strcmp(status, "found") && strcmp(status, "skipped")) d->ok = false;
}

static void
say_error(doctor_t *d, const char *name, const char *status, const al_err_t *err) {
  say(d, name, status, err->msg, al_err_cure_text(err));
}

/* ---- checks ---- */

static void
check_platform(doctor_t *d) {
  char text[256];
  struct utsname u;

  if (uname(&u)) memset(&u, 0, sizeof u);
  bool arm = strcmp(u.machine, "arm64") == 0 || strcmp(u.machine, "aarch64") == 0, mac = strcmp(u.sysname,
    "Darwin") == 0;
  d->linux_host = strcmp(u.sysname, "Linux") == 0;
  snprintf(d->arch, sizeof d->arch, "%s", arm ? "aarch64" : "x86_64");
  snprintf(text, sizeof text, "%.60s on %.60s", u.sysname, u.machine);
  bool fits = (mac && arm) || (d->linux_host && (arm || strcmp(u.machine, "x86_64") == 0));
  say(d, "platform", fits ? "found" : "missing", text,
    fits ? NULL : "Lanes run on macOS on Apple Silicon, and on Linux on x86_64 or aarch64.");
  if (geteuid() != 0) {
    say(d, "user", "found", "not root", NULL);
    return;
  }
  al_err_t err = {0};
  al_err_set(&err, AL_ELIMA_ROOT, "This process runs as root, and limactl refuses root.");
  say_error(d, "user", "unsafe", &err);
}

static void
check_home(doctor_t *d) {
  al_err_t err = {0};

  d->home_usable = al_home_open(d->opts->home, &d->home, &err) == 0;
  if (d->home_usable) say(d, "home", "found", d->home.root, NULL);
  else say_error(d, "home", "unsafe", &err);
}

/* Finds a program the way a lane would. False when it has been reported as missing or unsafe. */
static bool
find(doctor_t *d, const char *name, const char *asked, int code, char path[1024]) {
  al_err_t err = {0};

  int rc = al_plat_find_program(asked ? asked : name, NULL, path, 1024, &err);
  if (rc == 0) return true;
  bool unsafe = rc == AL_EPROGRAM_UNSAFE;
  if (!unsafe && code) {
    err.code = code;
    err.cure[0] = 0;
  }
  const char *cure = "Install it with the system's package manager (Debian: openssh-client, git).";
  if (unsafe || code) cure = al_err_cure_text(&err);
  say(d, name, unsafe ? "unsafe" : "missing", err.msg, cure);
  return false;
}

static void
say_version(doctor_t *d, const char *name, const char *path, int rc, const char *line) {
  char text[1400];

  if (rc == -ETIMEDOUT) snprintf(text, sizeof text, "%s --version did not answer within %u s", path,
    AL_ASK_MS / 1000);
  else snprintf(text, sizeof text, "%s --version failed: %.200s", path, line[0] ? line : "no output");
  say(d, name, "unsafe", text, rc == -ETIMEDOUT ? "Run it by hand: something keeps it from answering."
    : "Run it by hand; reinstall the program when it fails there, too.");
}

static void
check_lima(doctor_t *d) {
  const char *asked = d->opts->limactl ? d->opts->limactl : getenv("AGENT_LANE_LIMACTL");
  char path[1024], line[AL_ASK_LINE], text[1400], version[32];

  if (!find(d, "limactl", asked && asked[0] ? asked : NULL, AL_ELIMA_MISSING, path)) return;
  int rc = al_ask_version(path, line);
  if (rc == -EIO && geteuid() == 0) { /* it says so itself, and "user" has been reported */
    snprintf(text, sizeof text, "%s; its version cannot be asked as root", path);
    say(d, "limactl", "skipped", text, NULL);
    return;
  }
  if (rc) {
    say_version(d, "limactl", path, rc, line);
    return;
  }
  snprintf(text, sizeof text, "%s: %s", path, line);
  rc = al_lima_judge_version(line, d->opts->allow_unknown_lima, version, sizeof version);
  if (rc == 0) {
    say(d, "limactl", "found", text, NULL);
    return;
  }
  al_err_t err = {0};
  const char *why = rc == AL_ELIMA_UNKNOWN_VERSION ? "; that is no version that can be compared with 2.2.0" : "";
  al_err_set(&err, rc, "%.500s%s", text, why);
  if (why[0])
    al_err_cure(&err, "Use a released limactl. If you built it yourself from 2.2 or newer: allowUnknownLima: true, and "
      "`agent-lane doctor --allow-unknown-lima`.");
  say_error(d, "limactl", rc == AL_ELIMA_TOO_OLD ? "too old" : "unsafe", &err);
}

static void
check_qemu(doctor_t *d, const char *name) {
  char path[1024], line[AL_ASK_LINE], text[1400];
  al_version_t v;

  if (!find(d, name, NULL, AL_EQEMU_MISSING, path)) return;
  int rc = al_ask_version(path, line);
  if (rc || !al_version_find(line, &v)) {
    say_version(d, name, path, rc ? rc : -EIO, line);
    return;
  }
  snprintf(text, sizeof text, "%s: %s", path, line);
  bool old = al_version_older(&v, QEMU_LEAST);
  say(d, name, old ? "too old" : "found", text, old ? "Upgrade QEMU to 6.2 or newer." : NULL);
}

static void
check_plain(doctor_t *d, const char *name) {
  char path[1024];

  if (find(d, name, NULL, 0, path)) say(d, name, "found", path, NULL);
}

static void
check_kvm(doctor_t *d) {
  if (access("/dev/kvm", F_OK)) {
    say(d, "kvm", "skipped", "There is no /dev/kvm: lanes run in software emulation, which is several times slower.",
      "Switch virtualization on in the firmware, or nested virtualization where this machine is a VM itself.");
  } else if (access("/dev/kvm", R_OK | W_OK)) {
    say(d, "kvm", "skipped",
      "/dev/kvm is not open to you (group kvm?): lanes run in software emulation, which is several times slower.",
      "Join the group that may open it, such as `sudo usermod -aG kvm \"$USER\"`, and log in again.");
  } else {
    say(d, "kvm", "found",
      "/dev/kvm is open to you; it is used once the image's kernel has been seen to run under it.", NULL);
  }
}

static void
check_image(doctor_t *d) {
  al_image_t image;
  al_err_t err = {0};

  if (!d->home_usable) {
    say(d, "image", "skipped", "The home cannot be used.", NULL);
    return;
  }
  int rc = al_image_open(&d->home, d->opts->image, d->linux_host ? "qemu" : "vz", d->arch, &image, &err);
  if (rc == 0) say(d, "image", "found", image.id, NULL);
  else if (rc == -ENOMEM) d->rc = rc;
  else say_error(d, "image", rc == AL_EIMAGE_MISSING ? "missing" : "unsafe", &err);
}

/* "3: agent-lane-…, agent-lane-…": as many names as fit. */
static void
name_some(const al_val_t *names, char *out, size_t cap) {
  size_t n = (size_t) snprintf(out, cap, "%zu: ", names->len);
  for (size_t i = 0; i < names->len && n + AL_NAME_LEN + 8 < cap; i++)
    n += (size_t) snprintf(out + n, cap - n, "%s%s", i ? ", " : "",
      n + 2 * AL_NAME_LEN + 8 < cap ? names->items[i]->text : "…");
}

static void
check_registry(doctor_t *d) {
  char text[400], detail[512], cure[AL_HOME_MAX + 400];
  al_val_t *strays = NULL;
  al_err_t err = {0};

  if (!d->home_usable) {
    say(d, "registry", "skipped", "The home cannot be used.", NULL);
    return;
  }
  int rc = al_registry_strays(&d->home, &strays, &err);
  if (rc) {
    if (rc == -ENOMEM) d->rc = rc;
    say_error(d, "registry", "unsafe", &err);
    say(d, "lanes", "skipped", "The registry cannot be read, so no directory can be told to be a lane's.", NULL);
    return;
  }
  say(d, "registry", "found", access(d->home.registry, F_OK) ? "There is none yet." : d->home.registry, NULL);
  if (strays->len == 0) {
    say(d, "lanes", "found", "Every lane directory has a row in the registry.", NULL);
  } else {
    name_some(strays, text, sizeof text);
    snprintf(detail, sizeof detail, "Lane directories that the registry does not know, %s", text);
    snprintf(cure, sizeof cure, "No command of ours removes them, since nothing says whose they are. For each NAME, when"
      " `pgrep -fl NAME` shows no process (end those it shows): LIMA_HOME=%s limactl delete NAME", d->home.lima);
    say(d, "lanes", "unsafe", detail, cure);
  }
  al_val_free(strays);
}

/* Registries that were found damaged and set aside: kept until somebody removes them. */
static void
check_damaged(doctor_t *d) {
  static const char prefix[] = "registry.db.damaged-";
  AL_AUTO_FREE char *text = NULL;
  DIR *dir = d->home_usable ? opendir(d->home.root) : NULL;
  if (!dir) return; /* the home has been reported */
  for (struct dirent *e; !d->rc && (e = readdir(dir));) {
    size_t n = strlen(e->d_name);
    bool part = n > 4 && (strcmp(e->d_name + n - 4, "-wal") == 0 || strcmp(e->d_name + n - 4, "-shm") == 0);
    if (strncmp(e->d_name, prefix, sizeof prefix - 1) || part) continue;
    al_free(al_steal(&text));
    text = al_asprintf("%s/%s was set aside; a new registry took over the lanes that had a directory.", d->home.root,
      e->d_name);
    if (!text) d->rc = -ENOMEM;
    else say(d, "damaged registry", "skipped", text, "Its histories are in there. Remove it, with its -wal and -shm, when"
      " they are no longer wanted. When that comes again and again, look for faults of the disk.");
  }
  closedir(dir);
}

/* Lanes that no destroy could prove to be gone: each with the reason, which names what is left. */
static void
check_stuck(doctor_t *d) {
  al_val_t *stuck = NULL;
  al_err_t err = {0};
  AL_AUTO_FREE char *text = NULL;

  if (!d->home_usable) return;
  int rc = al_registry_stuck(&d->home, &stuck, &err);
  if (rc == -ENOMEM) d->rc = rc;
  if (rc) return; /* the registry has been reported */
  if (stuck->len == 0) say(d, "stuck lanes", "found", "There is none: every lane that ended is proven to be gone.", NULL);
  for (size_t i = 0; i < stuck->len && !d->rc; i++) {
    const al_val_t *v = stuck->items[i];
    al_free(al_steal(&text));
    text = al_asprintf("%s: %s", al_val_get(v, "name")->text, al_val_get(v, "reason")->text);
    if (!text) d->rc = -ENOMEM;
    else say(d, "stuck lanes", "unsafe", text, "Run `agent-lane reap`, which tries again. When the same is left: end the "
      "processes that the reason names, or make its directory removable, then reap again (`agent-lane inspect NAME`).");
  }
  al_val_free(stuck);
}

/* Against the default of memoryGiB; a lane with more than there is is refused. */
static void
check_memory(doctor_t *d) {
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  char text[160];

  if (pages <= 0 || size <= 0) {
    say(d, "memory", "skipped", "It cannot be told how much there is.", NULL);
    return;
  }
  double gib = (double) pages * (double) size / (double) (1ull << 30);
  bool fits = gib >= MEMORY_DEFAULT_GIB;
  snprintf(text, sizeof text, "%.1f GiB in all; a lane has %d GiB unless memoryGiB says otherwise%s", gib,
    MEMORY_DEFAULT_GIB, fits ? "" : ", which is refused here: set memoryGiB");
  say(d, "memory", fits ? "found" : "skipped", text, NULL);
}

static void
check_room(doctor_t *d) {
  struct statvfs vfs;
  char text[128];

  if (!d->home_usable || statvfs(d->home.root, &vfs)) {
    say(d, "disk space", "skipped", "The home cannot be used.", NULL);
    return;
  }
  uint64_t room = (uint64_t) vfs.f_bavail * vfs.f_frsize;
  snprintf(text, sizeof text, "%.1f GiB free in the home", (double) room / (double) (1ull << 30));
  bool enough = room >= ROOM_LEAST;
  say(d, "disk space", enough ? "found" : "missing", text,
    enough ? NULL : "Free at least 2 GiB: a lane's disk grows with what is written in it.");
}

int
al_doctor_run(const al_doctor_opts_t *opts, al_val_t **out, al_err_t *err) {
  doctor_t d = {.opts = opts, .ok = true, .checks = al_val_list()};
  al_val_t *report = al_val_map();

  if (!d.checks || !report) d.rc = -ENOMEM;
  if (!d.rc) {
    check_platform(&d);
    check_home(&d);
    check_registry(&d);
    if (!d.rc) check_damaged(&d);
    if (!d.rc) check_stuck(&d);
    check_lima(&d);
    if (d.linux_host) check_qemu(&d, strcmp(d.arch, "aarch64") == 0 ? "qemu-system-aarch64" : "qemu-system-x86_64");
    if (d.linux_host) check_qemu(&d, "qemu-img");
    check_plain(&d, "ssh");
    check_plain(&d, "ssh-keygen");
    check_plain(&d, "git");
    if (d.linux_host) check_kvm(&d);
    check_image(&d);
    check_memory(&d);
    check_room(&d);
  }
  if (!d.rc) d.rc = al_val_set(report, "ok", al_val_bool(d.ok));
  if (!d.rc) {
    d.rc = al_val_set(report, "checks", d.checks);
    d.checks = NULL; /* taken, also on failure */
  }
  if (d.rc) {
    al_val_free(report);
    al_val_free(d.checks);
    return al_err_set(err, -ENOMEM, "Out of memory.");
  }
  *out = report;
  return 0;
}
