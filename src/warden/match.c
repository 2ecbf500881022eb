/* SPDX-License-Identifier: Apache-2.0 */
/* Matching one argument of Lima's against one pattern: whole, item by item, every item exactly once. */
#include "warden.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ITEMS_MAX 12

typedef struct span_s {
  const char *p;
  size_t n;
} span_t;

typedef struct ctx_s {
  const al_warden_policy_t *policy;
  const char *dir, *name;
} ctx_t;

static int
split(const char *text, span_t items[ITEMS_MAX]) {
  int n = 0;
  for (;;) {
    const char *comma = strchr(text, ',');
    size_t len = comma != NULL ? (size_t) (comma - text) : strlen(text);
    if (len == 0 || n == ITEMS_MAX) return -1; /* empty items would be QEMU's escaped commas */
    items[n++] = (span_t) {text, len};
    if (comma == NULL) return n;
    text = comma + 1;
  }
}

static size_t
digits(const char *p, size_t n, size_t max) {
  size_t i = 0;
  while (i < n && i < max && p[i] >= '0' && p[i] <= '9') i++;
  return p[0] == '0' ? 0 : i;
}

static size_t
port(const char *p, size_t n) {
  size_t len = digits(p, n, 5);
  unsigned value = 0;
  for (size_t i = 0; i < len; i++) value = value * 10 + (unsigned) (p[i] - '0');
  return value <= 65535 ? len : 0;
}

static size_t
mac(const char *p, size_t n) {
  for (size_t i = 0; i < 17; i++) {
    if (i >= n) return 0;
    bool hex = (p[i] >= '0' && p[i] <= '9') || (p[i] >= 'a' && p[i] <= 'f');
    if (i % 3 == 2 ? p[i] != ':' : !hex) return 0;
  }
  return 17;
}

/* QEMU's firmware: read-only code that root or we installed beside QEMU. */
static size_t
firmware(const char *p, size_t n, const ctx_t *c) {
  char path[AL_WARDEN_PATH_MAX], beside[AL_WARDEN_PATH_MAX];
  const char *slash = strrchr(c->policy->qemu, '/');
  struct stat st;
  if (n >= sizeof path) return 0;
  memcpy(path, p, n);
  path[n] = 0;
  size_t len = (size_t) (slash - c->policy->qemu);
  memcpy(beside, c->policy->qemu, len);
  beside[len] = 0;
  char *bin = strrchr(beside, '/'); /* PREFIX/bin -> PREFIX */
  size_t prefix = bin != NULL ? (size_t) (bin - beside) : 0;
  bool there = strncmp(path, "/usr/share/", 11) == 0 ||
               (strncmp(path, beside, prefix) == 0 && strncmp(path + prefix, "/share/qemu/", 12) == 0);
  if (!there || strstr(path, "/../") != NULL) return 0;
  if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || (st.st_mode & 022) != 0) return 0;
  return st.st_uid == 0 || st.st_uid == geteuid() ? n : 0;
}

static size_t
cpu(const char *p, size_t n) {
  size_t i = 0;
  while (i < n && ((p[i] >= 'a' && p[i] <= 'z') || (p[i] >= '0' && p[i] <= '9') || p[i] == '-' || p[i] == '_')) i++;
  return i;
}

static size_t
literal(const char *text, const char *p, size_t n) {
  size_t len = strlen(text);
  return len <= n && memcmp(text, p, len) == 0 ? len : 0;
}

/* Length of what the class eats at p, 0 when it does not fit. */
static size_t
eat(char class, const char *p, size_t n, const ctx_t *c) {
  switch (class) {
  case 'd': return literal(c->dir, p, n);
  case 'N': return literal(c->name, p, n);
  case 'n': return n > 0 ? digits(p, n, 7) : 0;
  case 'p': return n > 0 ? port(p, n) : 0;
  case 'm': return mac(p, n);
  case 'c': return cpu(p, n);
  case 'f': return firmware(p, n, c);
  default: return 0;
  }
}

static bool
match_item(span_t pattern, span_t item, const ctx_t *c) {
  size_t i = 0;
  for (size_t k = 0; k < pattern.n; k++) {
    if (pattern.p[k] != '%') {
      if (i >= item.n || item.p[i] != pattern.p[k]) return false;
      i++;
      continue;
    }
    k++;
    size_t len = k < pattern.n ? eat(pattern.p[k], item.p + i, item.n - i, c) : 0;
    if (len == 0) return false;
    i += len;
  }
  return i == item.n;
}

static bool
match_text(const char *value) {
  size_t n = strlen(value);
  if (n > 4096) return false;
  for (size_t i = 0; i < n; i++) {
    if (value[i] < 0x20 || value[i] > 0x7e) return false;
  }
  return true;
}

bool
al_warden_match(const char *pattern, const char *value, const al_warden_policy_t *policy, const char *dir,
  const char *name) {
  span_t want[ITEMS_MAX], have[ITEMS_MAX];
  bool used[ITEMS_MAX] = {false};
  ctx_t c = {policy, dir, name};
  if (strcmp(pattern, "%t") == 0) return match_text(value);
  int n = split(pattern, want);
  if (n < 0 || split(value, have) != n || !match_item(want[0], have[0], &c)) return false;
  for (int i = 1; i < n; i++) {
    int k = 1;
    while (k < n && (used[k] || !match_item(want[k], have[i], &c))) k++;
    if (k == n) return false;
    used[k] = true;
  }
  return true;
}
