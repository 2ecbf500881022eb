/* SPDX-License-Identifier: Apache-2.0 */
/* A fresh home for run manifests, and the path of the first one. */
#ifndef AL_RUN_FIXTURE_H
#define AL_RUN_FIXTURE_H

#include "run_make.h"

static char dir[64];
static al_home_t home;
static char path[AL_RUN_PATH_MAX];

AL_TEST_FN int
setup(void **state) {
  al_err_t err = {0};
  (void) state;
  umask(022);
  al_test_dir(dir);
  if (al_home_open(al_test_path(dir, "h"), &home, &err)) fail_msg("%s", err.msg);
  run_file(&home, NAME, path);
  return 0;
}

AL_TEST_FN int
teardown(void **state) {
  (void) state;
  al_test_dir_remove(dir);
  return 0;
}

#endif
