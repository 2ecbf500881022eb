/* SPDX-License-Identifier: Apache-2.0 */
/* The test build's end of src/hook.h: says to a driver which edge a lane has come to, and waits for its word. */
#include "hook.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MS 30000 /* a driver that has died keeps no lane for ever */

/* AGENT_LANE_HOOK is NAME:FIFO. The name goes into FIFO, the word to go on comes out of FIFO.go; the driver holds both
 * open. Until FIFO is there nothing happens, so a driver can let the first calls by. */
void
al_hook(const char *name) {
  static atomic_flag told = ATOMIC_FLAG_INIT;
  const char *want = getenv("AGENT_LANE_HOOK");
  char go[512], line[128];
  size_t n = strlen(name);

  if (!want || strncmp(want, name, n) != 0 || want[n] != ':') return;
  int fd = open(want + n + 1, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  snprintf(go, sizeof go, "%s.go", want + n + 1);
  struct pollfd word = {.fd = open(go, O_RDONLY | O_NONBLOCK | O_CLOEXEC), .events = POLLIN};
  int len = snprintf(line, sizeof line, "%s\n", name);
  if (word.fd >= 0 && !atomic_flag_test_and_set(&told) && write(fd, line, (size_t) len) == len)
    (void) poll(&word, 1, WAIT_MS);
  close(fd);
  if (word.fd >= 0) close(word.fd);
}

uint64_t
al_hook_life(uint64_t ms) {
  const char *text = getenv("AGENT_LANE_HOOK_LIFE_MS");
  return text && *text ? strtoull(text, NULL, 10) : ms;
}
