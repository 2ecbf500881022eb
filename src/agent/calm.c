/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that come in bulk are left alone in the channel's pipe for a moment, so that many are taken at once: with each
 * wake an emulated guest loses more than the moving of the bytes costs. How long a moment is, is measured now and then
 * while there are none. */
#include "agent.h"

/* What comes in a moment. A host that keeps less on its way does so because the link is slow, and then less comes. */
#define WORTH 131072u
#define MUCH 98304u      /* when fewer have come, the host may be waiting for an acknowledgement */
#define LEAST_NS 100000u /* shorter ones gain nothing */
#define MOST_NS 4000000u
#define BEFORE AL_WINDOW_BULK  /* what may lie in buffers when a measurement begins: the link brings it no faster, but it is here */
#define SAMPLE 1048576u        /* bytes of a measurement behind that */
#define SAMPLE_EVERY 33554432u /* from the end of one to the beginning of the next */

static enum { IDLE, EMPTYING, MEASURING, CALM } state;
static uint64_t until;       /* EMPTYING, CALM: when so much has come, the next state begins */
static uint64_t began, began_ns; /* MEASURING: what had come when it began, and when that was */
static uint64_t moment_ns; /* CALM */
static uint64_t last;      /* what had come by the last call */
static bool is_due, was_much;

static void
next_state(uint64_t total) {
  switch (state) {
  case IDLE:
    state = EMPTYING;
    until = total + BEFORE;
    return;
  case EMPTYING:
    if (total < until) return;
    state = MEASURING;
    began = total;
    began_ns = al_main_now();
    return;
  case MEASURING:
    if (total - began < SAMPLE) return;
    state = CALM;
    moment_ns = (al_main_now() - began_ns) * WORTH / (total - began);
    if (moment_ns > MOST_NS) moment_ns = MOST_NS;
    until = total + SAMPLE_EVERY;
    return;
  case CALM:
    if (total >= until) state = IDLE;
    return;
  }
}

void
al_calm_came(uint64_t total, bool bulk, bool goes_on) {
  was_much = total - last >= MUCH;
  last = total;
  if (bulk) next_state(total);
  else state = IDLE;
  is_due = goes_on && state == CALM && moment_ns >= LEAST_NS;
}

bool
al_calm_goes_on(void) {
  return is_due && was_much;
}

uint64_t
al_calm_take(void) {
  uint64_t ns = is_due ? moment_ns : 0;
  is_due = false;
  return ns;
}
