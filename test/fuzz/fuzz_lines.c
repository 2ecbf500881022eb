/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of the line splitter: however the bytes are cut into chunks, the same pieces come out, and put together they are
 * what went in. */
#include "fuzz.h"
#include "lines.h"
#include "utf8.h"

typedef struct log_s {
  uint8_t *text, *pieces; /* as one text; as pieces, each with a mark behind it */
  size_t text_len, pieces_len, max, stop_after;
  bool open;              /* the last piece was cut */
} log_t;

static int
note(void *data, const uint8_t *line, size_t len, bool cut) {
  log_t *l = data;
  MUST(len <= l->max, "a piece longer than the cap");
  MUST(line[len] == '\n' || line[len] == '\r', "what stands behind a line");
  MUST(!cut || len + 3 >= l->max, "a piece cut too short");
  memcpy(l->text + l->text_len, line, len);
  l->text_len += len;
  if (!cut) l->text[l->text_len++] = '\n';
  memcpy(l->pieces + l->pieces_len, line, len);
  l->pieces_len += len;
  l->pieces[l->pieces_len++] = cut ? 1 : 2;
  l->open = cut;
  return l->stop_after > 0 && --l->stop_after == 0 ? 77 : 0;
}

static void
run(log_t *l, const uint8_t *p, size_t n, uint32_t chunks) {
  al_lines_t s;
  int rc = 0;
  l->text = malloc(n + 2);
  l->pieces = malloc(3 * n + 8);
  MUST(l->text && l->pieces, "memory");
  al_lines_init(&s, l->max);
  for (size_t at = 0; at < n && rc == 0;) {
    size_t take = 1 + (chunks = chunks * 1664525u + 1013904223u) % 23;
    if (chunks >> 29 == 0) take *= 40;
    if (take > n - at) take = n - at;
    uint8_t *copy = malloc(take);
    MUST(copy != NULL, "memory");
    memcpy(copy, p + at, take);
    rc = al_lines_feed(&s, copy, take, note, l);
    free(copy);
    MUST(s.part.len <= l->max + 2, "more kept than a line may have");
    at += take;
  }
  if (rc == 0) rc = al_lines_finish(&s, note, l);
  MUST(rc == 0 || rc == 77, "an error");
  MUST(rc == 77 || !l->open, "a cut line that does not go on");
  al_lines_deinit(&s);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_in_t in = {data, size};
  size_t max = 1 + fuzz_take(&in, 1), stop = fuzz_take(&in, 1);
  if (max > 250) max = 4096;
  uint32_t chunks = fuzz_take(&in, 2);
  if (in.n > 65536) return 0;
  log_t a = {.max = max}, b = {.max = max}, c = {.max = max, .stop_after = stop};
  run(&a, in.p, in.n, chunks);
  run(&b, in.p, in.n, chunks ^ 0x5555aaaau);
  MUST(a.pieces_len == b.pieces_len && memcmp(a.pieces, b.pieces, a.pieces_len) == 0, "chunks change the lines");
  run(&c, in.p, in.n, chunks);
  MUST(c.pieces_len <= a.pieces_len && memcmp(a.pieces, c.pieces, c.pieces_len) == 0, "stopping changes the lines");
  /* The bytes that went in, without one '\r' before each '\n', and with an end. */
  size_t at = 0;
  for (size_t i = 0; i < in.n; i++) {
    if (in.p[i] == '\r' && i + 1 < in.n && in.p[i + 1] == '\n') continue;
    MUST(at < a.text_len && a.text[at++] == in.p[i], "bytes are lost or changed");
  }
  if (at < a.text_len) MUST(a.text[at++] == '\n' && in.p[in.n - 1] != '\n', "an end that was not there");
  MUST(at == a.text_len, "bytes out of nothing");
  for (log_t *l = &a;; l = l == &a ? &b : &c) {
    free(l->text);
    free(l->pieces);
    if (l == &c) break;
  }
  return 0;
}
