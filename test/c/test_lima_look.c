/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at lanes from outside: what they take, what was written down of them, and their logs as hostile bytes. */
#include "lima_fixture.h"
#include "lima_look.h"

static const char *
lane(const char *file) {
  return in("h/lima/" NAME "/%s", file);
}

static void
fill_file(const char *path, size_t bytes) {
  FILE *f = fopen(path, "we");
  assert_non_null(f);
  for (size_t i = 0; i < bytes; i++) assert_int_equal(fputc('x', f), 'x');
  assert_int_equal(fclose(f), 0);
}

/* A process with the lane's QEMU words. */
static pid_t
pretend_qemu(const char *name) {
  char words[512];
  snprintf(words, sizeof words, "%s/%s/qemu.pid", home.lima, name);
  pid_t pid = al_test_fork();
  if (pid == 0) {
    execl("/bin/sh", "qemu-system-x86_64", "-c", "kill -STOP $$", "-pidfile", words, (char *) NULL);
    _exit(127);
  }
  int status;
  assert_int_equal(waitpid(pid, &status, WUNTRACED), pid); /* it has become the shell by then */
  assert_true(WIFSTOPPED(status));
  return pid;
}

static void
reap(pid_t pid) {
  kill(pid, SIGKILL);
  assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void
test_disk_counts_blocks_not_lengths(void **state) {
  al_lane_disk_t d;
  (void) state;
  assert_int_equal(al_lima_disk(&home, NAME, &d), 0);
  assert_false(d.there);
  build();
  assert_int_equal(al_lima_disk(&home, NAME, &d), 0);
  uint64_t before = d.all;
  assert_true(d.there && d.logs == 0);
  assert_int_equal(truncate(lane("disk"), 1 << 30), 0);
  assert_int_equal(al_lima_disk(&home, NAME, &d), 0);
  assert_true(d.all < before + (64u << 10)); /* a hole of 1 GiB takes nothing */
  fill_file(lane("ha.stderr.log"), 300000);
  assert_int_equal(symlink("/usr/bin", lane("elsewhere")), 0);
  assert_int_equal(al_lima_disk(&home, NAME, &d), 0);
  assert_true(d.logs >= 300000 && d.all >= before + 300000 && d.all < before + (1u << 20));
  assert_int_equal(al_lima_disk(&home, "agent-lane-0123abcd-0123abc/", &d), -EINVAL);
}

static void
test_cut_logs_go_on_where_they_were(void **state) {
  al_lane_disk_t d;
  (void) state;
  build();
  FILE *agent = fopen(lane("ha.stderr.log"), "we"); /* as Lima opens it: no O_APPEND */
  assert_non_null(agent);
  for (int i = 0; i < 30000; i++) fputs("0123456789\n", agent);
  fflush(agent);
  assert_int_equal(al_lima_cut_logs(&home, NAME), 0);
  fputs("after\n", agent);
  assert_int_equal(fclose(agent), 0);
  assert_int_equal(al_lima_disk(&home, NAME, &d), 0);
  assert_true(d.logs < 65536);
  al_val_t *v = NULL;
  assert_int_equal(al_lima_logs(&home, NAME, 100, &v, NULL), 0);
  assert_int_equal(v->len, 1);
  const al_val_t *lines = al_val_get(v->items[0], "lines");
  assert_int_equal(lines->len, 1);
  assert_string_equal(lines->items[0]->text, "after");
  al_val_free(v);
  /* Nothing beside the lane is emptied by way of a link. */
  fill_file(in("%s", "precious"), 100);
  assert_int_equal(unlink(lane("ha.stderr.log")), 0);
  assert_int_equal(symlink(in("%s", "precious"), lane("ha.stderr.log")), 0);
  assert_true(al_lima_cut_logs(&home, NAME) < 0);
  struct stat st;
  assert_int_equal(stat(in("%s", "precious"), &st), 0);
  assert_int_equal(st.st_size, 100);
}

static void
test_look_knows_each_lane_by_its_own_process(void **state) {
  static const char other[] = "agent-lane-0123abcd-0123abce";
  al_look_t looks[3] = {{.name = NAME}, {.name = "agent-lane-0123abcd-0123abce"}, {.name = "agent-lane-zzzzzzzz-zzzzzzzz"}};
  (void) state;
  build();
  pid_t a = pretend_qemu(NAME), b = pretend_qemu(other);
  assert_int_equal(al_lima_look(&home, looks, 3), 0);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(looks[i].processes, 1);
    assert_true(looks[i].vm && looks[i].memory > 100000 && looks[i].memory < (64u << 20));
  }
  assert_true(looks[0].disk.there);
  assert_false(looks[1].disk.there);
  assert_int_equal(looks[2].processes, 0);
  assert_false(looks[2].vm);
  al_val_t *v = NULL;
  assert_int_equal(al_lima_processes(&home, NAME, &v, NULL), 0);
  assert_int_equal(v->len, 1);
  assert_int_equal(al_val_get(v->items[0], "pid")->i, a);
  assert_string_equal(al_val_get(v->items[0], "kind")->text, "qemu");
  al_val_free(v);
  reap(a), reap(b);
  assert_int_equal(al_lima_look(&home, looks, 3), 0);
  assert_int_equal(looks[0].processes, 0);
}

static const char *
setting(const al_val_t *v, const char *key) {
  const al_val_t *t = al_val_get(v, key);
  return t ? t->text : "";
}

static void
test_settings_are_named_and_the_secret_is_not(void **state) {
  al_val_t *v = NULL;
  (void) state;
  assert_int_equal(al_lima_settings(&home, NAME, &v, NULL), 0);
  assert_null(v);
  build();
  assert_int_equal(al_lima_settings(&home, NAME, &v, NULL), 0);
  assert_string_equal(setting(v, "cpus"), "3");
  assert_string_equal(setting(v, "memory"), "1536MiB");
  assert_string_equal(setting(v, "mounts"), "[]");
  assert_string_equal(setting(v, "images.kernel.cmdline"), "root=/dev/vda quiet");
  assert_string_equal(setting(v, "user.name"), "lane");
  assert_non_null(strstr(setting(v, "portForwards"), "ignore: true"));
  assert_string_equal(setting(v, "provision.path"), "/run/agent-lane/proof");
  AL_AUTO_FREE char *all = al_json_text(v);
  assert_null(strstr(all, "aaaaaaaa")); /* the secret is 64 of them */
  AL_AUTO_FREE char *file = slurp(lane("lima.yaml"));
  assert_non_null(strstr(file, "aaaaaaaa"));
  al_val_free(v);
}

static void
test_arguments_are_those_of_the_last_record(void **state) {
  al_val_t *v = NULL;
  (void) state;
  build();
  assert_int_equal(al_lima_argv(&home, NAME, &v, NULL), 0);
  assert_null(v);
  al_test_write(spec.dir, "warden.log",
    "warden: started\n{\"warden\":1,\"qemu\":2,\"argv\":[\"old\"]}\n"
    "{\"warden\":3,\"qemu\":4,\"argv\":[\"qemu\",\"-netdev\",\"user,restrict=on\"]}\nwarden: QEMU ended\n{\"warden\":5");
  assert_int_equal(al_lima_argv(&home, NAME, &v, NULL), 0);
  assert_int_equal(v->len, 3);
  assert_string_equal(v->items[2]->text, "user,restrict=on");
  al_val_free(v);
  al_test_write(spec.dir, "warden.log", "{\"warden\":1,\"argv\":\"no list\"}\n");
  assert_int_equal(al_lima_argv(&home, NAME, &v, NULL), 0);
  assert_null(v);
}

/* The lines of `file`, or NULL when it is left out. */
static const al_val_t *
lines_of(const al_val_t *v, const char *file) {
  for (size_t i = 0; i < v->len; i++)
    if (strcmp(al_val_get(v->items[i], "file")->text, file) == 0) return al_val_get(v->items[i], "lines");
  return NULL;
}

static void
test_logs_cannot_drive_a_terminal(void **state) {
  static const char text[] = "plain\r\n\x1b[2J\x1b]0;title\a\ttab \xc3\xa9 \xe2\x80\xae \xc2\x9b \xff\xfe\nlast";
  al_val_t *v = NULL;
  (void) state;
  build();
  al_test_write(spec.dir, "serial.log", text);
  assert_int_equal(al_lima_logs(&home, NAME, 10, &v, NULL), 0);
  const al_val_t *lines = lines_of(v, "serial.log");
  assert_int_equal(lines->len, 3);
  assert_string_equal(lines->items[0]->text, "plain");
  assert_string_equal(lines->items[1]->text,
    "\\x1b[2J\\x1b]0;title\\x07\ttab \xc3\xa9 \\xe2\\x80\\xae \\xc2\\x9b \\xff\\xfe");
  assert_string_equal(lines->items[2]->text, "last");
  al_val_free(v);
}

static void
test_logs_are_the_last_lines_of_plain_files(void **state) {
  al_val_t *v = NULL;
  static char text[40000];
  (void) state;
  build();
  size_t n = 0;
  for (int i = 1; i <= 5000; i++) n += (size_t) snprintf(text + n, sizeof text - n, "%d\n", i);
  al_test_write(spec.dir, "ha.stderr.log", text);
  memset(text, 'y', 10000);
  text[10000] = 0;
  al_test_write(spec.dir, "warden.log", text);
  assert_int_equal(symlink("/etc/passwd", lane("serial.log")), 0);
  assert_int_equal(mkfifo(lane("serialv.log"), 0600), 0); /* nobody writes into it: opening must not wait */
  assert_int_equal(al_lima_logs(&home, NAME, 3, &v, NULL), 0);
  const al_val_t *lines = lines_of(v, "ha.stderr.log");
  assert_int_equal(lines->len, 3);
  assert_string_equal(lines->items[0]->text, "4998");
  assert_string_equal(lines->items[2]->text, "5000");
  lines = lines_of(v, "warden.log");
  assert_int_equal(lines->len, 1);
  assert_true(lines->items[0]->len < AL_LOG_LINE_MAX + 40);
  assert_non_null(strstr(lines->items[0]->text, "(10000 bytes)"));
  assert_null(lines_of(v, "serial.log"));
  assert_null(lines_of(v, "serialv.log"));
  al_val_free(v);
  assert_int_equal(al_lima_logs(&home, "agent-lane-zzzzzzzz-zzzzzzzz", 3, &v, NULL), 0);
  assert_int_equal(v->len, 0);
  al_val_free(v);
}

static int
everything(void *data) {
  al_val_t *v[3] = {NULL};
  al_err_t err = {0};
  (void) data;
  int rc = al_lima_settings(&home, NAME, &v[0], &err);
  if (!rc) rc = al_lima_argv(&home, NAME, &v[1], &err);
  if (!rc) rc = al_lima_logs(&home, NAME, 5, &v[2], &err);
  for (int i = 0; i < 3; i++) al_val_free(v[i]);
  return rc;
}

static void
test_without_memory_nothing_is_left_out(void **state) {
  (void) state;
  build();
  al_test_write(spec.dir, "warden.log", "{\"warden\":3,\"qemu\":4,\"argv\":[\"qemu\",\"-m\",\"1\"]}\n");
  al_test_oom_each(everything, NULL);
}

int
main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
    TEST(test_disk_counts_blocks_not_lengths),
    TEST(test_cut_logs_go_on_where_they_were),
    TEST(test_look_knows_each_lane_by_its_own_process),
    TEST(test_settings_are_named_and_the_secret_is_not),
    TEST(test_arguments_are_those_of_the_last_record),
    TEST(test_logs_cannot_drive_a_terminal),
    TEST(test_logs_are_the_last_lines_of_plain_files),
    TEST(test_without_memory_nothing_is_left_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
