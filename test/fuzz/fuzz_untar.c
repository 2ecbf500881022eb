/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of the guest's archive reader: what it gives stays inside the tree and inside its bounds, however the bytes are
 * cut into reads, and the data are those of the archive. The input is a row of small decisions that make an archive with
 * something wrong in it, or the archive itself. */
#include "agent/untar.c"
#include "fuzz.h"

#define WORK_MAX 300000u

typedef struct source_s {
  const uint8_t *p;
  size_t n, at, given; /* given: bytes handed out */
  uint32_t chunks;
} source_t;

static al_untar_t reader;
static al_untar_entry_t e;
static uint8_t made[WORK_MAX];

static ssize_t
give(void *data, void *p, size_t n) {
  source_t *s = data;
  size_t some = 1 + (s->chunks = s->chunks * 1664525u + 1013904223u) % 1500;
  MUST(n > 0, "a read of nothing");
  if (s->chunks >> 30 == 0) some *= 100;
  if (some > n) some = n;
  if (some > s->n - s->at) some = s->n - s->at;
  memcpy(p, s->p + s->at, some);
  s->at += some;
  return (ssize_t) some;
}

static void
check_path(const char *p, bool may_be_root) {
  size_t n = strlen(p);
  MUST(n <= AL_UNTAR_PATH, "a path that is too long");
  MUST(may_be_root || n > 0, "no path");
  MUST(n == 0 || (p[0] != '/' && p[n - 1] != '/'), "a slash at an end");
  for (const char *at = p; n > 0;) {
    size_t k = strcspn(at, "/");
    MUST(k > 0 && !(k == 1 && at[0] == '.') && !(k == 2 && at[0] == '.' && at[1] == '.'), "a component that is no name");
    if (!at[k]) break;
    at += k + 1;
  }
}

/* Takes the bytes of a file in one way or another. Gives a sum over them. */
static uint64_t
take_data(source_t *s, bool direct) {
  uint64_t sum = 1469598103934665603u;
  for (uint32_t i = 0; i < e.ranges_len; i++) {
    for (uint64_t left = e.ranges[i].len; left > 0;) {
      const uint8_t *p = NULL;
      uint64_t beside = direct ? al_untar_direct(&reader) : 0;
      if (beside > left) beside = left;
      if (beside > s->n - s->at) beside = s->n - s->at;
      ssize_t n = (ssize_t) beside;
      if (beside > 0) {
        p = s->p + s->at;
        s->at += (size_t) beside;
        al_untar_moved(&reader, beside);
      } else {
        n = al_untar_data(&reader, &p, left);
        if (n < 0) return 0;
        MUST(n > 0 && (uint64_t) n <= left, "more or less than was asked for");
        MUST(p >= reader.buf && p + n <= reader.buf + sizeof(reader.buf), "bytes from somewhere else");
      }
      for (ssize_t k = 0; k < n; k++) sum = (sum ^ p[k]) * 1099511628211u;
      left -= (uint64_t) n;
    }
  }
  return sum;
}

/* A sum over everything that comes out, and how it ended. */
static uint64_t
run(const uint8_t *p, size_t n, uint32_t chunks, bool direct, int *end) {
  source_t s = {.p = p, .n = n, .chunks = chunks};
  uint64_t sum = 0;
  memset(&reader, 0, offsetof(al_untar_t, buf));
  reader.read = give;
  reader.data = &s;
  while ((*end = al_untar_next(&reader, &e)) == 1) {
    check_path(e.path, e.kind == AL_UNTAR_DIR);
    MUST(e.mode <= 07777 && e.mtime_ns < 1000000000, "a mode or a time out of bounds");
    if (e.kind == AL_UNTAR_HARD) check_path(e.link, false);
    if (e.kind == AL_UNTAR_LINK) MUST(e.link[0] != 0 && strlen(e.link) <= AL_UNTAR_PATH, "a link's text");
    MUST(e.kind == AL_UNTAR_FILE || e.ranges_len == 0, "data of something that is no file");
    MUST(e.ranges_len <= AL_UNTAR_RANGES, "too many ranges");
    uint64_t at = 0;
    for (uint32_t i = 0; i < e.ranges_len; i++) {
      MUST(e.ranges[i].at >= at && e.ranges[i].len > 0 && e.ranges[i].len <= e.size - e.ranges[i].at, "a range");
      at = e.ranges[i].at + e.ranges[i].len;
    }
    sum = sum * 31 + (uint64_t) e.kind + e.mode + (uint64_t) e.mtime + e.mtime_ns + e.size + e.ranges_len;
    for (const char *c = e.path; *c; c++) sum = sum * 31 + (uint8_t) *c;
    if (e.kind == AL_UNTAR_FILE && chunks % 3 != 0) sum = sum * 31 + take_data(&s, direct); /* or it is skipped */
  }
  MUST(*end <= 0 && (*end == 0 || *end == -EINVAL || *end == -ENAMETOOLONG), "an unknown end");
  MUST(*end != -EINVAL || reader.why != NULL, "a failure without a reason");
  MUST(*end != 0 || s.at == n, "an end before the end");
  return sum;
}

static void
seal(uint8_t *h) {
  unsigned sum = 8 * ' ';
  for (int i = 0; i < 512; i++) sum += i >= 148 && i < 156 ? 0 : h[i];
  snprintf((char *) h + 148, 8, "%06o", sum);
}

static size_t
put(size_t len, char type, const uint8_t *name, size_t name_len, const uint8_t *data, size_t n, fuzz_in_t *in) {
  uint8_t *h = made + len;
  size_t all = 512 + (n + 511) / 512 * 512;
  if (len + all > WORK_MAX - 2048) return len;
  memset(h, 0, all);
  memcpy(h, name, name_len < 100 ? name_len : 100);
  snprintf((char *) h + 100, 8, "%07o", fuzz_take(in, 2) & 07777u);
  snprintf((char *) h + 124, 12, "%011zo", n);
  snprintf((char *) h + 136, 12, "%011o", fuzz_take(in, 3));
  h[156] = (uint8_t) type;
  memcpy(h + 157, name, name_len < 90 ? name_len : 90);
  memcpy(h + 257, "ustar\0" "00", 8);
  memcpy(h + 512, data, n);
  if (fuzz_take(in, 1) == 7) h[fuzz_take(in, 2) % 512] = (uint8_t) fuzz_take(in, 1); /* before the sum, so it is believed */
  seal(h);
  if (fuzz_take(in, 1) == 7) h[fuzz_take(in, 2) % 512] ^= 1;
  return len + all;
}

static size_t
record(char *text, size_t at, size_t room, const char *key, const uint8_t *value, size_t n) {
  size_t body = strlen(key) + n + 3, len = body + 1;
  char head[32];
  while (len != body + (size_t) snprintf(head, sizeof head, "%zu", len)) len = body + strlen(head);
  if (at + len >= room) return at;
  at += (size_t) snprintf(text + at, room - at, "%zu %s=", len, key);
  memcpy(text + at, value, n);
  text[at + n] = '\n';
  return at + n + 1;
}

static size_t
make(fuzz_in_t *in) {
  static const char *const keys[] = {"path", "linkpath", "size", "mtime", "GNU.sparse.major", "GNU.sparse.minor", "GNU.sparse.name",
    "GNU.sparse.realsize", "hdrcharset", "GNU.sparse.map"};
  static const char types[] = "000125577xgS36";
  static char text[9000];
  size_t len = 0;
  while (in->n > 0 && len < WORK_MAX / 2) {
    uint32_t what = fuzz_take(in, 1);
    size_t n = fuzz_take(in, what & 0x80 ? 2 : 1), name_len = fuzz_take(in, 1) % 110;
    if (n > in->n) n = in->n;
    const uint8_t *bytes = in->p;
    if (what % 4 == 0) { /* an extended header: keys of ours with values of the input's */
      size_t at = 0;
      for (uint32_t k = fuzz_take(in, 1) % 5; k > 0 && in->n > 0; k--) {
        const char *key = keys[fuzz_take(in, 1) % (sizeof keys / sizeof keys[0])];
        size_t value = fuzz_take(in, 1);
        if (value > in->n) value = in->n;
        at = record(text, at, sizeof text, key, in->p, value);
        in->p += value;
        in->n -= value;
      }
      len = put(len, 'x', (const uint8_t *) "pax", 3, (const uint8_t *) text, at, in);
      continue;
    }
    in->p += n;
    in->n -= n;
    if (name_len > n) name_len = n;
    len = put(len, types[what % (sizeof types - 1)], bytes, name_len, bytes, what & 0x40 ? n : 0, in);
  }
  memset(made + len, 0, 1024);
  return len + 1024;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_in_t in = {data, size};
  int end[3];
  uint32_t how = fuzz_take(&in, 2);
  const uint8_t *p = in.p;
  size_t n = in.n;
  if (how & 1) {
    n = make(&in);
    p = made;
  }
  how |= 1; /* data is taken in all three or in none: what is skipped is the same for all */
  uint32_t chunks = how - how % 3 + how / 7 % 2;
  uint64_t a = run(p, n, chunks, false, &end[0]), b = run(p, n, chunks + 3 * 4096, false, &end[1]),
           c = run(p, n, chunks + 3 * 70000, true, &end[2]);
  MUST(end[0] == end[1] && end[1] == end[2], "chunks change the end");
  MUST(end[0] < 0 || (a == b && b == c), "chunks change what comes out");
  return 0;
}
