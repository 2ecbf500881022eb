/* SPDX-License-Identifier: Apache-2.0 */
/* Model test of the channel: the real host side against the real agent, many streams with random chunks, stalls, cancels
 * and deaths on a random transport, each against a plain account of what must come out.
 *   MODEL_SCHEDULES=N, MODEL_SEED=S: N schedules from seed S on; a failure prints the seed that shows it again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first. */
#include <cmocka.h>

#include "chan_int.h"
#include "mem.h"
#include "sim.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAMS_MAX 40
#define SWEEPS_MAX 200000

typedef enum { FATE_NONE, FATE_RESET, FATE_CANCEL, FATE_SIGNAL, FATE_KINDS } fate_t;
typedef enum { DEATH_NONE, DEATH_EOF, DEATH_ERROR, DEATH_WRITE, DEATH_CLOSE, DEATH_AGENT, DEATH_KINDS } death_t;

typedef struct model_s {
  /* what is to happen */
  sim_plan_t plan;
  bool file, with_stdin, end_stdin, eager; /* eager: takes what comes at once */
  uint64_t in_total, opens_at, stalled_until; /* in sweeps */
  fate_t fate;
  uint64_t fate_at; /* in bytes of output, or sweeps */
  uint32_t grace_ms;
  /* what has happened */
  al_stream_t *s;
  uint64_t got[3], untaken[3], written;
  bool opened, done, ended[3], wait_drain, end_told, struck, begun;
  al_exit_t exit;
} model_t;

static model_t models[STREAMS_MAX];
static size_t models_len;
static al_chan_t *chan;
static bool ready, closed;
static al_err_t closed_why;
static uint64_t sweeps, seed_now;
static death_t death;
static uint64_t death_at;
static bool dead;
static size_t chunk_max, step;
static struct { uint64_t schedules, streams, bytes, resets, cancels, signals, deaths, sweeps; } sums;

#define CHECK(ok, what) \
  do { \
    if (!(ok)) fail_msg("seed %llu: %s (sweep %llu)", (unsigned long long) seed_now, what, (unsigned long long) sweeps); \
  } while (0)

/* ---- allocations ---- */

static long live;
static void *
count_malloc(size_t n) {
  void *p = malloc(n);
  live += p != NULL;
  return p;
}
static void *
count_realloc(void *p, size_t n) {
  void *q = realloc(p, n);
  live += q && !p;
  return q;
}
static void
count_free(void *p) {
  live -= p != NULL;
  free(p);
}

/* ---- the user's side ---- */

static size_t
chunk(void) {
  return 1 + (size_t) sim_below(chunk_max);
}

static void
strike(model_t *m) {
  if (m->struck || !m->s) return;
  m->struck = true;
  if (m->fate == FATE_RESET) al_stream_reset(m->s, NULL);
  else if (m->fate == FATE_CANCEL) al_stream_cancel(m->s, m->grace_ms);
  else al_stream_signal(m->s, m->plan.ignores_term ? SIGKILL : SIGTERM, false);
}

static void
on_data(al_stream_t *s, void *data, int sub, const uint8_t *p, size_t n) {
  model_t *m = data;
  CHECK(!m->done && m->s == s && (sub == 1 || sub == 2) && n > 0, "data where none may be");
  CHECK(!(m->struck && m->fate == FATE_RESET), "data after a reset");
  CHECK(!m->ended[sub], "data after the end");
  uint32_t key = (uint32_t) (m - models);
  for (size_t i = 0; i < n; i++)
    if (p[i] != sim_byte(key, sub, m->got[sub] + i)) CHECK(false, "a byte is wrong or not in its place");
  m->got[sub] += n;
  m->untaken[sub] += n;
  bool keeps_up = m->got[sub] - m->untaken[sub] >= AL_WINDOW_DEFAULT / 2;
  CHECK(m->untaken[sub] <= (keeps_up ? AL_WINDOW_GROWN : AL_WINDOW_DEFAULT), "more than the window");
  CHECK(chan->grown <= AL_GROWN_MAX, "too many large windows");
  sums.bytes += n;
  if (m->eager) {
    m->untaken[sub] = 0;
    al_stream_consumed(s, sub, n);
  }
  if (m->fate && m->got[1] + m->got[2] >= m->fate_at && sim_percent(50)) strike(m);
}

static void
on_end(al_stream_t *s, void *data, int sub) {
  model_t *m = data;
  CHECK(!m->done && m->s == s && !m->ended[sub], "an end where none may be");
  m->ended[sub] = true;
}

static void
on_drain(al_stream_t *s, void *data) {
  model_t *m = data;
  CHECK(!m->done && m->s == s && m->wait_drain, "a drain that nobody waits for");
  m->wait_drain = false;
}

static void
on_exit_(al_stream_t *s, void *data, const al_exit_t *x) {
  model_t *m = data;
  CHECK(!m->done && m->s == s && !closed, "an exit where none may be");
  m->begun = s->begun;
  m->done = true;
  m->exit = *x;
  m->s = NULL;
  sim_progress++;
}

static void
open_stream(model_t *m) {
  static const al_stream_cbs_t cbs = {.on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_exit = on_exit_};
  static char padding[40000];
  char name[24];
  al_err_t err = {0};
  int r;
  m->opened = true;
  if (m->file) {
    snprintf(name, sizeof name, "/f/%u", (unsigned) (m - models));
    r = al_stream_read(chan, name, NULL, &cbs, m, &m->s, &err);
  } else {
    if (!padding[0]) memset(padding, 'x', sizeof padding - 1);
    snprintf(name, sizeof name, "%u", (unsigned) (m - models));
    const char *argv[] = {"command", step >= 300 && sim_percent(5) ? padding : "argument", name, NULL};
    al_exec_req_t req = {.argv = argv, .cwd = "/", .with_stdin = m->with_stdin};
    r = al_stream_exec(chan, &req, &cbs, m, &m->s, &err);
  }
  CHECK(r == 0, "a stream could not be opened");
  sim_progress++;
}

static void
write_stdin(model_t *m) {
  static uint8_t bytes[1 << 17];
  uint64_t n = m->in_total - m->written;
  if (m->wait_drain || m->end_told) return;
  if (n > chunk_max) n = 1 + sim_below(chunk_max);
  if (n > sizeof bytes) n = sizeof bytes;
  if (n > 0) {
    for (size_t i = 0; i < n; i++) bytes[i] = sim_byte((uint32_t) (m - models), 0, m->written + i);
    int64_t queued = al_stream_write(m->s, bytes, (size_t) n);
    CHECK(queued >= 0, "stdin could not be queued");
    m->written += n;
    sim_progress++;
    if (queued >= AL_STDIN_QUEUE_LOW) m->wait_drain = true;
  } else if (m->end_stdin) {
    m->end_told = true;
    al_stream_end(m->s);
    sim_progress++;
  }
}

static void
take(model_t *m, bool all) {
  for (int sub = 1; sub <= 2 && m->s; sub++) {
    uint64_t n = m->untaken[sub];
    if (n == 0) continue;
    if (!all) n = 1 + sim_below(n);
    m->untaken[sub] -= n;
    sim_progress++;
    al_stream_consumed(m->s, sub, (size_t) n);
  }
}

static void
use(model_t *m, bool all) {
  if (!m->opened) {
    if (ready && !closed && chan->state == AL_CHAN_READY && (all || sweeps >= m->opens_at)) open_stream(m);
    return;
  }
  if (!m->s) return;
  if (m->with_stdin && (all || sim_percent(60))) write_stdin(m);
  if (sweeps >= m->stalled_until || all) take(m, all);
  if (m->fate && sweeps >= m->fate_at) strike(m);
  if (m->s && sim_percent(2)) al_stream_resize(m->s, (uint16_t) sweeps, 80);
}

/* ---- the transport ---- */

static void
move_down(bool all) {
  size_t n;
  const uint8_t *p = sim_uv_written(&n);
  if (!p) return;
  size_t limit = all ? n : chunk();
  n = sim_agent_give(p, n < limit ? n : limit);
  if (n > 0) sim_uv_take(n);
}

static void
move_up(bool all) {
  static uint8_t bytes[1 << 18];
  if (!sim_uv_reading()) return;
  size_t n = sim_agent_get(bytes, all ? sizeof bytes : chunk() < sizeof bytes ? chunk() : sizeof bytes);
  if (n > 0) sim_uv_feed(bytes, n);
}

static void
die(void) {
  dead = true;
  sums.deaths++;
  switch (death) {
    case DEATH_EOF: sim_uv_feed_end(UV_EOF); break;
    case DEATH_ERROR: sim_uv_feed_end(UV_ECONNRESET); break;
    case DEATH_WRITE: sim_uv_fail_write(UV_EPIPE); break;
    case DEATH_CLOSE: al_chan_close(chan, NULL); break;
    case DEATH_AGENT: sim_agent_stop(); break;
    case DEATH_NONE:
    case DEATH_KINDS: break;
  }
}

/* One turn of everything, in random order. Returns whether anything moved. */
static bool
sweep(bool all) {
  uint64_t before = sim_progress;
  sweeps++;
  sim_now += sim_below(200000);
  if (death && !dead && sweeps >= death_at && ready && !closed) die();
  for (unsigned i = 0, first = (unsigned) sim_below(6); i < 6; i++) {
    if (!all && sim_percent(25)) continue;
    switch ((i + first) % 6) {
      case 0: move_down(all); break;
      case 1: move_up(all); break;
      case 2: sim_uv_run(); break;
      case 3: sim_agent_commands(); break;
      case 4:
        if (!sim_agent_turn() && sim_uv_reading()) {
          move_up(true);
          sim_uv_feed_end(UV_EOF);
        }
        break;
      case 5:
        for (size_t m = 0; m < models_len && !closed; m++) use(&models[m], all);
        break;
    }
  }
  if (!closed) CHECK(chan->sent - chan->acked <= AL_PACING_MAX, "the host sent beyond the pacing");
  CHECK(!sim_broken, sim_broken);
  CHECK(!sim_agent_code, sim_agent_text);
  return sim_progress != before;
}

/* ---- one schedule ---- */

static uint64_t
size_of(void) {
  unsigned class = (unsigned) sim_below(100);
  if (class < 25) return 0;
  if (class < 65) return sim_below(300);
  if (class < 96) return sim_below(20000);
  return sim_below(700000);
}

static void
plan_of(uint32_t key, sim_plan_t *out) {
  CHECK(key < models_len, "a request that nobody made");
  *out = models[key].plan;
}

static void
make_model(model_t *m) {
  *m = (model_t) {.file = sim_percent(12), .eager = sim_percent(60)};
  m->plan = (sim_plan_t) {.out = {size_of(), size_of()}, .in_limit = sim_percent(20) ? size_of() : UINT64_MAX,
    .ignores_term = sim_percent(30), .holder = sim_percent(4), .exit_code = (int) sim_below(256), .shrinks = sim_percent(10)};
  m->with_stdin = !m->file && sim_percent(50);
  m->in_total = m->with_stdin ? size_of() : 0;
  m->end_stdin = true;
  m->opens_at = sim_percent(60) ? 0 : sim_below(300);
  m->stalled_until = sim_percent(80) ? 0 : sim_below(2000);
  if (sim_percent(30)) m->fate = (fate_t) (1 + sim_below(FATE_KINDS - 1));
  if (m->file && m->fate != FATE_NONE) m->fate = FATE_RESET;
  m->fate_at = sim_below(400);
  m->plan.endless = !m->file && m->fate && sim_percent(40);
  m->grace_ms = (uint32_t) sim_below(3) * 100;
}

static void
check_end(const model_t *m) {
  const al_exit_t *x = &m->exit;
  const sim_plan_t *p = &m->plan;
  CHECK(m->done || !m->opened, "a stream that never ended");
  if (!m->opened) return;
  CHECK(m->got[1] <= p->out[0] && m->got[2] <= p->out[1], "more than was written");
  if (x->kind < 0) {
    bool reset = m->struck && (m->fate == FATE_RESET || (m->fate == FATE_CANCEL && !m->begun));
    CHECK(x->err.code == AL_EABORTED ? reset : death != DEATH_NONE, "an end without a reason");
    return;
  }
  CHECK(!(m->struck && m->fate == FATE_RESET), "an exit after a reset");
  if (m->file) {
    CHECK(p->shrinks && p->out[0] > 0 ? x->kind == AL_EXIT_ERROR : x->kind == AL_EXIT_CODE && x->value == 0, "the wrong end of a file");
    CHECK(m->got[1] == (p->shrinks ? p->out[0] / 2 : p->out[0]), "not all of a file");
    CHECK(x->length == m->got[1] && (x->kind == AL_EXIT_ERROR || m->ended[1]), "the wrong length of a file");
    return;
  }
  CHECK(m->ended[1] && m->ended[2], "an exit before the ends");
  if (x->kind == AL_EXIT_SIGNAL) {
    CHECK(m->struck && (x->value == SIGTERM || x->value == SIGKILL), "a signal that nobody sent");
    return;
  }
  CHECK(x->kind == AL_EXIT_CODE && x->value == (uint32_t) p->exit_code, "the wrong status");
  if (m->struck && m->fate == FATE_CANCEL) return; /* what others still hold may have been dropped */
  CHECK(m->got[1] == p->out[0] && m->got[2] == p->out[1], "not all of the output");
}

/* What the commands saw. Only while the channel lived to the end. */
static void
check_commands(void) {
  uint64_t in, out;
  CHECK(sim_agent_held() == 0, "the agent still holds descriptors");
  sim_agent_counted(&in, &out);
  CHECK(in == chan->sent && out == chan->received && chan->rlen == 0, "the two ends have not counted the same");
  CHECK(!chan->crossed || chan->acked < chan->crossed->reset_at, "a stream is kept after the guest has read its RESET");
  for (size_t i = 0; i < AL_STREAMS_MAX; i++) {
    const sim_command_t *c = &sim_commands[i];
    if (!c->used) continue;
    const model_t *m = &models[c->key];
    CHECK(c->exited, m->fate == FATE_RESET ? "a command lives on after its reset" : "a command that did not end");
    if (m->exit.kind != AL_EXIT_CODE || !m->with_stdin) continue;
    uint64_t want = c->plan.in_limit < m->in_total ? c->plan.in_limit : m->in_total;
    CHECK(c->in_taken == want, "not all of stdin");
    CHECK(c->end_seen || c->in_taken == c->plan.in_limit, "stdin without its end");
  }
}

static void
on_ready(al_chan_t *c, void *data) {
  (void) c, (void) data;
  ready = true;
}

static void
on_closed(al_chan_t *c, void *data, const al_err_t *err) {
  (void) data;
  CHECK(c == chan && !closed, "closed twice");
  closed = true;
  closed_why = *err;
}

static bool
all_done(void) {
  if (closed) return true;
  for (size_t i = 0; i < models_len; i++)
    if (!models[i].done) return false;
  return true;
}

/* Everything that can move has moved: the clock goes to where somebody wakes up. */
static void
wait_for_clock(void) {
  uint64_t host = sim_uv_due(), agent = sim_agent_due(), at = host < agent ? host : agent;
  CHECK(at != UINT64_MAX, "stuck for ever");
  if (at > sim_now) sim_now = at;
}

static void
run_until(bool (*over)(void)) {
  unsigned idle = 0;
  while (!over()) {
    CHECK(sweeps < SWEEPS_MAX, "no end in sight");
    if (sweep(idle >= 3)) idle = 0;
    else if (++idle > 6) wait_for_clock();
  }
}

static bool
is_closed(void) {
  return closed;
}

static void
settle(void) {
  for (unsigned idle = 0; idle < 8 && !closed;) idle = sweep(true) ? 0 : idle + 1;
}

static void
run_schedule(uint64_t seed) {
  static const al_chan_cbs_t cbs = {.on_ready = on_ready, .on_closed = on_closed};
  static const size_t chunks[] = {20, 300, 5000, 70000, 200000};
  seed_now = sim_seed = seed;
  sim_uv_reset();
  ready = closed = dead = false;
  sweeps = 0;
  live = 0;
  models_len = sim_percent(90) ? 1 + sim_below(6) : 1 + sim_below(STREAMS_MAX);
  for (size_t i = 0; i < models_len; i++) make_model(&models[i]);
  chunk_max = chunks[sim_percent(10) ? 0 : 1 + sim_below(4)];
  size_t room = sim_percent(20) ? 1 + sim_below(2000) : 4096 + sim_below(200000);
  step = room < chunk_max ? room : chunk_max;
  for (size_t i = 0; i < models_len && step < 5000; i++) { /* crumbs for megabytes would only take long */
    sim_plan_t *p = &models[i].plan;
    p->out[0] %= step * 30, p->out[1] %= step * 30, models[i].in_total %= step * 30;
  }
  sim_agent_reset(room, plan_of);
  death = sim_percent(15) ? (death_t) (1 + sim_below(DEATH_KINDS - 1)) : DEATH_NONE;
  death_at = sim_below(250);
  al_chan_opts_t o = {.in = (uv_stream_t *) &sim_pipe, .out = (uv_stream_t *) &sim_pipe};
  memcpy(o.secret, "0123456789abcdef0123456789abcdef", 32);
  CHECK(al_chan_open(&sim_loop, &o, &cbs, NULL, &chan) == 0, "the channel could not be opened");
  run_until(all_done);
  if (!closed && !dead) {
    death = DEATH_NONE; /* it would have come too late */
    settle();
    CHECK(!closed, closed_why.msg);
    check_commands();
  }
  if (!closed) {
    al_chan_close(chan, NULL);
    run_until(is_closed);
  }
  CHECK(death != DEATH_NONE || closed_why.code == 0, closed_why.msg);
  sim_uv_fail_write(UV_ECANCELED);
  for (size_t i = 0; i < models_len; i++) {
    check_end(&models[i]);
    sums.resets += models[i].struck && models[i].fate == FATE_RESET;
    sums.cancels += models[i].struck && models[i].fate == FATE_CANCEL;
    sums.signals += models[i].struck && models[i].fate == FATE_SIGNAL;
  }
  CHECK(live == 0, "memory was not freed");
  sums.schedules++;
  sums.streams += models_len;
  sums.sweeps += sweeps;
}

static void
test_model_of_many_streams(void **state) {
  static const al_mem_table_t table = {.malloc = count_malloc, .realloc = count_realloc, .free = count_free};
  const char *n = getenv("MODEL_SCHEDULES"), *first = getenv("MODEL_SEED");
  uint64_t count = n ? strtoull(n, NULL, 10) : 3000, seed = first ? strtoull(first, NULL, 10) : 1;
  (void) state;
  al_mem_set(&table);
  fprintf(stderr, "model: seeds %llu to %llu\n", (unsigned long long) seed, (unsigned long long) (seed + count - 1));
  for (uint64_t i = 0; i < count; i++) run_schedule(seed + i);
  al_mem_set(NULL);
  fprintf(stderr, "model: %llu schedules, %llu streams, %llu bytes of output, %llu resets, %llu cancels, %llu signals, %llu deaths, %llu turns\n",
    (unsigned long long) sums.schedules, (unsigned long long) sums.streams, (unsigned long long) sums.bytes, (unsigned long long) sums.resets,
    (unsigned long long) sums.cancels, (unsigned long long) sums.signals, (unsigned long long) sums.deaths, (unsigned long long) sums.sweeps);
  if (!n) assert_true(sums.resets > 100 && sums.cancels > 100 && sums.signals > 100 && sums.deaths > 100);
}

int
main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_model_of_many_streams)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
