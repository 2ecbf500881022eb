/* SPDX-License-Identifier: Apache-2.0 */
/* The table of what is enforced: the same rows before a lane is there as of one that runs, and none says more than is so. */
#include "al_test.h"
#include "enforced.h"
#include <stdio.h>
#include <string.h>

static const char *const names[] = {
#define NAME(name, text) text,
  AL_PROMISE_MAP(NAME)
#undef NAME
};

static void
each_once(const al_val_t *list) {
  assert_int_equal(list->len, AL_PROMISES);
  for (size_t i = 0; i < list->len; i++) {
    assert_string_equal(al_val_get(list->items[i], "what")->text, names[i]);
    assert_true(al_val_get(list->items[i], "by")->len > 10);
  }
}

/* 1, 0, or -1 when it is not known. */
static int
held(const al_val_t *list, al_promise_t what) {
  const al_val_t *v = al_val_get(list->items[what], "enforced");
  return v && v->kind == AL_BOOL ? v->b : -1;
}

static const char *
by(const al_val_t *list, al_promise_t what) {
  return al_val_get(list->items[what], "by")->text;
}

static al_val_t *
planned(bool vz, bool none) {
  al_val_t *list = NULL;
  al_enforced_plan_t plan = {.vz = vz, .network_none = none, .cpus = 3, .timeout_minutes = 1, .memory_mib = 1536};
  assert_int_equal(al_enforced_plan(&plan, &list), 0);
  each_once(list);
  return list;
}

static void
test_a_plan_says_every_row_and_where_nothing_holds(void **state) {
  (void) state;
  al_val_t *qemu = planned(false, true), *open = planned(false, false), *vz = planned(true, true);
  assert_int_equal(held(qemu, AL_PROMISE_NETWORK), 1);
  assert_non_null(strstr(by(qemu, AL_PROMISE_NETWORK), "restrict=on"));
  assert_int_equal(held(open, AL_PROMISE_NETWORK), 0);
  assert_non_null(strstr(by(open, AL_PROMISE_NETWORK), "loopback"));
  assert_int_equal(held(vz, AL_PROMISE_NETWORK), 0);
  assert_non_null(strstr(by(vz, AL_PROMISE_NETWORK), "NETWORK_UNENFORCEABLE"));
  assert_int_equal(held(vz, AL_PROMISE_SYSCALLS), -1);
  assert_non_null(strstr(by(vz, AL_PROMISE_END), "only the next sweep"));
  assert_non_null(strstr(by(qemu, AL_PROMISE_MEMORY), "1536 MiB"));
  assert_non_null(strstr(by(qemu, AL_PROMISE_LIFETIME), "1 minute,"));
  al_val_t *const all[] = {qemu, open, vz};
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(held(all[i], AL_PROMISE_DOMAINS), 0);
    assert_int_equal(held(all[i], AL_PROMISE_CREDENTIALS), 0);
    assert_int_equal(held(all[i], AL_PROMISE_GIT), 0);
    al_val_free(all[i]);
  }
}

static al_val_t *
words(const char *const *w) {
  al_val_t *list = al_val_list();
  for (; *w; w++) assert_int_equal(al_val_add(list, al_val_text(*w)), 0);
  return list;
}

static al_val_t *
of_lane(const char *network, const char *const *argv, const char *mounts, const char *ssh) {
  al_lane_row_t row = {.cpus = 3, .memory_mib = 1536};
  al_val_t *out = NULL, *settings = al_val_map(), *args = argv ? words(argv) : NULL, *processes = al_val_list();
  snprintf(row.network, sizeof row.network, "%s", network);
  assert_int_equal(al_val_set(settings, "mounts", al_val_text(mounts)) | al_val_set(settings, "ssh", al_val_text(ssh)), 0);
  assert_int_equal(al_enforced(&row, args, settings, processes, &out), 0);
  each_once(out);
  al_val_free(settings);
  al_val_free(args);
  al_val_free(processes);
  return out;
}

#define SSH "{localPort: 0, loadDotSSHPubKeys: false, forwardAgent: false, forwardX11: false}"

static void
test_a_lane_says_what_is_read_off_it(void **state) {
  static const char *const good[] = {"qemu", "-m", "1536", "-smp", "3,sockets=1", "-netdev", "user,restrict=on,ipv6=off",
    "-sandbox", "on,spawn=deny", NULL};
  static const char *const bad[] = {"qemu", "-m", "3072", "-smp", "4", "-netdev", "user,ipv6=off", "-virtfs", "local",
    "-sandbox", "off", NULL};
  static const al_promise_t read[] = {AL_PROMISE_NETWORK, AL_PROMISE_FILES, AL_PROMISE_SOCKETS, AL_PROMISE_MEMORY,
    AL_PROMISE_CPUS, AL_PROMISE_SYSCALLS};
  (void) state;
  al_val_t *a = of_lane("none", good, "[]", SSH), *b = of_lane("none", bad, "[]", "{forwardAgent: true}");
  for (size_t i = 0; i < sizeof read / sizeof *read; i++) {
    assert_int_equal(held(a, read[i]), 1);
    assert_int_equal(held(b, read[i]), 0);
  }
  al_val_free(a);
  al_val_free(b);
  a = of_lane("none", NULL, "[{location: ~}]", SSH);
  assert_int_equal(held(a, AL_PROMISE_FILES), 0);
  assert_int_equal(held(a, AL_PROMISE_NETWORK), -1);
  al_val_free(a);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_a_plan_says_every_row_and_where_nothing_holds),
    cmocka_unit_test(test_a_lane_says_what_is_read_off_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
