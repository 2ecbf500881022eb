/* SPDX-License-Identifier: Apache-2.0 */
/* For the build with ThreadSanitizer: libuv closes descriptors by syscall(SYS_close), which TSan does not see. It then takes
 * the descriptor for one that is still open, and its next owner in another thread for a race. Here such a call becomes a
 * close() that is seen; every other one is passed on. */
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

static long (*real)(long number, ...);

/* Before main: dlsym takes locks, which a forked child must not. */
__attribute__((constructor)) static void
find_real(void) {
  *(void **) &real = dlsym(RTLD_NEXT, "syscall");
}

__attribute__((visibility("default"))) long
syscall(long number, ...) {
  long a[6];
  va_list ap;
  va_start(ap, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(ap, long); /* who gave fewer gets what is not looked at */
  va_end(ap);
  if (number == SYS_close) return close((int) a[0]);
  if (!real) find_real();
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
