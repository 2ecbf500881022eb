/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that come in bulk are left alone in the channel's pipe for a moment, so that many are taken at once: with each
 * wake an emulated guest loses more than the moving of the bytes costs. How long a moment is, is measured now and then
 * while there are none. */
#include "agent.h"

#define WORTH 65536u /* what comes in a moment: less than the host may have on the way (AL_PACING_LEAST), so it need not stop */
#define LEAST_NS 100000u /* shorter ones gain nothing */
#define MOST_NS 4000000u
#define SAMPLE 524288u /* bytes of a measurement */
#define SAMPLE_EVERY 16777216u /* from the beginning of one to the beginning of the next */

static uint64_t begun_ns, begun; /* the measurement, and what had come by then; 0 = none */
static uint64_t moment_ns;       /* 0 = not known yet */
static bool is_due;

void
al_calm_came(uint64_t total, bool bulk) {
  is_due = false;
  if (!bulk) {
    begun_ns = moment_ns = 0;
    return;
  }
  if (begun_ns == 0 || total - begun >= SAMPLE_EVERY) {
    begun_ns = al_main_now();
    begun = total;
    moment_ns = 0;
    return;
  }
  if (moment_ns == 0 && total - begun >= SAMPLE) {
    moment_ns = (al_main_now() - begun_ns) * WORTH / (total - begun) + 1;
    if (moment_ns > MOST_NS) moment_ns = MOST_NS;
  }
  is_due = moment_ns >= LEAST_NS;
}

uint64_t
al_calm_take(void) {
  uint64_t ns = is_due ? moment_ns : 0;
  is_due = false;
  return ns;
}
