/* SPDX-License-Identifier: Apache-2.0 */
/* Copies out of a guest that has been taken over, and into it (test/fixtures/hostile_out.c): what each misdeed comes to.
 * The target stays as it was, nothing is left beside it, nothing outside changes. Holds the second table in
 * docs/HOSTILE.md. */
#include "xfer_test.h"
#include "memory.h"
#include "misdeeds.h"

#define RSS_MAX (32u << 20)
#define MAX_BYTES (8u << 20) /* of each copy */
#define MAX_ENTRIES 5000u

static const misdeed_t misdeeds[] = {
  {"file_for_ever", "sends a file that never ends", AL_EFILE_TOO_LARGE, "is larger than"},
  {"file_longer_than_said", "sends more than it says", AL_ECOPY_OUT_FAILED, "came incomplete"},
  {"file_shorter_than_said", "sends less than it says", AL_ECOPY_OUT_FAILED, "came incomplete"},
  {"file_of_giant_length", "says a file has 2^63 bytes", AL_ECOPY_OUT_FAILED, "came incomplete"},
  {"file_with_status", "ends a file with status 1", AL_ECOPY_OUT_FAILED, "ended with status 1"},
  {"file_killed", "ends a file by a signal", AL_EPROTOCOL_VIOLATION, "an exit that cannot be"},
  {"file_without_end", "dies before the end of a file", AL_ECHANNEL_CLOSED, "the channel to the guest ended"},
  {"file_dropped", "resets the stream of a file", AL_ECOPY_OUT_FAILED, "dropped the request"},
  {"file_on_stderr", "sends a file as stderr", AL_EPROTOCOL_VIOLATION, "data on a sub-stream that a guest does not have"},
  {"file_with_escapes", "gives an error with control characters", AL_ECOPY_OUT_FAILED, "red"},
  {"name_dotdot", "enters `..`", AL_ECOPY_OUT_FAILED, "a name that is `.` or `..`"},
  {"name_dotdot_file", "names a file `..`", AL_ECOPY_OUT_FAILED, "a name that is `.` or `..`"},
  {"name_dot", "enters `.`", AL_ECOPY_OUT_FAILED, "a name that is `.` or `..`"},
  {"name_path", "names a file `../outside/victim`", AL_ECOPY_OUT_FAILED, "a name with a slash"},
  {"name_absolute", "names a file `/tmp/victim`", AL_ECOPY_OUT_FAILED, "a name with a slash"},
  {"name_slash", "names a file `a/`", AL_ECOPY_OUT_FAILED, "a name with a slash"},
  {"name_empty", "names a file nothing at all", AL_ECOPY_OUT_FAILED, "a name that is empty or too long"},
  {"name_zero", "hides a path behind a zero byte", AL_ECOPY_OUT_FAILED, "a name with a zero byte"},
  {"name_giant", "sends a name of 65,535 bytes", AL_ECOPY_OUT_FAILED, "a name that is empty or too long"},
  {"git", "sends `.git/hooks/post-checkout`", AL_ETREE_REFUSED, "what may be .git on the host is not copied"},
  {"git_folded", "sends `sub/.gIt`", AL_ETREE_REFUSED, "what may be .git on the host is not copied"},
  {"git_ntfs", "sends `GIT~1`", AL_ETREE_REFUSED, "what may be .git on the host is not copied"},
  {"git_hfs", "sends `.git` with a joiner in it", AL_ETREE_REFUSED, "what may be .git on the host is not copied"},
  {"git_behind_newline", "has a newline in a path that is refused", AL_ETREE_REFUSED, "is not copied: a?ERROR: all is lost/.git"},
  {"git_link", "sends a link of that name", AL_ETREE_REFUSED, "what may be .git on the host is not copied"},
  {"link_then_enter", "makes a link and enters it", AL_ETREE_REFUSED, "comes twice"},
  {"link_out_then_enter", "makes a link that leads out and enters it", SERVED, "as a directory of that name without the link"},
  {"link_then_file", "writes through a link", AL_ETREE_REFUSED, "comes twice"},
  {"twice", "sends one name twice", AL_ETREE_REFUSED, "comes twice"},
  {"links_out", "sends links that lead out, over other links too", SERVED, "without those links, which are counted"},
  {"odd_names", "uses newlines, quotes, backslashes, control characters and invalid UTF-8 in names", SERVED, "with these very names"},
  {"special_bits", "sets setuid, setgid, sticky and x bits, and none at all", SERVED, "without them, and readable for its owner"},
  {"million", "sends a million files", AL_ETREE_TOO_LARGE, "more than 5000 entries"},
  {"million_directories", "sends a million directories", AL_ETREE_TOO_LARGE, "more than 5000 entries"},
  {"deep", "goes 4,096 levels down", AL_ETREE_TOO_LARGE, "more than 64 levels"},
  {"wide_paths", "makes a path of 10,000 bytes", AL_ETREE_REFUSED, "longer than 4096 bytes"},
  {"size_lies", "says a file has 2^64 bytes", AL_ETREE_TOO_LARGE, "more than 8388608 bytes"},
  {"size_short", "sends less of a file than it said", AL_ECOPY_OUT_FAILED, "came incomplete"},
  {"tree_for_ever", "sends files for ever", AL_ETREE_TOO_LARGE, "more than 8388608 bytes"},
  {"target_giant", "sends a link with a target of 64 KiB", AL_ECOPY_OUT_FAILED, "a link's target that is empty or too long"},
  {"target_zero", "sends a target with a zero byte", AL_ECOPY_OUT_FAILED, "a link's target with a zero byte"},
  {"no_end", "leaves the last record out", AL_ECOPY_OUT_FAILED, "came incomplete"},
  {"no_root", "leaves the first record out", AL_ECOPY_OUT_FAILED, "a record out of order"},
  {"nothing", "sends no record at all", AL_ECOPY_OUT_FAILED, "came incomplete"},
  {"within", "ends within a directory", AL_ECOPY_OUT_FAILED, "the end within a directory"},
  {"leave_the_root", "leaves the first directory", AL_ECOPY_OUT_FAILED, "a directory that was not begun"},
  {"leave_twice", "leaves a directory twice", AL_ECOPY_OUT_FAILED, "a directory that was not begun"},
  {"two_roots", "begins twice", AL_ECOPY_OUT_FAILED, "a record out of order"},
  {"behind_the_end", "goes on behind the last record", AL_ECOPY_OUT_FAILED, "more behind the end"},
  {"wrong_count", "counts wrong", AL_ECOPY_OUT_FAILED, "another number of entries than came"},
  {"unknown_record", "sends a record of type 77", AL_ECOPY_OUT_FAILED, "an unknown record"},
  {"noise", "sends noise", AL_ECOPY_OUT_FAILED, "a record out of order"},
  {"length_lies", "says it sent more than it did", AL_ECOPY_OUT_FAILED, "came incomplete"},
  {"dies", "dies within the records", AL_ECHANNEL_CLOSED, "the channel to the guest ended"},
  {"in_done_at_once", "has taken a file that was not sent yet", AL_ECOPY_IN_FAILED, "it ended before everything was sent"},
  {"in_killed", "says that the unpacking was killed", AL_ECOPY_IN_FAILED, "it was ended there by signal 9"},
  {"in_dropped", "resets the stream of a file that comes", AL_ECOPY_IN_FAILED, "dropped the request"},
  {"in_dies", "dies while a file comes", AL_ECHANNEL_CLOSED, "the channel to the guest ended"},
  {"in_clash_of_nothing", "has something in the way and does not say what", AL_ECOPY_IN_FAILED, "something is in the way"},
  {"in_clash_of_nonsense", "has what is no kind in the way", AL_ECOPY_IN_FAILED, "something is in the way"},
  {"in_clash_endless", "has a path of 64 MiB in the way", AL_ECOPY_IN_FAILED, "something is in the way"},
  {"in_clash_with_escapes", "has control characters in the way", AL_ECOPY_IN_FAILED, "is a file: nothing was copied"},
  {"in_words_endless", "says 48 MiB of control characters", AL_ECOPY_IN_FAILED, "copying"},
};
#define MISDEEDS (sizeof misdeeds / sizeof *misdeeds)

static char agent_path[4096];

static void
guest_start(rig_t *r, const char *name) {
  const char *const argv[] = { "hostile_out", name, NULL };
  memset(r, 0, sizeof *r);
  r->peer = -1;
  al_test_dir(r->dir);
  rig_program(r, agent_path, argv);
}

/* What is served, as it should be on the host. */
static void
check_served(const rig_t *r, const char *name, const outcome_t *o) {
  assert_ok(o);
  if (strcmp(name, "link_out_then_enter") == 0) {
    assert_int_equal(o->stats.skipped, 1);
    sh(r, "test ! -L wt/t/d && test \"$(cat wt/t/d/victim2)\" = pwn");
  } else if (strcmp(name, "links_out") == 0) {
    assert_int_equal(o->stats.skipped, 5);
    assert_string_equal(o->stats.skipped_path, "abs");
    sh(r, "test \"$(find wt/t -type l | sort | tr '\\n' ' ')\" = 'wt/t/d/ok wt/t/d/top ' && test \"$(cat wt/t/d/ok)\" = pwn");
  } else if (strcmp(name, "odd_names") == 0) {
    assert_int_equal(o->stats.files, 6);
    sh(r, "cat \"wt/t/$(printf 'new\\nline')\" \"wt/t/q'\\\"\\\\\" \"wt/t/$(printf '\\377\\376')\" 'wt/t/-rf *' wt/t/... \"wt/t/$(printf '\\033[31mred')\" >all && test \"$(cat all)\" = pwnpwnpwnpwnpwnpwn");
  } else {
    assert_string_equal(name, "special_bits");
    sh(r, "test \"$(umask; stat -c %%a wt/t/suid wt/t/sticky wt/t/none wt/t/closed | tr '\\n' ' ')\" = \"$(umask; echo '644 755 400 700 ')\"");
  }
}

static void
try(const misdeed_t *m) {
  rig_t r;
  outcome_t o;
  const al_xfer_limits_t limits = { .max_bytes = MAX_BYTES, .max_entries = MAX_ENTRIES };
  bool file = strncmp(m->name, "file_", 5) == 0, measured = memory_reset();
  size_t before = memory("VmRSS:");
  guest_start(&r, m->name);
  sh(&r, "mkdir -p wt/.git outside && printf old > wt/f && printf safe > outside/victim && ln wt/f wt/hard");
  if (strncmp(m->name, "in_", 3) == 0) {
    sh(&r, "head -c 8000000 /dev/zero > in");
    begin_in(&r, path(&r, "in"), "/f", &o);
  } else if (file) {
    al_xfer_t *x;
    memset(&o, 0, sizeof o);
    assert_int_equal(
      al_xfer_out(r.chan, "/f", path(&r, "wt/f"), NULL, &limits, &xfer_cbs, &o, &x, &o.err), 0);
  } else {
    begin_tree(&r, "/d", path(&r, "wt/t"), &limits, &o);
  }
  rig_wait(&r, &o.done, 60000);
  size_t peak = memory("VmHWM:"), grown = peak > before ? peak - before : 0;
  print_message("%-24s %s: %s\n", m->name, al_err_name(o.err.code), o.err.msg);
  if (m->code == SERVED) check_served(&r, m->name, &o);
  else assert_fails(&o, m->code, m->words);
  for (const char *p = o.err.msg; *p; p++) assert_true((unsigned char) *p >= ' ');
  if (m->code != SERVED) sh(&r, "test ! -e wt/t");
  sh(&r, "test \"$(cat outside/victim wt/f wt/hard)\" = safeoldold && test \"$(ls -A outside)\" = victim");
  sh(&r, "test \"$(ls -A wt | grep -v '^t$' | tr '\\n' ' ')\" = '.git f hard ' && test -z \"$(ls -A wt/.git)\" && test ! -e /tmp/victim");
  if (measured && grown > RSS_MAX) fail_msg("%s: memory grew by %zu KiB", m->name, grown >> 10);
  kill(r.agent, SIGKILL);
  rig_end(&r);
}

static void
test_xfer_hostile_guest_changes_nothing_outside(void **state) {
  (void) state;
  mode_t old = umask(022);
  for (size_t i = 0; i < MISDEEDS; i++) try(&misdeeds[i]);
  umask(old);
}

/* docs/HOSTILE.md has a row for each of the above and no other in its part "Copying"; AL_WRITE=1 writes them. */
static void
test_xfer_hostile_table_is_in_the_docs(void **state) {
  (void) state;
  misdeeds_in_docs("\n## Copying\n", misdeeds, MISDEEDS);
}

int
main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_xfer_hostile_guest_changes_nothing_outside),
    cmocka_unit_test(test_xfer_hostile_table_is_in_the_docs),
  };
  (void) argc;
  const char *slash = strrchr(argv[0], '/');
  snprintf(
    agent_path, sizeof agent_path, "%.*s/hostile_out", slash ? (int) (slash - argv[0]) : 1, slash ? argv[0] : ".");
  return cmocka_run_group_tests(tests, NULL, NULL);
}
