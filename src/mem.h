/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: a replaceable allocator table (tests inject failures), overflow-checked sizes, cleanup attributes. */
#ifndef AL_MEM_H
#define AL_MEM_H

#include <stddef.h>

typedef struct al_mem_table_s {
  void *(*malloc)(size_t n);
  void *(*realloc)(void *p, size_t n);
  void (*free)(void *p);
} al_mem_table_t;

/* Replaces the table; call before any other use or in a test at rest. NULL restores libc's. */
void
al_mem_set(const al_mem_table_t *table);

void *
al_malloc(size_t n); /* NULL when out of memory; n = 0 gives a unique pointer */
void *
al_calloc(size_t count, size_t size); /* NULL also on overflow */
void *
al_realloc(void *p, size_t n);
void *
al_reallocarray(void *p, size_t count, size_t size); /* NULL and p untouched on overflow */
void
al_free(void *p); /* NULL is a no-op */
char *
al_strdup(const char *s); /* NULL for NULL */
void *
al_memdup(const void *p, size_t n); /* one more byte, zero, after the copy */
/* Writes zeros that no compiler leaves out as unused: for secrets. explicit_bzero is not everywhere. */
void
al_wipe(void *p, size_t n);
char *
al_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

void
al__cleanup_free(void *pp);
void
al__cleanup_fd(int *fd);

/* AL_AUTO_FREE char *p = ...; AL_AUTO_FD int fd = -1; closed or freed when the scope ends. */
#define AL_AUTO_FREE __attribute__((cleanup(al__cleanup_free)))
#define AL_AUTO_FD __attribute__((cleanup(al__cleanup_fd)))

/* Takes the value out of an AL_AUTO variable, so that the scope's end leaves it alone. */
#define al_steal(pp) \
  __extension__({ __typeof__(*(pp)) al__stolen = *(pp); *(pp) = 0; al__stolen; })

/* Our own invariants only, on in release builds. Input is never asserted. */
void
al__assert_failed(const char *expr, const char *file, int line) __attribute__((noreturn));
#define AL_ASSERT(expr) ((expr) ? (void) 0 : al__assert_failed(#expr, __FILE__, __LINE__))

#endif
