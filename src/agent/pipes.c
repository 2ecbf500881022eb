/* SPDX-License-Identifier: Apache-2.0 */
/* The pipes between the agent and its commands, some of them made before they are asked for. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* A command without input takes two. In an emulated guest that is 0.2 ms of about 7 that a command takes (measured), and
 * nobody need wait for it. */
#define AHEAD 2

static int ahead[AHEAD][2];
static size_t ahead_len;

void
al_pipes_ahead(void) {
  while (ahead_len < AHEAD && pipe2(ahead[ahead_len], O_CLOEXEC) == 0) ahead_len++;
}

static int
take(int *ours, int *theirs, int end) {
  int fd[2];
  if (ahead_len > 0) {
    ahead_len--;
    fd[0] = ahead[ahead_len][0];
    fd[1] = ahead[ahead_len][1];
  } else if (pipe2(fd, O_CLOEXEC) != 0) {
    return -errno;
  }
  *ours = fd[end];
  *theirs = fd[!end];
  return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0 ? 0 : -errno; /* our end only: the command's must block */
}

int
al_pipes_make(al_slot_t *s, al_spawn_t *sp, bool with_stdin) {
  int err = 0;
  if (with_stdin) err = take(&s->fd[AL_SUB_STDIN], &sp->fd[AL_SUB_STDIN], 1);
  if (err == 0) err = take(&s->fd[AL_SUB_STDOUT], &sp->fd[AL_SUB_STDOUT], 0);
  if (err == 0) err = take(&s->fd[AL_SUB_STDERR], &sp->fd[AL_SUB_STDERR], 0);
  return err;
}
