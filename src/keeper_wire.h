/* SPDX-License-Identifier: Apache-2.0 */
/* What the owner and its keeper say to each other: fixed records over a socket pair, in the machine's own byte order,
 * since both ends are of one package on one machine. */
#ifndef AL_KEEPER_WIRE_H
#define AL_KEEPER_WIRE_H

#include "names.h"
#include <stdint.h>

#define AL_KEEPER_MAGIC 0x314b4c41u /* "ALK1" */
#define AL_KEEPER_VERSION "1"       /* of the words and of these records */
#define AL_KEEPER_PATH_MAX 1024

typedef enum {
  AL_KEEPER_HELLO = 1, /* keeper: it watches; from here on it keeps */
  AL_KEEPER_KEEP,      /* owner: end this lane when I am gone or its time is over. Answered by ACK */
  AL_KEEPER_DROP,      /* owner: the lane is proven gone. Not answered */
  AL_KEEPER_ACK
} al_keeper_type_t;

typedef struct al_keeper_head_s {
  uint32_t magic;
  uint32_t size; /* of the whole record: that of its type, nothing else */
  uint32_t type;
  uint32_t seq;  /* of a KEEP, given back in its ACK */
} al_keeper_head_t;

typedef struct al_keeper_hello_s {
  al_keeper_head_t head;
  int64_t pid;
} al_keeper_hello_t;

/* All texts end with NUL. */
typedef struct al_keeper_keep_s {
  al_keeper_head_t head;
  int64_t row;
  uint64_t expires_boot_ms;
  char name[32];
  char limactl[AL_KEEPER_PATH_MAX], path_env[AL_KEEPER_PATH_MAX / 2], user_home[AL_KEEPER_PATH_MAX];
} al_keeper_keep_t;

typedef struct al_keeper_drop_s {
  al_keeper_head_t head;
  char name[32];
} al_keeper_drop_t;

typedef struct al_keeper_ack_s {
  al_keeper_head_t head;
  int32_t status; /* 0 = kept; -errno */
  int32_t zero;
} al_keeper_ack_t;

#endif
