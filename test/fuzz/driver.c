/* SPDX-License-Identifier: Apache-2.0 */
/* Where there is no libFuzzer: runs a fuzzer over its corpus, then over a fixed number of mutations of it, the same ones
 * each time.   fuzz_NAME [RUNS [SEED]] DIRECTORY     an input that ends the program is left in ./crash */
#include "fuzz.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#define INPUTS_MAX 4096
#define SIZE_LIMIT 70000u

static struct { uint8_t *p; size_t n; } inputs[INPUTS_MAX];
static size_t inputs_len;
static uint64_t seed = 1;
static uint8_t work[SIZE_LIMIT];
static size_t work_len;

static uint64_t
below(uint64_t n) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return n ? seed % n : 0;
}

static void
on_abort(int signo) {
  (void) signo;
  int fd = open("crash", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd >= 0 && write(fd, work, work_len) == (ssize_t) work_len) close(fd);
  signal(SIGABRT, SIG_DFL);
  abort();
}

static void
run(void) {
  uint8_t *p = malloc(work_len ? work_len : 1); /* its own size, so that a byte too far is seen */
  MUST(p != NULL, "memory");
  memcpy(p, work, work_len);
  LLVMFuzzerTestOneInput(p, work_len);
  free(p);
}

static void
load(const char *dir) {
  DIR *d = opendir(dir);
  MUST(d != NULL, dir);
  for (struct dirent *e; (e = readdir(d)) && inputs_len < INPUTS_MAX;) {
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || (size_t) st.st_size > SIZE_LIMIT) continue;
    FILE *f = fopen(path, "rb");
    MUST(f != NULL, path);
    size_t n = (size_t) st.st_size;
    uint8_t *p = malloc(n + 1);
    MUST(p != NULL && fread(p, 1, n, f) == n, path);
    fclose(f);
    inputs[inputs_len].p = p;
    inputs[inputs_len++].n = n;
  }
  closedir(d);
}

static int
by_bytes(const void *a, const void *b) {
  const struct { uint8_t *p; size_t n; } *x = a, *y = b;
  int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
  return c != 0 ? c : (x->n > y->n) - (x->n < y->n);
}

static void
insert(size_t at, const uint8_t *p, size_t n) {
  if (n > SIZE_LIMIT - work_len) n = SIZE_LIMIT - work_len;
  memmove(work + at + n, work + at, work_len - at);
  memcpy(work + at, p, n);
  work_len += n;
}

static void
mutate(void) {
  static const uint8_t telling[] = {0, 1, 2, 3, 4, 10, 13, 16, 20, 25, 0x7f, 0x80, 0xc3, 0xe2, 0xf0, 0xff};
  size_t at = (size_t) below(work_len + 1), n = (size_t) below(16) + 1, other = (size_t) below(inputs_len);
  uint8_t bytes[16];
  if (n > work_len - at) n = work_len - at;
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = below(3) ? telling[below(sizeof telling)] : (uint8_t) below(256);
  switch (below(6)) {
    case 0: if (n > 0) work[at] ^= (uint8_t) (1u << below(8)); break;
    case 1: memcpy(work + at, bytes, n); break;
    case 2: insert(at, bytes, (size_t) below(sizeof bytes) + 1); break;
    case 3:
      memmove(work + at, work + at + n, work_len - at - n);
      work_len -= n;
      break;
    case 4: /* a piece of another input, or of itself once more */
      if (inputs[other].n > 0) {
        size_t from = (size_t) below(inputs[other].n);
        insert(at, inputs[other].p + from, (size_t) below(inputs[other].n - from) + 1);
      }
      break;
    default: work_len = at; break;
  }
}

int
main(int argc, char **argv) {
  uint64_t runs = argc > 2 ? strtoull(argv[1], NULL, 10) : 0;
  if (argc > 3) seed = strtoull(argv[2], NULL, 10) | 1;
  if (argc < 2) return 2;
  load(argv[argc - 1]);
  MUST(inputs_len > 0, "there is no corpus");
  qsort(inputs, inputs_len, sizeof inputs[0], by_bytes); /* a directory has no order of its own */
  signal(SIGABRT, on_abort);
  for (uint64_t k = 0; k < inputs_len + runs; k++) {
    size_t i = k < inputs_len ? (size_t) k : (size_t) below(inputs_len);
    memcpy(work, inputs[i].p, work_len = inputs[i].n);
    for (uint64_t m = k < inputs_len ? 0 : below(6) + 1; m > 0; m--) mutate();
    run();
  }
  printf("%zu inputs, %llu mutations\n", inputs_len, (unsigned long long) runs);
  for (size_t i = 0; i < inputs_len; i++) free(inputs[i].p);
  return 0;
}
