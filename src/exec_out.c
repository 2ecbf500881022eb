/* SPDX-License-Identifier: Apache-2.0 */
/* The output of one command: kept whole, as a tail, handed on as lines or as it comes; and the credit for it. */
#include "exec_int.h"
#include "mem.h"
#include <errno.h>
#include <string.h>

#define GIANT AL_WINDOW_DEFAULT /* a line from this length on is not copied once more */

void
al__out_init(al_exec_t *e, int sub, al_keep_t keep, size_t max) {
  al_out_t *o = &e->out[sub - 1];
  *o = (al_out_t){ .e = e, .sub = sub, .keep = keep };
  al_buf_init(&o->whole, max);
  al_buf_init(&o->batch, 0);
  al_tail_init(&o->tail, AL_TAIL_DEFAULT);
  al_lines_init(&o->split, AL_LINE_MAX);
}

void
al__out_deinit(al_out_t *o) {
  al_buf_deinit(&o->whole);
  al_buf_deinit(&o->batch);
  al_tail_deinit(&o->tail);
  al_lines_deinit(&o->split);
}

bool
al__out_within_budget(al_exec_t *e) {
  if (!e->budget) return true;
  size_t kept = 0;
  /* The tails of one that is being ended are small, and their room was freed for the others. */
  for (int i = 0; i < 2 && !e->cancelled; i++)
    kept += e->out[i].whole.len + e->out[i].split.part.len + e->out[i].tail.len;
  e->budget->used = e->budget->used - e->kept + kept;
  e->kept = kept;
  return e->budget->used <= e->budget->max;
}

static int
tail_line(al_out_t *o, const uint8_t *line, size_t len) {
  int r = o->any ? al_tail_append(&o->tail, "\n", 1) : 0;
  o->any = true;
  return r < 0 ? r : al_tail_append(&o->tail, line, len);
}

static void
hand(al_out_t *o, const uint8_t *p, size_t n) {
  al_exec_t *e = o->e;
  if (!e->cbs.on_lines || e->cancelled) return;
  o->handed += n;
  e->cbs.on_lines(e, e->data, o->sub, p, n);
}

static void
hand_batch(al_out_t *o) {
  if (o->batch.len > 0) hand(o, o->batch.data, o->batch.len);
  if (o->batch.room > 2 * GIANT) al_buf_deinit(&o->batch); /* what was once needed must not be kept for ever */
  else o->batch.len = 0;
}

/* A giant line goes straight from the splitter's buffer, which is held back from a receiver that cancels meanwhile. */
static int
hand_giant(al_out_t *o, const uint8_t *line, size_t len) {
  al_buf_t part = o->split.part;
  al_buf_init(&o->split.part, part.cap);
  hand_batch(o);
  hand(o, line, len + 1);
  int r = tail_line(o, line, len);
  if (!o->e->cancelled) {
    o->split.part = part;
    return r;
  }
  al_buf_deinit(&part);
  return r < 0 ? r : 1;
}

static int
on_line(void *data, const uint8_t *line, size_t len, bool cut) {
  al_out_t *o = data;
  (void) cut; /* a piece of an overlong line is a line for the receiver; al_lines_t counts them */
  if (len >= GIANT && line == o->split.part.data) return hand_giant(o, line, len);
  int r = al_buf_append(&o->batch, line, len);
  if (r == 0) r = al_buf_append(&o->batch, "\n", 1);
  return r < 0 ? r : tail_line(o, line, len);
}

/* In its turn of the loop this becomes one event with what went before. The tail comes first: the receiver may cancel. */
static int
take_run(al_out_t *o, const uint8_t *lines, size_t n) {
  int r = tail_line(o, lines, n - 1);
  if (r < 0) return r;
  hand_batch(o);
  hand(o, lines, n);
  return o->e->cancelled ? 1 : 0;
}

/* Nearly all output is whole lines in a row: these go on in one piece. */
static int
take_lines(al_out_t *o, const uint8_t *p, size_t n) {
  int r = 0;
  while (n > 0 && r == 0) {
    size_t step = al_lines_run(&o->split, p, n);
    if (step > 0) {
      r = take_run(o, p, step);
    } else {
      const uint8_t *end = o->split.part.len > 0 ? memchr(p, '\n', n) : NULL;
      step = end ? (size_t) (end - p) + 1 : n;
      r = al_lines_feed(&o->split, p, step, on_line, o);
    }
    p += step;
    n -= step;
  }
  if (r == 0) hand_batch(o);
  return r;
}

int
al__out_take(al_out_t *o, const uint8_t *p, size_t n) {
  al_exec_t *e = o->e;
  int r = 0;
  if (e->cancelled) {
    if (o->keep != AL_KEEP_NONE) r = al_tail_append(&o->tail, p, n);
    return r;
  }
  switch (o->keep) {
    case AL_KEEP_NONE:
      o->handed += n;
      e->cbs.on_bytes(e, e->data, o->sub, p, n);
      break;
    case AL_KEEP_LINES:
      r = take_lines(o, p, n);
      if (r > 0) r = 0; /* cancelled meanwhile */
      break;
    case AL_KEEP_TAIL: r = al_tail_append(&o->tail, p, n); break;
    case AL_KEEP_WHOLE: r = al_buf_append(&o->whole, p, n); break;
  }
  return r;
}

int
al__out_finish(al_out_t *o) {
  if (o->keep != AL_KEEP_LINES || o->e->cancelled) return 0;
  int r = al_lines_finish(&o->split, on_line, o);
  if (r == 0) hand_batch(o);
  return r > 0 ? 0 : r;
}

/* The bytes handed on and the bytes of the stream differ (line ends, unfinished lines), so the rule is: never is more
 * of the stream's credit withheld than the receiver still holds. */
void
al__out_credit(al_out_t *o) {
  if (o->owed <= o->handed) return;
  size_t n = o->owed - o->handed;
  o->owed = o->handed;
  if (o->e->s) al_stream_consumed(o->e->s, o->sub, n);
}

/* Called in the midst of a hand-over too, so the batch stays. Tails are best effort: want of memory is no second
 * error. */
void
al__out_only_tail(al_out_t *o) {
  const al_buf_t *part = &o->split.part;
  if (o->keep == AL_KEEP_WHOLE && o->whole.len > 0) (void) al_tail_append(&o->tail, o->whole.data, o->whole.len);
  if (o->keep == AL_KEEP_LINES && (part->len > 0 || o->any)) (void) tail_line(o, part->data, part->len);
  al_buf_deinit(&o->whole);
  al_lines_deinit(&o->split);
  o->handed = 0;
  al__out_credit(o);
}

int
al__out_collect(al_out_t *o, char **text, size_t *len, uint64_t *dropped) {
  if (o->keep != AL_KEEP_WHOLE || o->e->cancelled || o->e->err.code) {
    *text = al_tail_copy(&o->tail, len);
    *dropped = o->tail.dropped;
  } else if (o->whole.data) {
    *text = (char *) o->whole.data; /* a zero byte follows by al_buf's contract */
    *len = o->whole.len;
    al_buf_init(&o->whole, 0);
  } else {
    *text = al_strdup("");
    *len = 0;
  }
  return *text ? 0 : -ENOMEM;
}
