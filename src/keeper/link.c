/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper's end of the link: reads whole records, checks every length, answers. */
#include "keeper.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* SIGPIPE is ignored anyway */
#endif

typedef union record_u {
  al_keeper_head_t head;
  al_keeper_keep_t keep;
  al_keeper_drop_t drop;
  unsigned char bytes[sizeof(al_keeper_keep_t)];
} record_t;

static record_t in;
static size_t have;

/* What the owner may say, 0 for all else. */
static size_t
size_of(uint32_t type) {
  if (type == AL_KEEPER_KEEP) return sizeof in.keep;
  return type == AL_KEEPER_DROP ? sizeof in.drop : 0;
}

static bool
ends(const char *text, size_t cap) {
  return memchr(text, 0, cap) != NULL;
}

/* An answer that does not get through is missed by the owner, who then refuses the lane. */
static void
answer(const al_keeper_t *k, uint32_t seq, int status) {
  al_keeper_ack_t ack = {.head = {AL_KEEPER_MAGIC, sizeof ack, AL_KEEPER_ACK, seq}, .status = status};
  ssize_t n = send(k->link, &ack, sizeof ack, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n != (ssize_t) sizeof ack && errno != EPIPE) al_keeper_log(k, "an answer could not be sent: %s", strerror(errno));
}

static int
keep(al_keeper_t *k, const al_keeper_keep_t *r) {
  if (!ends(r->name, sizeof r->name) || !ends(r->limactl, sizeof r->limactl) ||
    !ends(r->path_env, sizeof r->path_env) || !ends(r->user_home, sizeof r->user_home))
    return -EINVAL;
  if (!al_name_valid(r->name) || r->limactl[0] != '/' || r->expires_boot_ms == 0 || r->expires_boot_ms > INT64_MAX)
    return -EINVAL;
  return al_keeper_lanes_keep(k, r);
}

static void
take(al_keeper_t *k) {
  if (in.head.type == AL_KEEPER_KEEP) {
    int rc = keep(k, &in.keep);
    if (rc) al_keeper_log(k, "a lane was not taken: %s", strerror(-rc));
    answer(k, in.head.seq, rc);
  } else if (ends(in.drop.name, sizeof in.drop.name)) {
    al_keeper_lanes_drop(k, in.drop.name);
  }
}

static bool
head_is_good(void) {
  return in.head.magic == AL_KEEPER_MAGIC && in.head.size != 0 && in.head.size == size_of(in.head.type);
}

bool
al_keeper_link_read(al_keeper_t *k) {
  for (;;) {
    size_t want = have < sizeof in.head ? sizeof in.head : in.head.size;
    ssize_t n = recv(k->link, in.bytes + have, want - have, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n <= 0) { /* what has come of the last record is lost with its sender */
      al_keeper_log(k, "the owner's end of the link is closed");
      k->orphaned = true;
      return true;
    }
    have += (size_t) n;
    if (have == sizeof in.head && !head_is_good()) return false;
    if (have < sizeof in.head || have < in.head.size) continue;
    have = 0;
    take(k);
  }
}

int
al_keeper_link_hello(al_keeper_t *k) {
  al_keeper_hello_t hello = {.head = {AL_KEEPER_MAGIC, sizeof hello, AL_KEEPER_HELLO, 0}, .pid = getpid()};
  ssize_t n = send(k->link, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT);
  return n == (ssize_t) sizeof hello ? 0 : n < 0 ? -errno : -EIO;
}
