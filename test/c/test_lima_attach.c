/* SPDX-License-Identifier: Apache-2.0 */
/* The secret of a lane for somebody who attaches: only from the directory that was sealed for the registry's row. */
#include "al_test.h"
#include "lima.h"
#include <inttypes.h>
#include <sys/stat.h>

#define NAME "agent-lane-00000001-0000abcd"
#define SECRET "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static char dir[64];
static al_home_t home;

static void
put(const char *path, const char *text) {
  char file[256];
  snprintf(file, sizeof file, "%s/%s", dir, path);
  FILE *f = fopen(file, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void
seal(const char *name, int64_t row, int64_t ino_off) {
  char path[256], text[400];
  struct stat st;
  snprintf(path, sizeof path, "%s/" NAME, dir);
  assert_int_equal(stat(path, &st), 0);
  snprintf(text, sizeof text, "{\"name\":\"%s\",\"row\":%" PRId64 ",\"dev\":%ju,\"ino\":%jd,\"created\":1}\n", name,
    row, (uintmax_t) st.st_dev, (intmax_t) st.st_ino + ino_off);
  put(NAME "/agent-lane.json", text);
}

static int
setup(void **state) {
  (void) state;
  char path[256];
  al_test_dir(dir);
  memset(&home, 0, sizeof home);
  snprintf(home.lima, sizeof home.lima, "%s", dir);
  snprintf(path, sizeof path, "%s/" NAME, dir);
  assert_int_equal(mkdir(path, 0700), 0);
  seal(NAME, 7, 0);
  put(NAME "/lima.yaml", "plain: true\nprovision:\n- mode: \"data\"\n  content: \"" SECRET "\"\n");
  return 0;
}

static int
teardown(void **state) {
  (void) state;
  al_test_dir_remove(dir);
  return 0;
}

static int
read_it(const char *name, int64_t row, char proof[65], al_err_t *err) {
  memset(err, 0, sizeof *err);
  proof[0] = 0;
  return al_lima_read_proof(&home, name, row, proof, err);
}

static void
test_read_proof_of_the_sealed_directory(void **state) {
  (void) state;
  char proof[65];
  al_err_t err;
  assert_int_equal(read_it(NAME, 7, proof, &err), 0);
  assert_string_equal(proof, SECRET);
}

static void
test_read_proof_refuses_what_is_not_the_rows(void **state) {
  (void) state;
  char proof[65], path[256], other[256];
  al_err_t err;
  assert_int_equal(read_it(NAME, 8, proof, &err), AL_ENO_SUCH_LANE); /* of an earlier row of that name */
  seal(NAME, 7, 1);                                                  /* a copy of the directory */
  assert_int_equal(read_it(NAME, 7, proof, &err), AL_ENO_SUCH_LANE);
  seal("agent-lane-00000001-0000abce", 7, 0);
  assert_int_equal(read_it(NAME, 7, proof, &err), AL_ENO_SUCH_LANE);
  put(NAME "/agent-lane.json", "no json");
  assert_true(read_it(NAME, 7, proof, &err) < 0);
  assert_int_equal(read_it("../etc", 7, proof, &err), AL_EBAD_NAME);
  assert_int_equal(read_it("agent-lane-00000001-0000abcf", 7, proof, &err), -ENOENT);
  seal(NAME, 7, 0);
  snprintf(path, sizeof path, "%s/" NAME, dir);
  snprintf(other, sizeof other, "%s/moved", dir);
  assert_int_equal(rename(path, other), 0);
  assert_int_equal(symlink("moved", path), 0); /* nothing is followed */
  assert_true(read_it(NAME, 7, proof, &err) < 0);
  assert_string_equal(proof, "");
}

static void
test_read_proof_wants_the_whole_secret(void **state) {
  (void) state;
  static const char *const texts[] = {
    "", "provision:\n", "x: 1\n  content: \"0123\"\n", "x: 1\n  content: \"" SECRET "0\"\n",
    "x: 1\n  content: \"g123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"\n"};
  char proof[65];
  al_err_t err;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    put(NAME "/lima.yaml", texts[i]);
    assert_true(read_it(NAME, 7, proof, &err) < 0);
    assert_string_equal(proof, "");
    assert_null(strstr(err.msg, "0123")); /* no part of it in words */
  }
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_read_proof_of_the_sealed_directory, setup, teardown),
    cmocka_unit_test_setup_teardown(test_read_proof_refuses_what_is_not_the_rows, setup, teardown),
    cmocka_unit_test_setup_teardown(test_read_proof_wants_the_whole_secret, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
