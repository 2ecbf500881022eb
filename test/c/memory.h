/* SPDX-License-Identifier: Apache-2.0 */
/* What this process holds of the machine's memory, for tests of what a guest may cost. */
#ifndef AL_MEMORY_H
#define AL_MEMORY_H

#include "al_test.h"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* Bytes: "VmRSS:" now, "VmHWM:" the most since the last memory_reset. */
static inline size_t
memory(const char *field) {
  char line[256];
  size_t kib = 0;
  FILE *f = fopen("/proc/self/status", "re");
  assert_non_null(f);
  while (fgets(line, sizeof line, f))
    if (strncmp(line, field, strlen(field)) == 0) kib = strtoul(line + strlen(field) + 1, NULL, 10);
  fclose(f);
  return kib << 10;
}

/* A sanitizer keeps what is freed, and so does valgrind. */
static inline bool
memory_is_kept(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return getenv("WRAP") && getenv("WRAP")[0];
#endif
}

/* False where the peak cannot be reset, or says nothing. */
static inline bool
memory_reset(void) {
  if (memory_is_kept()) return false;
  int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  bool ok = fd >= 0 && write(fd, "5", 1) == 1;
  if (fd >= 0) close(fd);
  return ok;
}

#endif
