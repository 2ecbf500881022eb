/* SPDX-License-Identifier: Apache-2.0 */
/* A guest that has been taken over (test/fixtures/hostile_agent.c), beside a healthy lane in the same process: what
 * each misdeed comes to, what it costs the host, and that the other lane is not disturbed. Holds the table in
 * docs/HOSTILE.md. */
#include "exec_test.h"
#include "chan_int.h"
#include "memory.h"
#include "misdeeds.h"
#include <sys/resource.h>

#define RSS_MAX (32u << 20)     /* growth that a hostile guest may cause */
#define FLOOD_MAX (1u << 20)    /* bytes of a flood that are looked at before the end */

static const misdeed_t misdeeds[] = {
  {"ssh_banner", "is an SSH server", AL_EPEER_UNPROVEN, "it said \"SSH-2.0-OpenSSH_9.2p1 Debian-2\""},
  {"http_text", "is a web server", AL_EPEER_UNPROVEN, "it said \"HTTP/1.1 400 Bad Request\""},
  {"login_text", "is a login shell", AL_EPEER_UNPROVEN, "it said \"Last login: Sun Nov 29 20:00:00 2026\""},
  {"short_banner", "says a word and hangs up", AL_ECHANNEL_CLOSED, "the channel to the guest ended: it said \"hello\""},
  {"mute", "never answers HELLO", AL_ECHANNEL_CLOSED, "the guest's agent did not answer within"},
  {"echo", "sends HELLO back", AL_EPEER_UNPROVEN, "did not prove that it is the lane's agent"},
  {"output_first", "sends output before the proof", AL_EPEER_UNPROVEN, "did not prove that it is the lane's agent"},
  {"wrong_secret", "does not know the secret", AL_EPEER_UNPROVEN, "does not know the lane's secret"},
  {"oversized_handshake", "answers with 60 KB", AL_EPEER_UNPROVEN, "payload length out of bounds"},
  {"bad_length", "sends a CREDIT of 5 bytes", AL_EPROTOCOL_VIOLATION, "payload length out of bounds"},
  {"huge_length", "sends a frame over 64 KiB", AL_EPROTOCOL_VIOLATION, "payload length out of bounds"},
  {"unknown_type", "sends a frame of type 99", AL_EPROTOCOL_VIOLATION, "unknown frame type"},
  {"reserved_field", "sets a reserved bit", AL_EPROTOCOL_VIOLATION, "reserved header field is not zero"},
  {"never_opened", "names a stream that never was", AL_EPROTOCOL_VIOLATION, "a stream that was never opened"},
  {"hosts_frame", "sends PING", AL_EPROTOCOL_VIOLATION, "a frame that only a host sends"},
  {"second_handshake", "shakes hands again", AL_EPROTOCOL_VIOLATION, "a second handshake"},
  {"wrong_pong", "answers a PING that was not sent", AL_EPROTOCOL_VIOLATION, "an answer to a ping that was not sent"},
  {"future_ack", "acknowledges more than was sent", AL_EPROTOCOL_VIOLATION, "an acknowledgement of what was not sent"},
  {"impossible_exit", "exits with status 4096", AL_EPROTOCOL_VIOLATION, "an exit that cannot be"},
  {"giant_credit", "gives 4 GiB of credit", AL_EPROTOCOL_VIOLATION, "credit beyond the largest window"},
  {"window_overrun", "sends beyond its window", AL_EPROTOCOL_VIOLATION, "data beyond the credit"},
  {"data_after_end", "sends DATA after END", AL_EPROTOCOL_VIOLATION, "data after the end"},
  {"second_end", "ends stdout twice", AL_EPROTOCOL_VIOLATION, "a second end"},
  {"second_exit", "exits twice", AL_EPROTOCOL_VIOLATION, "a stream that has ended"},
  {"swearing_reject", "rejects with control characters", AL_ECHANNEL_CLOSED, "refused: ????"},
  {"guest_opens", "opens 100,000 streams of its own", AL_EPROTOCOL_VIOLATION, "a frame that only a host sends"},
  {"guest_execs", "sends 100,000 EXECs", AL_EPROTOCOL_VIOLATION, "a frame that only a host sends"},
  {"empty_frames", "sends empty DATA for ever", AL_EPROTOCOL_VIOLATION, "payload length out of bounds"},
  {"empty_credits", "sends CREDIT of 0 for ever", AL_EPROTOCOL_VIOLATION, "credit of nothing"},
  {"ack_storm", "sends the same ACK for ever", AL_EPROTOCOL_VIOLATION, "the same acknowledgement again"},
  {"end_storm", "sends END of stdin for ever", AL_EPROTOCOL_VIOLATION, "a second end"},
  {"exit_storm", "exits 100,000 times", AL_EPROTOCOL_VIOLATION, "a stream that has ended"},
  {"reset_storm", "resets 100,000 times", AL_EPROTOCOL_VIOLATION, "a stream that has ended"},
  {"cancelled_output", "goes on for ever with the output of a command that was reset", AL_EPROTOCOL_VIOLATION,
    "data beyond the credit"},
  {"cancelled_and_acknowledged", "goes on after it has acknowledged the reset", AL_EPROTOCOL_VIOLATION,
    "a stream that has ended"},
  {"silence_in_a_frame", "falls silent within a frame", AL_ECHANNEL_CLOSED, "the guest has not answered for"},
  {"death_in_a_frame", "dies within a frame", AL_ECHANNEL_CLOSED, "the channel to the guest ended"},
  {"reads_nothing", "talks, but reads nothing", AL_ECHANNEL_CLOSED, "the guest has not read for"},
  {"endless_line", "sends 1 GiB without a newline", SERVED, "in pieces of 16 MiB"},
  {"crumbs", "sends a million frames of one byte", SERVED, "as a million lines"},
  {"one_byte_per_write", "writes byte by byte", SERVED, "as if at once"},
};
#define MISDEEDS (sizeof misdeeds / sizeof *misdeeds)

static char agent_path[4096];
static rig_t good; /* the healthy lane, on the loop of which everything runs */

/* ---- figures of this process ---- */

static double
cpu_ms(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double) (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
    (double) (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

/* ---- the lane with the hostile guest ---- */

typedef struct bad_s {
  const misdeed_t *m;
  uv_pipe_t pipe;
  al_chan_t *chan;
  al_exec_t *exec;
  pid_t pid;
  bool closed, done, cancel, pipe_closed;
  uint64_t lines, bytes, looked_at;
  int exit_code;
  al_err_t why, err;
} bad_t;

static void
bad_lines(al_exec_t *x, void *data, int sub, const uint8_t *p, size_t n) {
  bad_t *b = data;
  assert_false(b->done);
  for (const uint8_t *at = p; (at = memchr(at, '\n', (size_t) (p + n - at))); at++) b->lines++;
  b->bytes += n;
  if (strcmp(b->m->name, "window_overrun") != 0) al_exec_taken(x, sub, n);
}

/* Without the patience that exec has with a command that is being ended. */
static void
bad_data(al_stream_t *s, void *data, int sub, const uint8_t *p, size_t n) {
  (void) data, (void) p;
  al_stream_consumed(s, sub, n);
  al_stream_reset(s, NULL);
}

static void
bad_exit(al_stream_t *s, void *data, const al_exit_t *x) {
  bad_t *b = data;
  (void) s;
  b->done = true;
  b->err = x->err;
}

static void
bad_done(al_exec_t *x, void *data, al_exec_result_t *result, const al_err_t *err) {
  bad_t *b = data;
  (void) x;
  assert_false(b->done);
  b->done = true;
  b->err = *err;
  b->exit_code = result->exit_code;
  al_free(result->out);
  al_free(result->errs);
}

static void
bad_ready(al_chan_t *c, void *data) {
  static const al_exec_cbs_t bad_cbs = {.on_lines = bad_lines, .on_done = bad_done};
  static char input[900000];
  bad_t *b = data;
  const char *argv[] = {"cmd", NULL};
  if (b->cancel) {
    static const al_stream_cbs_t stream_cbs = {.on_data = bad_data, .on_exit = bad_exit};
    al_exec_req_t req = {.argv = argv};
    al_stream_t *s;
    assert_int_equal(al_stream_exec(c, &req, &stream_cbs, b, &s, &b->err), 0);
    return;
  }
  al_exec_opts_t o = {.req = {.argv = argv, .with_stdin = true}, .lines = true, .input_len = 100};
  if (strcmp(b->m->name, "reads_nothing") == 0) o.input_len = sizeof input;
  o.input = al_memdup(input, o.input_len);
  assert_int_equal(al_exec_start(c, &o, &bad_cbs, b, &b->exec, &b->err), 0);
}

static void
bad_closed(al_chan_t *c, void *data, const al_err_t *err) {
  bad_t *b = data;
  assert_false(b->closed);
  b->closed = true;
  b->looked_at = c->received + c->rlen;
  b->why = *err;
  b->chan = NULL;
}

static void
bad_pipe_closed(uv_handle_t *h) {
  *(bool *) h->data = true;
}

static void
bad_start(bad_t *b, const misdeed_t *m) {
  static const al_chan_cbs_t chan_cbs = {.on_ready = bad_ready, .on_closed = bad_closed};
  int sv[2];
  *b = (bad_t) {.m = m, .cancel = strncmp(m->name, "cancelled", 9) == 0};
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
  b->pid = al_test_fork();
  assert_true(b->pid >= 0);
  if (b->pid == 0) {
    dup2(sv[1], 0);
    dup2(sv[1], 1);
    execl(agent_path, "hostile_agent", m->name, (char *) NULL);
    _exit(127);
  }
  close(sv[1]);
  uv_pipe_init(&good.loop, &b->pipe, 0);
  assert_int_equal(uv_pipe_open(&b->pipe, sv[0]), 0);
  al_chan_opts_t o = {
    .in = (uv_stream_t *) &b->pipe, .out = (uv_stream_t *) &b->pipe, .ping_ms = 100, .silence_ms = 500};
  if (strcmp(m->name, "mute") == 0) o.handshake_ms = 300;
  if (m->code == SERVED) o.silence_ms = 60000;
  memcpy(o.secret, test_secret, sizeof o.secret);
  assert_int_equal(al_chan_open(&good.loop, &o, &chan_cbs, b, &b->chan), 0);
}

static void
bad_stop(bad_t *b) {
  int status = 0;
  b->pipe.data = &b->pipe_closed;
  uv_close((uv_handle_t *) &b->pipe, bad_pipe_closed);
  rig_wait(&good, &b->pipe_closed, 10000);
  kill(b->pid, SIGKILL);
  waitpid(b->pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
    fail_msg("%s: the hostile agent exited %d", b->m->name, WEXITSTATUS(status));
}

/* ---- the healthy lane ---- */

static void
good_exec(run_t *u) {
  start(&good, u, "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); done; echo on stderr >&2; cat; exit 3",
    (al_exec_opts_t) {.req = {.with_stdin = true}, .input = "its input", .input_len = 9});
}

static void
good_check(run_t *u) {
  static char want[8192];
  size_t n = 0;
  for (int i = 0; i < 300; i++) n += (size_t) snprintf(want + n, sizeof want - n, "line %d\n", i);
  n += (size_t) snprintf(want + n, sizeof want - n, "its input");
  finish(&good, u);
  assert_int_equal(u->result.exit_code, 3);
  assert_int_equal(u->result.out_len, n);
  assert_memory_equal(u->result.out, want, n);
  assert_string_equal(u->result.errs, "on stderr\n");
  clear(u);
}

static void
check_outcome(const bad_t *b) {
  const misdeed_t *m = b->m;
  if (m->code == SERVED) {
    if (b->closed || b->err.code) fail_msg("%s: %s %s", m->name, b->why.msg, b->err.msg);
    if (strcmp(m->name, "crumbs") == 0) assert_int_equal(b->lines, 1u << 20);
    if (strcmp(m->name, "one_byte_per_write") == 0) {
      assert_int_equal(b->lines, 1);
      assert_int_equal(b->bytes, 12);
      assert_int_equal(b->exit_code, 5);
    }
    return;
  }
  if (b->why.code != m->code || !strstr(b->why.msg, m->words))
    fail_msg("%s: %s %s", m->name, al_err_name(b->why.code), b->why.msg);
  /* The command's promise got the reason, unless it had its result, or its own end, before. */
  if (b->exec && !b->cancel && !strstr(m->words, "stream that has ended")) assert_int_equal(b->err.code, m->code);
  if (b->cancel) assert_int_equal(b->err.code, AL_EABORTED);
  if (b->looked_at > FLOOD_MAX) fail_msg("%s: looked at %llu bytes", m->name, (unsigned long long) b->looked_at);
}

static void
test_hostile_guest_ends_only_its_own_lane(void **state) {
  (void) state;
  const bool measured = memory_reset();
  if (memory_is_kept()) setenv("HOSTILE_MIB", "64", 1);
  if (!rig_agent_start(&good)) skip();
  run_t u = {0};
  good_exec(&u);
  good_check(&u);
  for (size_t i = 0; i < MISDEEDS; i++) {
    bad_t b;
    unsigned runs = 0;
    memory_reset();
    size_t before = memory("VmRSS:");
    double cpu = cpu_ms();
    bad_start(&b, &misdeeds[i]);
    bool *over = misdeeds[i].code == SERVED ? &b.done : &b.closed;
    do {
      good_exec(&u);
      good_check(&u);
    } while (++runs < 10000 && !*over && !b.closed);
    rig_wait(&good, over, 60000);
    cpu = cpu_ms() - cpu;
    size_t peak = memory("VmHWM:"), grown = peak > before ? peak - before : 0;
    check_outcome(&b);
    if (measured && grown > RSS_MAX) fail_msg("%s: memory grew by %zu KiB", misdeeds[i].name, grown >> 10);
    if (getenv("HOSTILE_FIGURES"))
      fprintf(stderr, "%-28s %5zu KiB %7.0f ms CPU, %u runs beside it (theirs included)\n", misdeeds[i].name,
        grown >> 10, cpu, runs);
    if (b.chan) {
      al_chan_close(b.chan, NULL);
      rig_wait(&good, &b.closed, 10000);
    }
    bad_stop(&b);
    good_exec(&u);
    good_check(&u);
  }
  rig_end(&good);
  if (!measured) fprintf(stderr, "test_chan_hostile: memory was not measured here\n");
}

/* docs/HOSTILE.md has a row for each of the above and no other; AL_WRITE=1 writes them. */
static void
test_hostile_table_is_in_the_docs(void **state) {
  (void) state;
  misdeeds_in_docs("# A hostile guest\n", misdeeds, MISDEEDS);
}

int
main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_hostile_guest_ends_only_its_own_lane),
    cmocka_unit_test(test_hostile_table_is_in_the_docs),
  };
  (void) argc;
  const char *slash = strrchr(argv[0], '/');
  snprintf(
    agent_path, sizeof agent_path, "%.*s/hostile_agent", slash ? (int) (slash - argv[0]) : 1, slash ? argv[0] : ".");
  return cmocka_run_group_tests(tests, NULL, NULL);
}
