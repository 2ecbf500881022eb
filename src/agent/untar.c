/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of pax archives: entry by entry, every number and name checked, nothing kept but one entry. */
#include "unpack.h"
#include <errno.h>
#include <string.h>

#define BLOCK 512u
#define PAX_MAX 65536u   /* one extended header: two paths and some numbers */
#define MAP_MAX 400000u  /* the map of a sparse file, which is text at the front of its bytes */
#define WHOLE 65536u     /* data that is given in one piece */

/* What extended headers say about the next entry. */
typedef struct pax_s {
  bool path, link, size, mtime, sparse, version, realsize;
  uint64_t size_is, realsize_is;
} pax_t;

static int
bad(al_untar_t *u, const char *why) {
  u->why = why;
  return -EINVAL;
}

/* At least n bytes in a row in the buffer. 0 at the end of the source. */
static int
need(al_untar_t *u, size_t n) {
  if (u->len >= n) return 1;
  if (u->at + n > sizeof(u->buf) || u->len == 0) {
    memmove(u->buf, u->buf + u->at, u->len);
    u->at = 0;
  }
  while (u->len < n) {
    size_t end = u->at + u->len;
    ssize_t got = u->read(u->data, u->buf + end, sizeof(u->buf) - end);
    if (got < 0) return (int) got;
    if (got == 0) return 0;
    u->len += (size_t) got;
  }
  return 1;
}

static void
use(al_untar_t *u, size_t n) {
  u->at += n;
  u->len -= n;
}

static int
skip(al_untar_t *u, uint64_t n) {
  while (n > 0) {
    int r = need(u, 1);
    if (r <= 0) return r < 0 ? r : bad(u, "the archive ends early");
    size_t some = u->len < n ? u->len : (size_t) n;
    use(u, some);
    n -= some;
  }
  return 0;
}

/* Octal digits between blanks; or, for what is too large for them, a binary number behind a set bit. */
static bool
field(const uint8_t *p, size_t n, uint64_t *out) {
  uint64_t v = 0;
  size_t i = 0;
  if (p[0] & 0x80) {
    if (p[0] != 0x80) return false;
    for (i = 1; i < n; i++) {
      if (v >> 55) return false;
      v = v << 8 | p[i];
    }
    *out = v;
    return true;
  }
  while (i < n && p[i] == ' ') i++;
  for (; i < n && p[i] >= '0' && p[i] <= '7'; i++) {
    if (v >> 60) return false;
    v = v << 3 | (uint64_t) (p[i] - '0');
  }
  for (; i < n; i++)
    if (p[i] != ' ' && p[i] != 0) return false;
  *out = v;
  return true;
}

static bool
decimal(const uint8_t *p, size_t n, uint64_t *out) {
  uint64_t v = 0;
  if (n == 0) return false;
  for (size_t i = 0; i < n; i++) {
    if (p[i] < '0' || p[i] > '9' || v > (INT64_MAX - 9) / 10) return false;
    v = v * 10 + (uint64_t) (p[i] - '0');
  }
  *out = v;
  return true;
}

/* "-1.25" is one second and a quarter before 1970. Digits behind the ninth are dropped. */
static bool
moment(const uint8_t *p, size_t n, al_untar_entry_t *e) {
  bool before = n > 0 && *p == '-';
  uint64_t seconds, scale = 100000000, ns = 0;
  if (before) p++, n--;
  const uint8_t *point = memchr(p, '.', n);
  if (!decimal(p, point != NULL ? (size_t) (point - p) : n, &seconds)) return false;
  for (size_t i = point != NULL ? (size_t) (point - p) + 1 : n; i < n; i++, scale /= 10) {
    if (p[i] < '0' || p[i] > '9') return false;
    ns += scale * (uint64_t) (p[i] - '0');
  }
  e->mtime = before ? -(int64_t) seconds : (int64_t) seconds;
  e->mtime_ns = (uint32_t) ns;
  if (before && ns > 0) {
    e->mtime--;
    e->mtime_ns = (uint32_t) (1000000000 - ns);
  }
  return true;
}

/* A path in the archive's tree: "./a//b/" becomes "a/b". */
static int
clean(al_untar_t *u, const uint8_t *p, size_t n, char *out) {
  size_t len = 0;
  if (n > 0 && p[0] == '/') return bad(u, "an absolute path");
  if (memchr(p, 0, n) != NULL) return bad(u, "a zero byte in a path");
  for (size_t at = 0; at < n;) {
    const uint8_t *slash = memchr(p + at, '/', n - at);
    size_t k = slash != NULL ? (size_t) (slash - p) - at : n - at;
    const uint8_t *name = p + at;
    at += k + 1;
    if (k == 0 || (k == 1 && name[0] == '.')) continue;
    if (k == 2 && name[0] == '.' && name[1] == '.') return bad(u, "a path with ..");
    if (len + k + 1 > AL_UNTAR_PATH) return -ENAMETOOLONG;
    if (len > 0) out[len++] = '/';
    memcpy(out + len, name, k);
    len += k;
  }
  out[len] = 0;
  return 0;
}

static int
text(al_untar_t *u, const uint8_t *p, size_t n, char *out) {
  if (memchr(p, 0, n) != NULL) return bad(u, "a zero byte in a link");
  if (n > AL_UNTAR_PATH) return -ENAMETOOLONG;
  memcpy(out, p, n);
  out[n] = 0;
  return 0;
}

static bool
is(const uint8_t *key, size_t n, const char *name) {
  return n == strlen(name) && memcmp(key, name, n) == 0;
}

/* Owners, other times, attributes and character sets are nobody's business here. */
static int
keyword(al_untar_t *u, const uint8_t *k, size_t kn, const uint8_t *v, size_t n, pax_t *x, al_untar_entry_t *e) {
  uint64_t number = 0;
  if (is(k, kn, "path") && !x->sparse) return x->path = true, clean(u, v, n, e->path);
  if (is(k, kn, "GNU.sparse.name")) return x->path = x->sparse = true, clean(u, v, n, e->path);
  if (is(k, kn, "linkpath")) return x->link = true, text(u, v, n, e->link);
  if (is(k, kn, "mtime")) return (x->mtime = moment(v, n, e)) ? 0 : bad(u, "a time that is none");
  bool size = is(k, kn, "size"), real = is(k, kn, "GNU.sparse.realsize");
  bool major = is(k, kn, "GNU.sparse.major"), minor = is(k, kn, "GNU.sparse.minor");
  if (!size && !real && !major && !minor)
    return kn >= 11 && memcmp(k, "GNU.sparse.", 11) == 0 ? bad(u, "an older sparse file") : 0;
  if (!decimal(v, n, &number)) return bad(u, "a number that is none");
  if (size) x->size = true, x->size_is = number;
  else if (real) x->realsize = true, x->realsize_is = number;
  else if (number != (major ? 1 : 0)) return bad(u, "an unknown sparse file");
  else if (major) x->version = true;
  return 0;
}

/* Records "LENGTH KEY=VALUE\n", where LENGTH counts all of it. */
static int
records(al_untar_t *u, const uint8_t *p, size_t n, pax_t *x, al_untar_entry_t *e) {
  while (n > 0) {
    const uint8_t *blank = memchr(p, ' ', n < 8 ? n : 8);
    uint64_t len = 0;
    if (blank == NULL || !decimal(p, (size_t) (blank - p), &len)) return bad(u, "an extended header's length");
    size_t head = (size_t) (blank - p) + 1;
    if (len > n || len < head + 2 || p[len - 1] != '\n') return bad(u, "an extended header's length");
    const uint8_t *equal = memchr(p + head, '=', (size_t) len - head - 1);
    if (equal == NULL) return bad(u, "an extended header without a value");
    int r = keyword(u, p + head, (size_t) (equal - p) - head, equal + 1, (size_t) (p + len - 1 - (equal + 1)), x, e);
    if (r < 0) return r;
    p += len;
    n -= (size_t) len;
  }
  return 0;
}

static bool
checked(const uint8_t *h) {
  uint64_t said, sum = 8 * ' ';
  for (size_t i = 0; i < BLOCK; i++) sum += i >= 148 && i < 156 ? 0 : h[i];
  return field(h + 148, 8, &said) && said == sum;
}

static bool
zeros(const uint8_t *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (p[i] != 0) return false;
  return true;
}

/* The second block of zeros, and then nothing but more of them. */
static int
finish(al_untar_t *u) {
  int r = need(u, BLOCK);
  if (r <= 0) return r < 0 ? r : bad(u, "the archive ends early");
  do {
    if (!zeros(u->buf + u->at, u->len)) return bad(u, "something after the end");
    use(u, u->len);
    r = need(u, 1);
  } while (r == 1);
  return r;
}

static int
extended(al_untar_t *u, uint64_t size, bool wanted, pax_t *x, al_untar_entry_t *e) {
  if (size > PAX_MAX) return bad(u, "an extended header that is too large");
  size_t all = (size_t) (size + BLOCK - 1) / BLOCK * BLOCK;
  int r = need(u, all);
  if (r <= 0) return r < 0 ? r : bad(u, "the archive ends early");
  if (wanted) r = records(u, u->buf + u->at, (size_t) size, x, e);
  use(u, all);
  return r < 0 ? r : 0;
}

/* The path of a header block: prefix, slash, name. GNU tar's own magic has no prefix. */
static int
plain_path(al_untar_t *u, const uint8_t *h, char *out) {
  uint8_t path[256];
  size_t n = 0;
  if (memcmp(h + 257, "ustar", 6) == 0 && h[345] != 0) {
    n = strnlen((const char *) h + 345, 155);
    memcpy(path, h + 345, n);
    path[n++] = '/';
  }
  size_t k = strnlen((const char *) h, 100);
  memcpy(path + n, h, k);
  return clean(u, path, n + k, out);
}

static bool
map_number(al_untar_t *u, size_t *used, uint64_t *out) {
  uint8_t digits[20];
  for (size_t n = 0; n < sizeof(digits); n++) {
    if (*used >= u->left || *used > MAP_MAX || need(u, 1) <= 0) return false;
    uint8_t c = u->buf[u->at];
    use(u, 1);
    ++*used;
    if (c == '\n') return decimal(digits, n, out);
    digits[n] = c;
  }
  return false;
}

/* "COUNT\n", then "OFFSET\nSIZE\n" for each range, padded to whole blocks. */
static int
map(al_untar_t *u, al_untar_entry_t *e) {
  uint64_t count, end = 0, sum = 0;
  size_t used = 0;
  if (!map_number(u, &used, &count) || count > AL_UNTAR_RANGES) return bad(u, "a sparse file's map");
  e->ranges_len = 0;
  for (uint64_t i = 0; i < count; i++) {
    al_untar_range_t r;
    if (!map_number(u, &used, &r.at) || !map_number(u, &used, &r.len)) return bad(u, "a sparse file's map");
    if (r.at < end || r.at > e->size || r.len > e->size - r.at) return bad(u, "a sparse file's map");
    end = r.at + r.len;
    sum += r.len;
    if (r.len > 0) e->ranges[e->ranges_len++] = r;
  }
  size_t rest = (BLOCK - used % BLOCK) % BLOCK;
  if (used + rest > u->left || u->left - used - rest != sum) return bad(u, "a sparse file's size");
  u->left = sum;
  return skip(u, rest);
}

static int
file(al_untar_t *u, const pax_t *x, al_untar_entry_t *e, uint64_t size) {
  e->kind = AL_UNTAR_FILE;
  u->left = size;
  u->padding = (uint32_t) ((BLOCK - size % BLOCK) % BLOCK);
  if (x->sparse || x->version || x->realsize) {
    if (!x->sparse || !x->version || !x->realsize) return bad(u, "half a sparse file");
    e->size = x->realsize_is;
    return map(u, e);
  }
  e->size = size;
  e->ranges_len = size > 0;
  e->ranges[0] = (al_untar_range_t) {.len = size};
  return 0;
}

static int
hard(al_untar_t *u, al_untar_entry_t *e) {
  static char target[AL_UNTAR_PATH + 1];
  e->kind = AL_UNTAR_HARD;
  int r = clean(u, (const uint8_t *) e->link, strlen(e->link), target);
  if (r < 0) return r;
  memcpy(e->link, target, strlen(target) + 1);
  return e->link[0] != 0 ? 0 : bad(u, "a hard link to nothing");
}

static int
entry(al_untar_t *u, const uint8_t *block, const pax_t *x, al_untar_entry_t *e) {
  uint8_t h[BLOCK];
  uint64_t mode, size, mtime = 0;
  int r = 0;
  memcpy(h, block, sizeof(h));
  use(u, BLOCK);
  if (!field(h + 100, 8, &mode) || !field(h + 124, 12, &size) || (!x->mtime && !field(h + 136, 12, &mtime)))
    return bad(u, "a number that is none");
  if (x->size) size = x->size_is;
  if (size > INT64_MAX / 2) return bad(u, "a file that is too large");
  e->mode = (mode_t) (mode & 07777);
  if (!x->mtime) e->mtime = (int64_t) mtime, e->mtime_ns = 0;
  if (!x->path) r = plain_path(u, h, e->path);
  if (r == 0 && !x->link) r = text(u, h + 157, strnlen((const char *) h + 157, 100), e->link);
  if (r < 0) return r;
  if (h[156] != '5' && e->path[0] == 0) return bad(u, "no path");
  switch (h[156]) {
  case 0: case '0': case '7': return file(u, x, e, size);
  case '1': r = hard(u, e); break;
  case '2':
    e->kind = AL_UNTAR_LINK;
    if (e->link[0] == 0) return bad(u, "a link to nothing");
    break;
  case '5': e->kind = AL_UNTAR_DIR; break;
  default: return bad(u, "something that is no file, directory or link");
  }
  /* A link or a directory has no bytes, whatever its size says, except a hard link in some pax archives. */
  if (r == 0 && h[156] != '1' && size > 0) return bad(u, "bytes of something that is no file");
  u->left = size;
  u->padding = (uint32_t) ((BLOCK - size % BLOCK) % BLOCK);
  return r;
}

int
al_untar_next(al_untar_t *u, al_untar_entry_t *e) {
  pax_t x = {0};
  int r = skip(u, u->left);
  if (r == 0) r = skip(u, u->padding);
  u->left = u->padding = 0;
  e->ranges_len = 0;
  e->size = 0;
  while (r == 0) {
    r = need(u, BLOCK);
    if (r <= 0) return r < 0 ? r : bad(u, "the archive ends early");
    const uint8_t *h = u->buf + u->at;
    uint64_t size;
    if (zeros(h, BLOCK)) {
      use(u, BLOCK);
      return finish(u);
    }
    if (memcmp(h + 257, "ustar", 5) != 0 || !checked(h)) return bad(u, "something that is no archive");
    if (h[156] != 'x' && h[156] != 'g') {
      r = entry(u, h, &x, e);
      return r < 0 ? r : 1;
    }
    bool own = h[156] == 'x';
    if (!field(h + 124, 12, &size)) return bad(u, "a number that is none");
    use(u, BLOCK);
    r = extended(u, size, own, &x, e);
  }
  return r;
}

ssize_t
al_untar_data(al_untar_t *u, const uint8_t **p, uint64_t most) {
  if (most > u->left) most = u->left;
  if (most == 0) return 0;
  int r = need(u, most <= WHOLE ? (size_t) most : 1);
  if (r <= 0) return r < 0 ? r : bad(u, "the archive ends early");
  size_t n = u->len < most ? u->len : (size_t) most;
  *p = u->buf + u->at;
  use(u, n);
  u->left -= n;
  return (ssize_t) n;
}

uint64_t
al_untar_direct(const al_untar_t *u) {
  return u->len == 0 ? u->left : 0;
}

void
al_untar_moved(al_untar_t *u, uint64_t n) {
  u->left -= n;
}
