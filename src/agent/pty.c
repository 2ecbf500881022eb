/* SPDX-License-Identifier: Apache-2.0 */
/* The terminal of a command: a pseudo-terminal whose master is ours, one descriptor for each direction. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

/* We keep the slave open as well until the main process is reaped: a program that closes all three descriptors and goes
 * on may open /dev/tty again, and the master would already have told us the end. From then on the end of the last other
 * holder is the end of the output; what was written before it is read first, so no tail is lost. */
int
al_pty_open(al_slot_t *s, al_spawn_t *sp) {
  int unlock = 0;
  int master = s->fd[AL_SUB_STDOUT] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (master < 0) return -errno;
  if (ioctl(master, TIOCSPTLCK, &unlock) != 0) return -errno;
  s->tty = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (s->tty < 0) return -errno;
  s->fd[AL_SUB_STDIN] = fcntl(master, F_DUPFD_CLOEXEC, 0);
  if (s->fd[AL_SUB_STDIN] < 0) return -errno;
  struct termios t;
  if (tcgetattr(s->tty, &t) != 0) return -errno;
  t.c_iflag |= IUTF8; /* erasing takes a whole character back */
  if (tcsetattr(s->tty, TCSANOW, &t) != 0) return -errno;
  /* tmux, screen and script open their terminal by its name, as the user they are. */
  if (sp->user != NULL && (fchown(s->tty, sp->user->uid, (gid_t) -1) != 0 || fchmod(s->tty, 0620) != 0)) return -errno;
  for (int i = 0; i < AL_SUBS; i++) sp->fd[i] = s->tty;
  sp->tty = true;
  al_pty_resize(s, s->rows, s->cols);
  return 0;
}

void
al_pty_resize(al_slot_t *s, uint16_t rows, uint16_t cols) {
  struct winsize w = {.ws_row = rows, .ws_col = cols};
  s->rows = rows; /* one that comes before the whole request is in counts too */
  s->cols = cols;
  if (s->tty >= 0) (void) ioctl(s->tty, TIOCSWINSZ, &w);
}

void
al_pty_close(al_slot_t *s) {
  if (s->tty >= 0) close(s->tty);
  s->tty = -1;
}

/* A terminal has no end of input, only a character that means it: at the beginning of a line it is the end, else it
 * hands the unfinished line on and a second one is the end. Programs in raw mode take the character itself. */
size_t
al_pty_eof(const al_slot_t *s, uint8_t out[2]) {
  struct termios t;
  out[0] = out[1] = 4;
  if (tcgetattr(s->tty, &t) != 0 || !(t.c_lflag & ICANON)) return 1;
  if (t.c_cc[VEOF] == 0) return 0; /* the program has switched it off */
  out[0] = out[1] = t.c_cc[VEOF];
  uint8_t last = s->area_len > 0 ? al_stream_area(s)[s->area_off + s->area_len - 1] : s->last_in;
  bool fresh = last == 0 || last == '\n' || last == t.c_cc[VEOF] || (last == '\r' && (t.c_iflag & ICRNL));
  return fresh ? 1 : 2;
}
