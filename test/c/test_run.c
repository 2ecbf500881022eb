/* SPDX-License-Identifier: Apache-2.0 */
/* Run manifests: the chain of their lines, what of a change is seen, writers that are killed, and several at once. */
#include "run_fixture.h"
#include "run_int.h"
#include <sys/file.h>

/* All kinds of events, in order. */
static void
make_whole(void) {
  assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
  assert_int_equal(run_add(&home, NAME, COPIED), 0);
  assert_int_equal(run_add(&home, NAME, FILES), 0);
  assert_int_equal(run_add(&home, NAME, ATTACHED), 0);
  assert_int_equal(run_add(&home, NAME, CLOSING), 0);
  assert_int_equal(run_end(&home, NAME), 0);
}

static bool
holds(const char *text, size_t len) {
  al_run_check_t c = run_check(text, len);
  return c.line == 0 && c.ended && c.interrupted == 0;
}

/* ---- writing ---- */

static void
test_run_is_made_and_sealed(void **state) {
  (void) state;
  assert_int_equal(run_add(&home, NAME, COPIED), -ENOENT);
  assert_int_equal(run_end(&home, NAME), -ENOENT);
  umask(0777);
  assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
  umask(022);
  assert_int_equal(al_test_mode(path), 0600);
  assert_int_equal(al_test_mode(home.runs), 0700);
  assert_int_equal(run_begin(&home, NAME, READY("30")), -EEXIST);
  assert_false(run_check_file(&home, NAME).ended);
  assert_int_equal(run_add(&home, NAME, CLOSING), 0);
  assert_int_equal(run_end(&home, NAME), 0);
  assert_int_equal(al_test_mode(path), 0400);
  assert_int_equal(run_end(&home, NAME), 1);
  assert_int_equal(run_add(&home, NAME, COPIED), 1);
  al_run_check_t c = run_check_file(&home, NAME);
  assert_true(c.ended);
  assert_int_equal(c.line, 0);
  assert_int_equal(c.events, 3);
}

static void
test_run_takes_only_names_of_lanes(void **state) {
  (void) state;
  static const char *const names[] = {"", "..", "../x", "agent-lane-00000000-0000000A", "agent-lane-00000000-0000000a/", NAME "b"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char *text;
    size_t len;
    assert_int_equal(run_begin(&home, names[i], READY("30")), AL_EBAD_NAME);
    assert_int_equal(run_add(&home, names[i], COPIED), AL_EBAD_NAME);
    assert_int_equal(run_end(&home, names[i]), AL_EBAD_NAME);
    assert_int_equal(al_run_read(&home, names[i], NULL, &text, &len, NULL), AL_EBAD_NAME);
    assert_false(al_run_close_lost(&home, names[i]));
  }
}

static void
test_run_follows_no_link(void **state) {
  (void) state;
  make_whole();
  assert_int_equal(chmod(path, 0600), 0);
  assert_int_equal(rename(path, al_test_path(dir, "precious")), 0);
  assert_int_equal(truncate(al_test_path(dir, "precious"), 100), 0);
  assert_int_equal(symlink(al_test_path(dir, "precious"), path), 0);
  assert_int_equal(run_begin(&home, NAME, READY("30")), -EEXIST);
  assert_true(run_add(&home, NAME, COPIED) < 0);
  assert_true(run_end(&home, NAME) < 0);
  struct stat st;
  assert_int_equal(stat(al_test_path(dir, "precious"), &st), 0);
  assert_int_equal(st.st_size, 100);
}

static void
test_run_is_bounded_but_for_its_end(void **state) {
  (void) state;
  size_t big = AL_RUN_LINE_MAX - 1024;
  char *long_text = malloc(big + 1);
  memset(long_text, 'x', big);
  long_text[big] = 0;
  al_val_t *v = run_event(ATTACHED);
  assert_int_equal(al_val_set(v, "program", al_val_text(long_text)), 0);
  const al_val_t *const events[] = {v};
  assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
  int rc = 0, n = 0;
  while ((rc = al_run_add(&home, NAME, events, 1, NULL)) == 0) n++;
  assert_int_equal(rc, -EFBIG);
  assert_in_range(n, AL_RUN_BYTES_MAX / AL_RUN_LINE_MAX - 1, AL_RUN_BYTES_MAX / AL_RUN_LINE_MAX + 1);
  assert_int_equal(run_end(&home, NAME), 0);
  al_run_check_t c = run_check_file(&home, NAME);
  assert_true(c.ended && c.line == 0);
  char *more = malloc(AL_RUN_LINE_MAX + 1);
  memset(more, 'x', AL_RUN_LINE_MAX);
  more[AL_RUN_LINE_MAX] = 0;
  assert_int_equal(al_val_set(v, "program", al_val_text(more)), 0);
  assert_int_equal(al_run_begin(&home, OTHER, v, NULL), -EMSGSIZE);
  al_val_free(v);
  free(long_text);
  free(more);
}

/* What is sealed stays as it is, whatever its last line says. */
static void
test_run_sealed_takes_nothing_more(void **state) {
  size_t before, after;
  (void) state;
  assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
  al_free(run_read(&home, NAME, &before));
  assert_int_equal(chmod(path, 0400), 0);
  assert_int_equal(run_add(&home, NAME, COPIED), 1);
  assert_int_equal(run_end(&home, NAME), 1);
  al_free(run_read(&home, NAME, &after));
  assert_int_equal(after, before);
}

static void
test_run_waits_for_its_lock_not_for_ever(void **state) {
  (void) state;
  make_whole();
  assert_int_equal(chmod(path, 0600), 0);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_int_equal(flock(fd, LOCK_EX), 0);
  assert_int_equal(run_end(&home, NAME), -ETIMEDOUT);
  close(fd);
  assert_int_equal(run_end(&home, NAME), 1); /* it had its end; now it is sealed again */
  assert_int_equal(al_test_mode(path), 0400);
}

static int
oom(void *data) {
  int *state = data;
  al_val_t *ready = NULL, *copied = NULL;
  unlink(path);
  int rc = al_json_parse(READY("30"), strlen(READY("30")), &ready, NULL);
  if (!rc) rc = al_json_parse(COPIED, strlen(COPIED), &copied, NULL);
  if (!rc) rc = al_run_begin(&home, NAME, ready, NULL);
  const al_val_t *const events[] = {copied};
  if (!rc) rc = al_run_add(&home, NAME, events, 1, NULL);
  al_val_t *end = rc ? NULL : al_run_end_event("owner", 1, NULL, "x");
  if (!rc) rc = al_run_end(&home, NAME, end, NULL);
  char *text = NULL;
  size_t len;
  al_run_check_t c;
  if (!rc) rc = al_run_read(&home, NAME, NULL, &text, &len, NULL);
  al_val_t *list = NULL;
  if (!rc) rc = al_run_check(text, len, &c, &list);
  if (!rc) *state += c.ended && c.line == 0;
  al_val_free(list);
  al_free(text);
  al_val_free(end);
  al_val_free(ready);
  al_val_free(copied);
  return rc;
}

static void
test_run_without_memory(void **state) {
  int whole = 0;
  (void) state;
  al_test_oom_each(oom, &whole);
  assert_int_equal(whole, 1);
}

/* ---- what of a change is seen ---- */

static void
test_run_any_flipped_byte_is_seen(void **state) {
  (void) state;
  static const int flips[] = {0x01, 0x20, 0x80};
  size_t len;
  make_whole();
  char *text = run_read(&home, NAME, &len);
  assert_true(holds(text, len));
  for (size_t i = 0; i < len; i++) {
    char was = text[i];
    for (size_t k = 0; k < sizeof flips / sizeof *flips; k++) {
      text[i] = (char) (was ^ flips[k]);
      if (holds(text, len)) fail_msg("byte %zu, flipped by %x", i, flips[k]);
    }
    text[i] = was;
  }
  al_free(text);
}

/* The lines of `text`, each with its newline; how many. */
static size_t
split(const char *text, size_t len, const char *lines[16], size_t lens[16]) {
  size_t n = 0;
  for (size_t at = 0; at < len; n++) {
    const char *end = memchr(text + at, '\n', len - at);
    lines[n] = text + at;
    lens[n] = (size_t) (end + 1 - lines[n]);
    at += lens[n];
  }
  return n;
}

/* Line order[0], order[1], … up to `count` of them: false when that holds. */
static bool
is_seen(const char *const *lines, const size_t *lens, const size_t *order, size_t count) {
  char other[65536];
  size_t len = 0;
  for (size_t i = 0; i < count; i++) {
    memcpy(other + len, lines[order[i]], lens[order[i]]);
    len += lens[order[i]];
  }
  return !holds(other, len);
}

static void
test_run_any_moved_line_is_seen(void **state) {
  (void) state;
  const char *lines[16];
  size_t len, lens[16], order[32];
  make_whole();
  char *text = run_read(&home, NAME, &len);
  size_t n = split(text, len, lines, lens);
  assert_int_equal(n, 6);
  for (size_t gone = 0; gone < n; gone++) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
      if (i != gone) order[count++] = i;
    assert_true(is_seen(lines, lens, order, count));
  }
  for (size_t a = 0; a < n; a++) {
    for (size_t b = a + 1; b < n; b++) {
      for (size_t i = 0; i < n; i++) order[i] = i == a ? b : i == b ? a : i;
      assert_true(is_seen(lines, lens, order, n));
    }
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
      order[count++] = i;
      if (i == a) order[count++] = i;
    }
    assert_true(is_seen(lines, lens, order, count));
  }
  al_free(text);
}

/* A line of another manifest, in the same place, with a whole chain of its own. */
static void
test_run_a_line_of_another_is_seen(void **state) {
  (void) state;
  const char *lines[16], *others[16];
  size_t len, other_len, lens[16], other_lens[16];
  make_whole();
  assert_int_equal(run_begin(&home, OTHER, READY("29")), 0);
  assert_int_equal(run_add(&home, OTHER, COPIED), 0);
  char *text = run_read(&home, NAME, &len), *other = run_read(&home, OTHER, &other_len), mixed[65536];
  split(text, len, lines, lens);
  split(other, other_len, others, other_lens);
  memcpy(mixed, lines[0], lens[0]);
  memcpy(mixed + lens[0], others[1], other_lens[1]);
  al_run_check_t c = run_check(mixed, lens[0] + other_lens[1]);
  assert_int_equal(c.line, 2);
  assert_int_equal(c.events, 1);
  al_free(text);
  al_free(other);
}

/* One that says the same in other words: forged with hashes that fit. */
static void
test_run_another_form_is_seen(void **state) {
  (void) state;
  static const char *const bodies[] = {
    "\"event\":\"attached\",\"process\":2, \"program\":null", /* a blank */
    "\"event\":\"attached\",\"process\":2.0,\"program\":null", "\"event\":\"attached\",\"process\":2e0,\"program\":null",
    "\"event\":\"attached\",\"process\":2,\"process\":2,\"program\":null", /* twice */
    "\"event\":\"attached\",\"process\":2,\"program\":\"\\u0041\"", "\"event\":\"attached\",\"process\":-2,\"program\":null",
    "\"event\":\"attached\",\"process\":2,\"program\":\"\xff\"", "\"event\":\"attached\",\"process\":2"};
  size_t len;
  assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
  al_run_check_t first = run_check_file(&home, NAME);
  char *text = run_read(&home, NAME, &len);
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
    char line[8192], hash[AL_SHA256_HEX];
    uint8_t digest[AL_SHA256_LEN];
    al_sha256_t sum;
    int n = snprintf(line, sizeof line, "{\"n\":1,\"prev\":\"%s\",\"atMs\":1,%s", first.head, bodies[i]);
    al_sha256_init(&sum);
    al_sha256_update(&sum, line, (size_t) n);
    al_sha256_final(&sum, digest);
    al_sha256_hex(digest, hash);
    n += snprintf(line + n, sizeof line - (size_t) n, ",\"sha256\":\"%s\"}\n", hash);
    char *all = malloc(len + (size_t) n);
    memcpy(all, text, len);
    memcpy(all + len, line, (size_t) n);
    al_run_check_t c = run_check(all, len + (size_t) n);
    if (c.line != 2 || c.events != 1) fail_msg("%s: line %llu, %s", bodies[i], (unsigned long long) c.line, c.why);
    free(all);
  }
  al_free(text);
}

/* Whether a manifest holds whose first event is READY, of schema `number`, and without these two members or with them. */
static bool
ready_holds(char number, bool signature, bool keys) {
  char text[4096];
  unlink(path);
  snprintf(text, sizeof text, "%s", READY("30"));
  *(strstr(text, "\"schema\":") + 9) = number;
  static const char *const members[][2] = {{"\"signature\":", "\"parents\":"}, {"\"imageKeys\":", "\"limactlPath\":"}};
  for (int i = 0; i < 2; i++) {
    if (i ? keys : signature) continue;
    char *from = strstr(text, members[i][0]), *to = strstr(text, members[i][1]);
    memmove(from, to, strlen(to) + 1);
  }
  assert_int_equal(run_begin(&home, NAME, text), 0);
  assert_int_equal(run_end(&home, NAME), 0);
  al_run_check_t c = run_check_file(&home, NAME);
  assert_int_equal(c.ended, c.line == 0);
  assert_true(c.line <= 1);
  return c.line == 0;
}

/* One that an earlier version has written; none that says so and is not. */
static void
test_run_of_schema_1_holds(void **state) {
  (void) state;
  assert_true(ready_holds('2', true, true));
  assert_true(ready_holds('1', false, false));
  assert_false(ready_holds('1', true, true));
  assert_false(ready_holds('1', true, false));
  assert_false(ready_holds('1', false, true));
  assert_false(ready_holds('2', false, true));
  assert_false(ready_holds('2', true, false));
  assert_false(ready_holds('0', false, false));
  assert_false(ready_holds('3', true, true));
}

static void
test_run_nothing_is_added_to_a_broken_one(void **state) {
  (void) state;
  size_t len;
  assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
  assert_int_equal(run_add(&home, NAME, COPIED), 0);
  char *text = run_read(&home, NAME, &len);
  text[len - 100] = (char) (text[len - 100] ^ 1);
  run_put(&home, NAME, text, len);
  assert_int_equal(run_add(&home, NAME, CLOSING), AL_EMANIFEST_BROKEN);
  assert_int_equal(run_end(&home, NAME), AL_EMANIFEST_BROKEN);
  size_t after;
  char *again = run_read(&home, NAME, &after);
  assert_int_equal(after, len);
  assert_memory_equal(again, text, len);
  al_free(again);
  al_free(text);
}

/* ---- writers that are killed ---- */

/* Cut anywhere, it holds up to the last whole line, and goes on from there. */
static void
test_run_cut_anywhere_goes_on(void **state) {
  (void) state;
  size_t len, first;
  make_whole();
  char *text = run_read(&home, NAME, &len);
  first = (size_t) ((char *) memchr(text, '\n', len) + 1 - text);
  for (size_t cut = 1; cut < len; cut += cut > first - 3 && cut < first + 3 ? 1 : 7) {
    run_put(&home, NAME, text, cut);
    al_run_check_t c = run_check(text, cut);
    bool any = cut >= first;
    assert_int_equal(c.line, any ? 0 : 1);
    assert_int_equal(c.events > 0, any);
    uint64_t before = c.events;
    int rc = run_end(&home, NAME);
    if (!any) {
      assert_int_equal(rc, -ENOENT);
      continue;
    }
    assert_int_equal(rc, 0);
    c = run_check_file(&home, NAME);
    assert_true(c.ended && c.line == 0 && c.interrupted == 0);
    assert_int_equal(c.events, before + 1);
  }
  al_free(text);
}

static void
write_for_ever(void) {
  al_val_t *a = run_event(COPIED), *b = run_event(FILES);
  const al_val_t *const events[] = {a, b};
  for (;;) (void) al_run_add(&home, NAME, events, 2, NULL);
}

static void
test_run_writers_killed_at_random_instants(void **state) {
  (void) state;
  uint64_t lines = 0;
  for (int round = 0; round < 40; round++) {
    unsigned r = 0;
    unlink(path);
    if (round % 4) assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
    pid_t pid = al_test_fork();
    if (pid == 0) {
      if (round % 4 == 0) (void) run_begin(&home, NAME, READY("30"));
      write_for_ever();
    }
    assert_int_equal(al_plat_random(&r, sizeof r), 0);
    usleep(r % (round % 4 ? 20000 : 2000));
    al_test_kill(pid);
    int rc = run_end(&home, NAME);
    if (rc == -ENOENT) { /* killed before its first line was whole */
      assert_int_equal(round % 4, 0);
      continue;
    }
    assert_int_equal(rc, 0);
    al_run_check_t c = run_check_file(&home, NAME);
    if (!c.ended || c.line || c.interrupted) fail_msg("round %d: line %llu: %s", round, (unsigned long long) c.line, c.why);
    lines += c.events;
  }
  assert_true(lines > 200);
}

static void
test_run_several_writers_make_one_chain(void **state) {
  (void) state;
  enum { WRITERS = 4, EACH = 60 };
  pid_t pids[WRITERS];
  assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
  for (int i = 0; i < WRITERS; i++) {
    if ((pids[i] = al_test_fork())) continue;
    int bad = 0;
    for (int k = 0; k < EACH; k++) bad |= run_add(&home, NAME, k % 2 ? COPIED : FILES);
    _exit(bad != 0);
  }
  for (int i = 0; i < WRITERS; i++) {
    int status;
    waitpid(pids[i], &status, 0);
    assert_int_equal(status, 0);
  }
  assert_int_equal(run_end(&home, NAME), 0);
  al_run_check_t c = run_check_file(&home, NAME);
  assert_int_equal(c.line, 0);
  assert_int_equal(c.events, WRITERS * EACH + 2);
}

/* Two that end it at once: one end. */
static void
test_run_has_one_end(void **state) {
  (void) state;
  for (int round = 0; round < 20; round++) {
    unlink(path);
    assert_int_equal(run_begin(&home, NAME, READY("30")), 0);
    pid_t pid = al_test_fork();
    if (pid == 0) _exit(run_end(&home, NAME) < 0);
    assert_true(run_end(&home, NAME) >= 0);
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    al_run_check_t c = run_check_file(&home, NAME);
    assert_true(c.ended && c.line == 0);
    assert_int_equal(c.events, 2);
    assert_int_equal(al_test_mode(path), 0400);
  }
}

int
main(int argc, char **argv) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    T(test_run_is_made_and_sealed), T(test_run_sealed_takes_nothing_more),
    T(test_run_takes_only_names_of_lanes),
    T(test_run_follows_no_link),
    T(test_run_is_bounded_but_for_its_end),
    T(test_run_waits_for_its_lock_not_for_ever),
    T(test_run_without_memory),
    T(test_run_any_flipped_byte_is_seen),
    T(test_run_any_moved_line_is_seen),
    T(test_run_a_line_of_another_is_seen),
    T(test_run_another_form_is_seen),
    T(test_run_of_schema_1_holds),
    T(test_run_nothing_is_added_to_a_broken_one),
    T(test_run_cut_anywhere_goes_on),
    T(test_run_writers_killed_at_random_instants),
    T(test_run_several_writers_make_one_chain),
    T(test_run_has_one_end),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
