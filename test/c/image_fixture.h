/* SPDX-License-Identifier: Apache-2.0 */
/* A home with an empty store, images of a few bytes, and what the tests of the store ask about it. */
#ifndef AL_IMAGE_FIXTURE_H
#define AL_IMAGE_FIXTURE_H

#include "al_test.h"
#include "image.h"
#include "image_int.h"
#include "image_make.h"
#include <dirent.h>

static char dir[64];
static al_home_t home;

AL_TEST_FN const char *
in(const char *name) {
  return al_test_path(dir, name);
}

AL_TEST_FN int
setup(void **state) {
  al_err_t err = {0};
  (void) state;
  umask(022);
  al_test_dir(dir);
  if (al_home_open(in("h"), &home, &err)) fail_msg("%s", err.msg);
  return 0;
}

AL_TEST_FN int
teardown(void **state) {
  (void) state;
  al_test_dir_remove(dir);
  return 0;
}

/* Names in a directory that do not begin with `except`. */
AL_TEST_FN int
entries(const char *path, const char *except) {
  DIR *d = opendir(path);
  struct dirent *e;
  int n = 0;
  assert_non_null(d);
  while ((e = readdir(d))) {
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    n += !except || strncmp(e->d_name, except, strlen(except)) != 0;
  }
  closedir(d);
  return n;
}

/* An image whose disk is nothing but a header, so that every byte of it can be tried. */
AL_TEST_FN void
make_tiny(const char *to, const parts_t *change) {
  uint8_t header[112] = "QFI\xfb\0\0\0\3";
  char path[4200], text[8192], *at;
  header[27] = 1;
  header[103] = 104;
  make_image(to, NULL);
  snprintf(path, sizeof path, "%s/disk.qcow2", to);
  FILE *f = fopen(path, "we");
  assert_int_equal(fwrite(header, 1, sizeof header, f), sizeof header);
  assert_int_equal(fclose(f), 0);
  make_manifest(to, change);
  snprintf(path, sizeof path, "%s/manifest.json", to);
  char *old = NULL;
  assert_int_equal(al_plat_read_file(AT_FDCWD, path, 8000, &old, NULL), 0);
  snprintf(text, sizeof text, "%s", old);
  al_free(old);
  at = strstr(text, "\"size\":3145728");
  assert_non_null(at);
  memcpy(at, "\"size\":    112", 14);
  al_test_write(to, "manifest.json", text);
}

AL_TEST_FN void
import_from(const char *from, al_image_t *out) {
  al_err_t err = {0};
  if (al_image_import(&home, from, NULL, NULL, out, &err)) fail_msg("%s", err.msg);
}

#define SIGNATURE \
  "untrusted comment: signature from minisign secret key\n" \
  "RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n" \
  "trusted comment: timestamp:1556193335\tfile:manifest.json\n" \
  "y/rUw2y8/hOUYjZU71eHp/Wo1KZ40fGy2VJEDl34XMJM+TX48Ss/17u3IvIfbVR1FkZZSNCisQbuQY+bHwhEBg==\n"

#endif
