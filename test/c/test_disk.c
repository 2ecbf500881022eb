/* SPDX-License-Identifier: Apache-2.0 */
/* A home on a disk that is full, read-only, or somebody else's: each write of a lane fails once. The disk is a tmpfs in
 * a mount namespace of this test, which only root can make: otherwise those tests are skipped. */
#include "engine_test.h"
#include "image.h"
#include "run_make.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/statvfs.h>

#define PLENTY_KIB (400ull << 10)

static char disk[64]; /* "" when there is none */
static int helper = -1;

/* ---- the part that stays root: mounts, and files of another owner ---- */

typedef struct order_s {
  /* 's' sets the disk's size; 'r' makes a directory read-only, 'w' undoes it; 'c' gives a file to root, 'm' to us */
  char what;
  char path[300];
} order_t;

static int
obey(const order_t *o) {
  switch (o->what) {
    case 'r':
      if (mount(o->path, o->path, NULL, MS_BIND, NULL)) return errno;
      return mount(NULL, o->path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) ? errno : 0;
    case 'w': return umount2(o->path, MNT_DETACH) ? errno : 0;
    case 's': return mount(NULL, disk, NULL, MS_REMOUNT, o->path) ? errno : 0;
    case 'c': return lchown(o->path, 0, 0) ? errno : 0;
    case 'm': return lchown(o->path, NOBODY, NOBODY) ? errno : 0;
    default: return EINVAL;
  }
}

static void
serve(int fd) {
  order_t o;
  while (read(fd, &o, sizeof o) == sizeof o) {
    int rc = obey(&o);
    if (write(fd, &rc, sizeof rc) != sizeof rc) break;
  }
  umount2(disk, MNT_DETACH);
  rmdir(disk);
  _exit(0);
}

static void
order(char what, const char *fmt, const char *name) {
  order_t o = {.what = what};
  int rc;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  snprintf(o.path, sizeof o.path, fmt, stage.home, name);
#pragma GCC diagnostic pop
  assert_int_equal(write(helper, &o, sizeof o), sizeof o);
  assert_int_equal(read(helper, &rc, sizeof rc), sizeof rc);
  if (rc) fail_msg("%c %s: %s", what, o.path, strerror(rc));
}

/* While this is still root. */
static void
make_disk_place(void) {
  int fds[2];
  if (geteuid() != 0 || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return;
  snprintf(disk, sizeof disk, "/tmp/al-disk-XXXXXX");
  if (!mkdtemp(disk) || mount("tmpfs", disk, "tmpfs", 0, "size=400m,mode=0755,uid=65534,gid=65534")) {
    rmdir(disk);
    disk[0] = 0;
    return;
  }
  al_test_write(disk, "seed", "x"); /* a tmpfs of size 0 would be one without a limit */
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    close(fds[0]);
    if (fork() == 0) serve(fds[1]); /* a grandchild: the children of this process are counted */
    _exit(0);
  }
  waitpid(pid, NULL, 0);
  close(fds[1]);
  helper = fds[0];
}

/* Leaves `pages` of 4 KiB free; -1: plenty. */
static void
leave_room(int pages) {
  struct statvfs v;
  order_t o = {.what = 's'};
  int rc;
  assert_int_equal(statvfs(disk, &v), 0);
  unsigned long long used = (unsigned long long) (v.f_blocks - v.f_bfree) * v.f_frsize / 1024;
  snprintf(o.path, sizeof o.path, "size=%lluk", pages < 0 ? PLENTY_KIB : used + 4ull * (unsigned) pages);
  assert_int_equal(write(helper, &o, sizeof o), sizeof o);
  assert_int_equal(read(helper, &rc, sizeof rc), sizeof rc);
  assert_int_equal(rc, 0);
}

/* ---- asking ---- */

static al_err_t
ask(const char *op, al_val_t *params) {
  al_err_t err = {0};
  assert_int_equal(stage_open(), 0);
  if (params) err = stage_wait(stage_post(op, params))->err;
  else if (stage_create(&err) == 0) err.code = stage_close_lane();
  stage_close();
  return err;
}

static al_err_t
list(void) {
  return ask("list", stage_map("home", stage.home, NULL));
}

static al_err_t
import(void) {
  return ask("imageImport", stage_map("home", stage.home, "from", al_test_path(stage.dir, "image"), NULL));
}

static void
assert_says(const char *what, int n, const al_err_t *err, const char *word) {
  bool wrong = err->code == AL_EINTERNAL || err->code == AL_EREGISTRY_DAMAGED || !al_err_cure_text(err)[0];
  bool said = strcasestr(err->msg, word) || (strcmp(word, "space") == 0 && strstr(err->msg, "is full"));
  if (wrong || !said)
    fail_msg("%s %d: %s: %s (%s)", what, n, al_err_name(err->code), err->msg, al_err_cure_text(err));
}

static void
assert_good(const al_err_t *err) {
  if (err->code) fail_msg("%s: %s", al_err_name(err->code), err->msg);
}

static int
setup(void **state) {
  (void) state;
  stage_make();
  if (disk[0]) snprintf(stage.home, sizeof stage.home, "%s/h", disk);
  return 0;
}

static int
teardown(void **state) {
  (void) state;
  if (disk[0]) {
    leave_room(-1);
    int fd = open(disk, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void) al_plat_remove_tree(fd, "h");
    close(fd);
  }
  stage_remove();
  return 0;
}

/* ---- full ---- */

/* A home that is made: directories, registry. */
static void
test_disk_full_for_a_new_home(void **state) {
  (void) state;
  int n = 0, fd = open(disk, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  al_err_t err;
  if (!disk[0]) skip();
  do {
    int rc = al_plat_remove_tree(fd, "h");
    assert_true(rc == 0 || rc == -ENOENT);
    leave_room(n);
    err = list();
    if (err.code) assert_says("a new home", n, &err, "space");
    n++;
  } while (err.code);
  close(fd);
  assert_true(n > 3);
}

static int rows_before;

/* A lane, from the first write to the last: programs, registry, instance directory. */
static void
test_disk_full_for_a_lane(void **state) {
  (void) state;
  int n = 0, failed = 0, fds;
  al_err_t err = {.code = 1};
  if (!disk[0]) skip();
  err = list();
  assert_good(&err);
  err = import();
  assert_good(&err);
  fds = stage_fds();
  for (err.code = 1; err.code; n += 5) {
    leave_room(n);
    assert_int_equal(stage_open(), 0);
    bool good = stage_create(&err) == 0 && (err.code = stage_close_lane()) == 0;
    leave_room(-1);
    if (!good) { /* a row that could not be closed is made up for */
      al_err_t reaped = stage_wait(stage_post("reap", stage_map("home", stage.home, NULL)))->err;
      assert_good(&reaped);
    }
    stage_close();
    if (good) break;
    failed++;
    assert_says("a lane", n, &err, "space");
    stage_clean("a lane on a full disk", fds);
    err.code = 1;
  }
  printf("a lane: %d creates failed on a full disk\n", failed);
  assert_true(failed > 4);
  rows_before = stage_sql("SELECT count(*) FROM lanes");
  assert_true(rows_before > 0);
}

static al_run_check_t
check_manifest(char path[AL_RUN_PATH_MAX]) {
  al_home_t home;
  al_err_t err = {0};
  assert_int_equal(al_home_open(stage.home, &home, &err), 0);
  al_run_path(&home, stage.name, path);
  return run_check_file(&home, stage.name);
}

static int warnings;

static void
count_warnings(const char *type) {
  warnings += strcmp(type, "warning") == 0;
}

static off_t
pad_manifest(const al_home_t *home, const char *path, size_t n) {
  struct stat st;
  char pad[8192];
  memset(pad, 'x', n);
  pad[n] = 0;
  al_val_t *v = run_event(ATTACHED);
  assert_int_equal(al_val_set(v, "program", al_val_text(pad)), 0);
  const al_val_t *const events[] = {v};
  assert_int_equal(al_run_add(home, stage.name, events, 1, NULL), 0);
  al_val_free(v);
  assert_int_equal(stat(path, &st), 0);
  return st.st_size;
}

/* Its last page is full, so that the next line needs one. */
static void
fill_page_of_manifest(const char *path) {
  al_home_t home;
  struct stat st;
  assert_int_equal(al_home_open(stage.home, &home, NULL), 0);
  assert_int_equal(stat(path, &st), 0);
  off_t first = pad_manifest(&home, path, 0), line = first - st.st_size;
  off_t left = 4096 - (first + line) % 4096;
  assert_int_equal(pad_manifest(&home, path, (size_t) left) % 4096, 0);
}

/* A lane ends whatever of its manifest can be written; the sweep makes up for it. */
static void
test_disk_full_when_a_lane_ends(void **state) {
  (void) state;
  char path[AL_RUN_PATH_MAX];
  if (!disk[0]) skip();
  al_err_t err = list();
  assert_good(&err);
  int fds = stage_fds();
  assert_int_equal(stage_open(), 0);
  assert_int_equal(stage_create(&err), 0);
  (void) check_manifest(path);
  fill_page_of_manifest(path);
  leave_room(0);
  warnings = 0;
  stage.on_lane = count_warnings;
  assert_int_equal(stage_close_lane(), 0);
  stage.on_lane = NULL;
  assert_true(warnings >= 1); /* the end finds room again: the lane's directory is gone by then */
  leave_room(-1);
  err = stage_wait(stage_post("reap", stage_map("home", stage.home, NULL)))->err;
  assert_good(&err);
  stage_close();
  al_run_check_t c = check_manifest(path);
  assert_true(c.ended && c.line == 0);
  assert_int_equal(c.events, 4);
  stage_clean("a lane that ended on a full disk", fds);
}

static int fill_at;

static int
on_progress(void *data, uint64_t done, uint64_t total) {
  (void) done, (void) total, (void) data;
  if (fill_at-- == 0) leave_room(0);
  return 0;
}

/* An import that finds enough room at first. */
static void
test_disk_full_during_an_import(void **state) {
  (void) state;
  static const char *const none[] = {NULL};
  al_home_t home;
  al_image_t image;
  al_err_t err = {0};
  int failed = 0;
  if (!disk[0]) skip();
  assert_int_equal(al_home_open(stage.home, &home, &err), 0);
  for (int n = 0;; n++) {
    fill_at = n;
    int rc = al_image_import(&home, al_test_path(stage.dir, "image"), on_progress, NULL, &image, &err);
    bool filled = fill_at < 0;
    leave_room(-1);
    if (!filled) {
      assert_int_equal(rc, 0);
      break;
    }
    if (rc == 0) { /* the last bytes were written before it was full */
      char dir[400];
      snprintf(dir, sizeof dir, "%s/%s", home.images, image.id);
      int fd = open(home.images, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      assert_int_equal(al_plat_remove_tree(fd, image.id), 0);
      close(fd);
      continue;
    }
    failed++;
    assert_says("import", n, &err, "space");
    assert_int_equal(stage_count(home.images, none, NULL, 0), 0);
  }
  assert_true(failed > 1);
  leave_room(100);
  err = import(); /* there already: no room is needed */
  assert_good(&err);
}

/* The old file stays as it was, whole. */
static void
test_disk_full_for_a_copy_out(void **state) {
  (void) state;
  static const char *const known[] = {"file", "seed", NULL};
  char target[128], text[64] = "";
  al_err_t err = {.code = 1};
  int failed = 0;
  if (!disk[0]) skip();
  snprintf(stage.home, sizeof stage.home, "%s/h", stage.dir);
  snprintf(target, sizeof target, "%s/file", disk);
  assert_int_equal(stage_open(), 0);
  assert_int_equal(stage_create(NULL), 0);
  al_test_write(disk, "file", "old");
  for (int n = 0; err.code; n += 100) {
    leave_room(n);
    err = stage_ask("copyOut", stage_map("hostPath", target, "guestPath", al_test_path(stage.dir, "image/disk.qcow2"),
            NULL))->err;
    if (!err.code) break;
    failed++;
    assert_int_equal(err.code, AL_EHOST_DISK_FULL);
    assert_says("copy out", n, &err, "space");
    FILE *f = fopen(target, "re");
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_string_equal(text, "old");
    assert_int_equal(stage_count(disk, known, NULL, 0), 0);
  }
  assert_true(failed > 3);
  assert_int_equal(stage_close_lane(), 0);
  stage_close();
  unlink(target);
}

/* ---- read-only ---- */

/* The whole home, at the first touch of it by each request; then parts of it while the registry is open. */
static void
test_disk_read_only(void **state) {
  (void) state;
  static const char *const parts[] = {"lima", "run", "bin", "images", "runs"};
  al_err_t err;
  int fds;
  if (!disk[0]) skip();
  mkdir(stage.home, 0700);
  order('r', "%s%s", "");
  err = list(); /* nothing is there yet */
  assert_int_equal(err.code, -EROFS);
  assert_says("a new home", 0, &err, "read-only");
  order('w', "%s%s", "");
  err = ask("create", NULL);
  assert_good(&err);
  int rows = stage_sql("SELECT count(*) FROM lanes");
  fds = stage_fds();
  order('r', "%s%s", "");
  for (int i = 0; i < 3; i++) {
    err = i == 0 ? list() : i == 1 ? ask("create", NULL) : ask("reap", stage_map("home", stage.home, NULL));
    assert_int_equal(err.code, -EROFS);
    assert_true(strstr(al_err_cure_text(&err), "writable") != NULL);
  }
  order('w', "%s%s", "");
  stage_clean("a read-only home", fds);
  assert_int_equal(stage_sql("SELECT count(*) FROM lanes"), rows);
  for (size_t i = 0; i < 5; i++) {
    assert_int_equal(stage_open(), 0);
    order('r', "%s/%s", parts[i]);
    stage_create(&err);
    if (!err.code) assert_int_equal(stage_close_lane(), 0);
    if (err.code) assert_says(parts[i], 0, &err, "read-only");
    else assert_true(i >= 1 && i < 4); /* keys, programs and the image are there already; each lane has a manifest */
    order('w', "%s/%s", parts[i]);
    stage_close();
    stage_clean(parts[i], fds);
  }
  err = ask("create", NULL);
  assert_good(&err);
}

/* ---- somebody else's ---- */

static void
test_disk_home_of_a_wrong_owner_or_mode(void **state) {
  (void) state;
  static const struct {
    const char *name;
    mode_t mode; /* 0: another owner */
    int code;
  } cases[] = {{"", 0770, AL_EHOME_UNSAFE}, {"", 0707, AL_EHOME_UNSAFE}, {"", 0, AL_EHOME_UNSAFE},
    {"/lima", 0750, AL_EHOME_UNSAFE}, {"/lima", 0, AL_EHOME_UNSAFE}, {"/lima/_config", 0777, AL_EHOME_UNSAFE},
    {"/runs", 0755, AL_EHOME_UNSAFE}, {"/bin", 0755, AL_EHOME_UNSAFE}, {"/run", 0, AL_EHOME_UNSAFE}, {"/images", 0707, AL_EHOME_UNSAFE},
    {"/registry.db", 0644, -EPERM}, {"/registry.db", 0, -EPERM}};
  char path[300];
  al_err_t err = list();
  assert_good(&err);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    snprintf(path, sizeof path, "%s%s", stage.home, cases[i].name);
    bool is_file = strstr(path, ".db") != NULL;
    if (!cases[i].mode && helper < 0) continue;
    if (cases[i].mode) assert_int_equal(chmod(path, cases[i].mode), 0);
    else order('c', "%s%s", cases[i].name);
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    for (int create = 0; create < 2; create++) {
      err = create ? ask("create", NULL) : list();
      if (err.code != cases[i].code) fail_msg("%s: %s: %s", path, al_err_name(err.code), err.msg);
      assert_true(strstr(err.msg, path) && al_err_cure_text(&err)[0]);
    }
    assert_int_equal(stat(path, &after), 0); /* refused, not repaired */
    assert_int_equal(after.st_mode, before.st_mode);
    if (!cases[i].mode) order('m', "%s%s", cases[i].name);
    else assert_int_equal(chmod(path, is_file ? 0600 : 0700), 0);
    err = list();
    assert_good(&err);
  }
}

int
main(int argc, char **argv) {
  int code;
  if (stand_in(argc, argv, &code)) return code;
  make_disk_place();
  if (!stage_start()) return 1;
  if (!disk[0]) fprintf(stderr, "SKIPPED: only root can mount a small disk\n");
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_disk_full_for_a_new_home),
    T(test_disk_full_for_a_lane),
    T(test_disk_full_when_a_lane_ends),
    T(test_disk_full_during_an_import),
    T(test_disk_full_for_a_copy_out),
    T(test_disk_read_only),
    T(test_disk_home_of_a_wrong_owner_or_mode),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
