/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's terminal, for what Node leaves out of raw mode: its output must not be changed on the way. */
#include "al.h"

#include <errno.h>
#include <termios.h>

/* Node's raw mode keeps ONLCR. The guest's terminal has made \r\n of \n already where its program wants that, and a
 * full-screen program that moves down by a bare \n must not be thrown to the left edge. */
int
al_tty_raw_output(int fd) {
  struct termios t;
  if (tcgetattr(fd, &t) != 0) return -errno;
  t.c_oflag &= ~(tcflag_t) OPOST;
  int rc;
  do rc = tcsetattr(fd, TCSADRAIN, &t);
  while (rc != 0 && errno == EINTR);
  return rc == 0 ? 0 : -errno;
}
