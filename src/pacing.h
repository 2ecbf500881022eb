/* SPDX-License-Identifier: Apache-2.0 */
/* Pacing: how much a sender of the channel leaves unacknowledged. Both ends keep to it, each in its own direction. */
#ifndef AL_PACING_H
#define AL_PACING_H

#include "frame.h"

typedef struct al_pacing_s {
  uint32_t most;       /* bytes that may be unacknowledged now; begins as AL_PACING_DEFAULT */
  uint32_t alone;      /* as many at least for a stream that is alone; constant */
  uint64_t slow_ns;    /* less when delivery takes longer, more when it takes less than half; constant */
  uint64_t full_total; /* what was sent in all when nothing more might go, */
  uint64_t full_ns;    /* and when that was; 0 = more may go */
  uint64_t alone_ns;   /* since when only `sender` has had something to send */
  uint32_t sender;     /* the last stream that had; 0 = none ever */
} al_pacing_t;

/* Bytes that may be unacknowledged now: `most`, and more for one that is alone, for nothing of others waits behind it. */
uint32_t
al_pacing_most(const al_pacing_t *p, uint64_t now_ns);
/* Stream `sender` has something to send. */
void
al_pacing_sent(al_pacing_t *p, uint32_t sender, uint64_t now_ns);
/* Nothing more may go; `total`: bytes sent so far. The first call counts until the acknowledgement. */
void
al_pacing_full(al_pacing_t *p, uint64_t total, uint64_t now_ns);
/* The other end has read `total` bytes. */
void
al_pacing_acked(al_pacing_t *p, uint64_t total, uint64_t now_ns);

#endif
