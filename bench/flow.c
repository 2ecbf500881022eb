/* SPDX-License-Identifier: Apache-2.0 */
/* The other ends of the benchmarks: a producer, a sink, the plain relay that any agent costs at least, and a host that
 * asks a lane agent of its own for 64 commands at once. */
#include "frame.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHUNK 65536u
#define LINE 80u
#define SPAWNS_MAX 256u
#define DEADLINE_MS 60000

static uint8_t bytes[CHUNK * 2 + LINE];

static int
die(const char *what) {
  fprintf(stderr, "flow: %s: %s\n", what, strerror(errno));
  return 1;
}

static int
write_all(int fd, const uint8_t *p, size_t n) {
  while (n > 0) {
    ssize_t done = write(fd, p, n);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return -1;
    p += done;
    n -= (size_t) done;
  }
  return 0;
}

/* Lines of 80 bytes with their end; writes that end anywhere in a line, as a program's buffers do. 0 = for ever. */
static int
produce(unsigned long long total) {
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t) (i % LINE == LINE - 1 ? '\n' : 'a' + i % 26);
  for (unsigned long long done = 0; total == 0 || done < total;) {
    size_t n = total > 0 && total - done < CHUNK ? (size_t) (total - done) : CHUNK;
    if (write_all(1, bytes + done % LINE, n) != 0) return die("write");
    done += n;
  }
  return 0;
}

static int
sink(void) {
  unsigned long long total = 0;
  for (;;) {
    ssize_t n = read(0, bytes, CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return die("read");
    if (n == 0) break;
    total += (unsigned long long) n;
  }
  printf("%llu\n", total);
  return 0;
}

static int
relay(void) {
  for (;;) {
    ssize_t n = read(0, bytes, CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return die("read");
    if (n == 0) return 0;
    if (write_all(1, bytes, (size_t) n) != 0) return die("write");
  }
}

static double
now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double) t.tv_sec * 1000 + (double) t.tv_nsec / 1e6;
}

static int
start_agent(char **argv) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return -1;
  pid_t pid = fork();
  if (pid < 0) return -1;
  if (pid == 0) {
    dup2(pair[1], 0);
    dup2(pair[1], 1);
    execv(argv[0], argv);
    _exit(127);
  }
  close(pair[1]);
  return pair[0];
}

static int
hello(int fd) {
  uint8_t f[AL_FRAME_HEADER + 40] = { 0 };
  al_frame_header(f, 0, AL_F_HELLO, 0, 40);
  memcpy(f + AL_FRAME_HEADER, AL_PROTO_MAGIC, 4);
  al_put16(f + AL_FRAME_HEADER + 4, AL_PROTO_VERSION);
  al_put16(f + AL_FRAME_HEADER + 6, AL_PROTO_VERSION);
  return write_all(fd, f, sizeof f);
}

static int
ask(int fd, uint32_t id, const char *command) {
  uint8_t f[1024];
  uint8_t *p = f + AL_FRAME_HEADER;
  size_t n = 0, room = sizeof f - AL_FRAME_HEADER;
  const char *argv[] = { "/bin/sh", "-c", command };
  for (size_t i = 0; i < 3; i++) n += al_tlv_put(p + n, room - n, AL_TLV_ARG, argv[i], (uint32_t) strlen(argv[i]));
  n += al_tlv_put(p + n, room - n, AL_TLV_CWD, "/", 1);
  al_frame_header(f, id, AL_F_EXEC, 0, (uint32_t) n);
  return write_all(fd, f, AL_FRAME_HEADER + n);
}

/* Asks when the agent has proven itself, counts the good ends. Gives how many came, or -1. */
static int
run(int fd, unsigned count, const char *command, double *started) {
  size_t len = 0;
  unsigned good = 0, over = 0;
  while (over < count) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    if (poll(&p, 1, DEADLINE_MS) != 1) return -1;
    ssize_t n = read(fd, bytes + len, sizeof bytes - len);
    if (n <= 0) return -1;
    len += (size_t) n;
    size_t at = 0;
    for (;;) {
      al_frame_t f;
      const char *why = "";
      int took = al_frame_parse(bytes + at, len - at, &f, &why);
      if (took < 0) return -1;
      if (took == AL_FRAME_MORE) break;
      if (f.type == AL_F_REJECT) return -1;
      if (f.type == AL_F_HELLO_ACK) {
        *started = now_ms();
        for (uint32_t i = 1; i <= count; i++)
          if (ask(fd, i, command) != 0) return -1;
      } else if (f.type == AL_F_EXIT) {
        over++;
        good += al_get32(f.payload) == AL_EXIT_CODE && al_get32(f.payload + 4) == 0;
      }
      at += (size_t) took;
    }
    len -= at;
    memmove(bytes, bytes + at, len);
  }
  return (int) good;
}

/* Prints milliseconds from the first request to the last end, and how many ended well. */
static int
spawns(unsigned count, const char *command, char **agent) {
  double started = 0;
  if (count < 1 || count > SPAWNS_MAX) return die("number of commands");
  int fd = start_agent(agent);
  if (fd < 0 || hello(fd) != 0) return die("agent");
  int good = run(fd, count, command, &started);
  double ms = now_ms() - started;
  close(fd);
  while (wait(NULL) > 0) continue;
  if (good < 0) return die("the agent ended the channel");
  printf("%.3f %d\n", ms, good);
  return 0;
}

int
main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "lines") == 0 && argc == 3) return produce(strtoull(argv[2], NULL, 10));
  if (strcmp(what, "sink") == 0 && argc == 2) return sink();
  if (strcmp(what, "relay") == 0 && argc == 2) return relay();
  if (strcmp(what, "spawns") == 0 && argc >= 5) return spawns((unsigned) atoi(argv[2]), argv[3], argv + 4);
  fprintf(stderr, "usage: flow lines BYTES | sink | relay | spawns COUNT COMMAND AGENT [ARGUMENT...]\n");
  return 2;
}
