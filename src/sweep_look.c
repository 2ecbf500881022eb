/* SPDX-License-Identifier: Apache-2.0 */
/* Sweep: one look at the directories below the home and at this user's processes. */
#include "sweep.h"
#include "mem.h"
#include "run_log.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TMP "_tmp."
#define NAMELESS_MS 500 /* who has no command line for longer wants none */
#define PAUSE_US 5000

typedef struct looking_s {
  const al_home_t *home;
  al_sweep_look_t *look;
  size_t nameless;
} looking_t;

bool
al_sweep_said(const al_sweep_look_t *look, const char *name) {
  for (size_t i = 0; i < look->said->len; i++)
    if (strcmp(look->said->items[i]->text, name) == 0) return true;
  return false;
}

/* ---- directories ---- */

/* 16 hexadecimal digits between two texts, and nothing else. */
static bool
is_random(const char *name, const char *before, const char *after) {
  size_t n = strlen(before);
  if (strncmp(name, before, n) || strspn(name + n, "0123456789abcdef") != 16) return false;
  return strcmp(name + n + 16, after) == 0;
}

/* A file that is written aside before it takes its place (al_plat_write_replace). */
static bool
is_aside(const char *name) {
  return is_random(name, ".al-", ".tmp");
}

static int
add_temp(al_sweep_look_t *look, const char *dir, const char *name) {
  char path[AL_HOME_MAX + 300];
  int n = snprintf(path, sizeof path, "%s/%s", dir, name);
  return n < 0 || (size_t) n >= sizeof path ? 0 : al_val_add(look->temps, al_val_text(path));
}

static int
in_lima(al_sweep_look_t *look, const char *name) {
  bool tmp = strncmp(name, TMP, sizeof TMP - 1) == 0 && al_name_valid(name + sizeof TMP - 1);
  return tmp ? add_temp(look, "lima", name) : 0;
}

static int
in_run(al_sweep_look_t *look, const char *name) {
  /* The key pair's and replaced files' are ours; the directory in which limactl makes cidata.iso is its own name for it
   * in the TMPDIR that we give it. */
  bool known = is_random(name, "key-", "") || is_aside(name) || strncmp(name, "diskfs_iso", 10) == 0;
  return known ? add_temp(look, "run", name) : 0;
}

static int
each_entry(const char *path, al_sweep_look_t *look, int (*cb)(al_sweep_look_t *look, const char *name)) {
  DIR *dir = opendir(path);
  int rc = 0;
  if (!dir) return 0; /* what is left over there is the next sweep's */
  for (struct dirent *e; rc == 0 && (e = readdir(dir));) rc = cb(look, e->d_name);
  closedir(dir);
  return rc;
}

static int
in_bin(looking_t *l) {
  DIR *bin = opendir(l->home->bin);
  int rc = 0;
  if (!bin) return 0;
  for (struct dirent *e; rc == 0 && (e = readdir(bin));) {
    char path[AL_HOME_MAX + 300], rel[300];
    if (strlen(e->d_name) != 64 || strspn(e->d_name, "0123456789abcdef") != 64) continue;
    snprintf(rel, sizeof rel, "bin/%s", e->d_name);
    snprintf(path, sizeof path, "%s/%s", l->home->bin, e->d_name);
    DIR *dir = opendir(path);
    for (struct dirent *f; dir && rc == 0 && (f = readdir(dir));)
      if (is_aside(f->d_name)) rc = add_temp(l->look, rel, f->d_name);
    if (dir) closedir(dir);
  }
  closedir(bin);
  return rc;
}

/* ---- processes ---- */

static int
add_proc(looking_t *l, const al_ident_t *id, const char *name, const char *cmdline, size_t len) {
  char dir[AL_HOME_MAX + AL_NAME_LEN + 2];
  al_sweep_look_t *look = l->look;
  snprintf(dir, sizeof dir, "%s/%s", l->home->lima, name);
  al__lima_kind_t kind = al__lima_classify(dir, name, cmdline, len);
  /* A shell or a start says the name alone, which may be of another home. */
  bool here = kind == AL__PROC_HOSTAGENT || kind == AL__PROC_WARDEN || kind == AL__PROC_QEMU ||
    kind == AL__PROC_SSH_MASTER;
  if (!here) return 0;
  if (look->count == look->cap) {
    size_t cap = look->cap ? 2 * look->cap : 16;
    al_sweep_proc_t *procs = al_reallocarray(look->procs, cap, sizeof *procs);
    if (!procs) return -ENOMEM;
    look->procs = procs;
    look->cap = cap;
  }
  al_sweep_proc_t *p = &look->procs[look->count++];
  *p = (al_sweep_proc_t) {.id = *id, .kind = kind};
  memcpy(p->name, name, sizeof p->name);
  return 0;
}

/* Every name of a lane in a command line counts, wherever it stands: too many are looked at closer, none is missed. */
static int
on_process(void *data, const al_ident_t *id, const char *cmdline, size_t len) {
  looking_t *l = data;
  char name[AL_NAME_LEN + 1];
  if (len == 0 && id->exe[0]) l->nameless++;
  for (const char *at = cmdline; al_name_next(&at, cmdline + len, name);) {
    int rc = al_sweep_said(l->look, name) ? 0 : al_val_add(l->look->said, al_val_text(name));
    bool listed = l->look->count && l->look->procs[l->look->count - 1].id.pid == id->pid;
    if (rc == 0 && !listed) rc = add_proc(l, id, name, cmdline, len);
    if (rc) return rc;
  }
  return 0;
}

/* Until one pass has found no process between two programs, which has no command line for that moment. */
static int
look_at_processes(looking_t *l) {
  uint64_t end = al_plat_mono_ms() + NAMELESS_MS;
  for (;;) {
    l->nameless = l->look->count = 0;
    int rc = al_plat_each_process(on_process, l);
    if (rc == -ENOMEM) return rc;
    if (rc) l->look->whole = false;
    if (rc || l->nameless == 0 || al_plat_mono_ms() >= end) return 0;
    usleep(PAUSE_US);
  }
}

int
al_sweep_look(const al_home_t *home, al_sweep_look_t *out) {
  looking_t l = {.home = home, .look = out};
  out->whole = true;
  out->said = al_val_list();
  out->temps = al_val_list();
  out->runs = al_val_list();
  if (!out->said || !out->temps || !out->runs) return -ENOMEM;
  int rc = al_run_open_names(home, out->runs);
  if (!rc) rc = look_at_processes(&l);
  if (!rc) rc = each_entry(home->lima, out, in_lima);
  if (!rc) rc = each_entry(home->run, out, in_run);
  return rc ? rc : in_bin(&l);
}

void
al_sweep_look_free(al_sweep_look_t *look) {
  al_val_free(look->said);
  al_val_free(look->temps);
  al_val_free(look->runs);
  al_free(look->procs);
  memset(look, 0, sizeof *look);
}
