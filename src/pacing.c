/* SPDX-License-Identifier: Apache-2.0 */
/* Pacing follows the time that the channel takes to deliver what is on its way, for that is what a ping waits. */
#include "pacing.h"

#define STEP 16384u /* at least, and an eighth: one busy moment of the other end is no slow channel */

uint32_t
al_pacing_most(const al_pacing_t *p, uint64_t now_ns) {
  bool alone = p->sender != 0 && now_ns - p->alone_ns >= AL_PACING_ALONE_NS;
  return alone && p->most < p->alone ? p->alone : p->most;
}

void
al_pacing_sent(al_pacing_t *p, uint32_t sender, uint64_t now_ns) {
  if (p->sender == sender) return;
  p->sender = sender;
  p->alone_ns = now_ns;
}

void
al_pacing_full(al_pacing_t *p, uint64_t total, uint64_t now_ns) {
  if (p->full_ns != 0) return;
  p->full_total = total;
  p->full_ns = now_ns;
}

void
al_pacing_acked(al_pacing_t *p, uint64_t total, uint64_t now_ns) {
  if (p->full_ns == 0 || total + AL_ACK_EVERY < p->full_total) return;
  uint64_t ns = now_ns - p->full_ns;
  uint32_t step = p->most / 8 > STEP ? p->most / 8 : STEP;
  p->full_ns = 0;
  if (ns > p->slow_ns) p->most = p->most > AL_PACING_LEAST + step ? p->most - step : AL_PACING_LEAST;
  else if (ns < p->slow_ns / 2) p->most = p->most < AL_PACING_MAX - step ? p->most + step : AL_PACING_MAX;
}
