/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: the allocator table, checked sizes and the functions behind the cleanup attributes. */
#include "mem.h"
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const al_mem_table_t libc_table = {malloc, realloc, free};
/* The one process-wide variable of the core: it is written by tests at rest only. */
static al_mem_table_t table = {malloc, realloc, free};

void
al_mem_set(const al_mem_table_t *t) {
  table = t ? *t : libc_table;
}

void *
al_malloc(size_t n) {
  return table.malloc(n ? n : 1);
}

void *
al_calloc(size_t count, size_t size) {
  size_t n;

  if (__builtin_mul_overflow(count, size, &n)) return NULL;
  void *p = al_malloc(n);
  if (p) memset(p, 0, n ? n : 1);
  return p;
}

void *
al_realloc(void *p, size_t n) {
  return table.realloc(p, n ? n : 1);
}

void *
al_reallocarray(void *p, size_t count, size_t size) {
  size_t n;

  return __builtin_mul_overflow(count, size, &n) ? NULL : al_realloc(p, n);
}

void
al_free(void *p) {
  if (p) table.free(p);
}

void *
al_memdup(const void *p, size_t n) {
  if (n == SIZE_MAX) return NULL;
  char *copy = al_malloc(n + 1);
  if (!copy) return NULL;
  if (n) memcpy(copy, p, n);
  copy[n] = 0;
  return copy;
}

char *
al_strdup(const char *s) {
  return s ? al_memdup(s, strlen(s)) : NULL;
}

void
al_wipe(void *p, size_t n) {
  if (n) memset(p, 0, n);
  __asm__ volatile("" : : "r"(p) : "memory"); /* somebody might read it: so it has to be written */
}

char *
al_asprintf(const char *fmt, ...) {
  va_list ap;

  va_start(ap, fmt);
  int n = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  if (n < 0) return NULL;
  char *s = al_malloc((size_t) n + 1);
  if (!s) return NULL;
  va_start(ap, fmt);
  vsnprintf(s, (size_t) n + 1, fmt, ap);
  va_end(ap);
  return s;
}

void
al__cleanup_free(void *pp) {
  void *p;

  memcpy(&p, pp, sizeof p);
  al_free(p);
}

void
al__cleanup_fd(int *fd) {
  if (*fd < 0) return;
  /* The scope may be returning -errno of a failed call. */
  int saved = errno;
  close(*fd);
  errno = saved;
}

void
al__assert_failed(const char *expr, const char *file, int line) {
  fprintf(stderr, "agent-lane: assertion failed: %s (%s:%d)\n", expr, file, line);
  abort();
}
