/* SPDX-License-Identifier: Apache-2.0 */
/* Ignore patterns, a subset of .gitignore's. */
#include "ignore.h"
#include "mem.h"
#include <errno.h>
#include <string.h>

typedef struct pattern_s {
  char *text; /* without the marks below */
  bool back, dirs, rooted;
} pattern_t;

struct al_ignore_s {
  size_t len;
  pattern_t patterns[];
};

/* One byte against a bracket expression, p at its '['. Gives its ']', or NULL when there is none. */
static const char *
bracket(const char *p, char byte, bool *hit) {
  unsigned char c = (unsigned char) byte;
  bool negated = p[1] == '!' || p[1] == '^', any = false;
  p += negated ? 2 : 1;
  for (const char *first = p; *p != ']' || p == first; p++) {
    if (*p == '\\') p++;
    if (!*p) return NULL;
    unsigned char from = (unsigned char) *p, to = from;
    if (p[1] == '-' && p[2] && p[2] != ']') {
      p += p[2] == '\\' && p[3] ? 3 : 2;
      to = (unsigned char) *p;
    }
    if (from <= c && c <= to) any = true;
  }
  *hit = any != negated;
  return p;
}

/* p against one byte that is no slash; *end is the last byte of the pattern that was used. */
static bool
matches_byte(const char *p, char byte, const char **end) {
  bool hit = true;
  *end = p;
  switch (*p) {
    case '?': return true;
    case '[': *end = bracket(p, byte, &hit); return hit;
    case '\\': *end = ++p; return *p == byte;
    default: return *p == byte;
  }
}

/* A whole component of two stars or more: what is behind them, else NULL. */
static const char *
double_star(const char *text, const char *p) {
  size_t n = strspn(p, "*");
  return n >= 2 && (p == text || p[-1] == '/') && (!p[n] || p[n] == '/') ? p + n : NULL;
}

/* Whenever something does not match, the last star takes one byte more, and when that would be a slash, the last double
 * star one directory more. Those before them need not be looked at again, so this ends after pattern x path steps. */
static bool
matches(const char *text, const char *s) {
  const char *p = text, *star = NULL, *star_at = NULL, *deep = NULL, *deep_at = NULL, *end;
  for (;;) {
    if ((end = double_star(text, p))) {
      if (!*end) return *s != 0;
      deep = p = end + 1;
      deep_at = s;
      star = NULL;
      continue;
    }
    if (*p == '*') {
      star = ++p;
      star_at = s;
      continue;
    }
    if (!*s && !*p) return true;
    if (*s == '/' && *p == '/') {
      star = NULL;
      p++;
      s++;
      continue;
    }
    if (*s && *s != '/' && *p && *p != '/' && matches_byte(p, *s, &end)) {
      p = end + 1;
      s++;
      continue;
    }
    if (star && *star_at && *star_at != '/') {
      p = star;
      s = ++star_at;
      continue;
    }
    const char *slash = deep ? strchr(deep_at, '/') : NULL;
    if (!slash) return false;
    p = deep;
    s = deep_at = slash + 1;
    star = NULL;
  }
}

static const char *
what_is_wrong(const char *p) {
  bool hit;
  if (!*p) return "it names nothing";
  for (; *p; p++) {
    if (*p == '\\' && !*++p) return "it ends with a backslash";
    if (*p == '[' && !(p = bracket(p, 0, &hit))) return "a bracket has no end";
  }
  return NULL;
}

static int
take(pattern_t *t, const char *given, al_err_t *err) {
  const char *p = given, *wrong;
  if (strlen(given) > AL_IGNORE_LENGTH_MAX)
    return al_err_set(err, AL_EBAD_OPTION, "ignore: the pattern \"%.100s...\" is longer than %d bytes", given,
      AL_IGNORE_LENGTH_MAX);
  if (*p == '!') {
    t->back = true;
    p++;
  }
  size_t n = strlen(p);
  if (n > 0 && p[n - 1] == '/') {
    t->dirs = true;
    n--;
  }
  t->rooted = memchr(p, '/', n) != NULL;
  if (n > 0 && *p == '/') {
    p++;
    n--;
  }
  t->text = al_strdup(p);
  if (!t->text) return al_err_set(err, AL_ENO_MEMORY, "out of memory");
  t->text[n] = 0;
  wrong = what_is_wrong(t->text);
  return wrong ? al_err_set(err, AL_EBAD_OPTION, "ignore: the pattern \"%s\" is none: %s", given, wrong) : 0;
}

int
al_ignore_open(const char *const *patterns, al_ignore_t **out, al_err_t *err) {
  size_t n = 0;
  while (patterns[n]) n++;
  if (n > AL_IGNORE_MAX) return al_err_set(err, AL_EBAD_OPTION, "ignore: more than %d patterns", AL_IGNORE_MAX);
  al_ignore_t *ig = al_calloc(1, sizeof *ig + n * sizeof ig->patterns[0]);
  if (!ig) return al_err_set(err, AL_ENO_MEMORY, "out of memory");
  int r = 0;
  for (size_t i = 0; i < n && r == 0; i++)
    if (patterns[i][0] && patterns[i][0] != '#') r = take(&ig->patterns[ig->len++], patterns[i], err);
  if (r < 0) al_ignore_close(ig);
  else *out = ig;
  return r;
}

void
al_ignore_close(al_ignore_t *ig) {
  if (!ig) return;
  for (size_t i = 0; i < ig->len; i++) al_free(ig->patterns[i].text);
  al_free(ig);
}

bool
al_ignore_matches(const al_ignore_t *ig, const char *path, bool is_dir) {
  if (!ig) return false;
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  for (size_t i = ig->len; i-- > 0;) {
    const pattern_t *t = &ig->patterns[i];
    if ((is_dir || !t->dirs) && matches(t->text, t->rooted ? path : name)) return !t->back;
  }
  return false;
}
