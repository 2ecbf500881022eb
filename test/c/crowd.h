/* SPDX-License-Identifier: Apache-2.0 */
/* Many lanes of many owners: how many, drawn from a seed that can be given again, and what each asks for. */
#ifndef AL_CROWD_H
#define AL_CROWD_H

#include "engine_test.h"

AL_TEST_FN int
crowd_number(const char *name, int dflt) {
  const char *text = getenv(name);
  return text && *text ? atoi(text) : dflt;
}

static uint32_t crowd_seed;

AL_TEST_FN uint32_t
crowd_draw(uint32_t below) {
  crowd_seed = crowd_seed * 1664525u + 1013904223u;
  return (crowd_seed >> 8) % below;
}

AL_TEST_FN al_val_t *
crowd_lane(int places, int queue_s) {
  return stage_map("home", stage.home, "image", al_test_path(stage.dir, "image"), "cpus", NULL, 1, "memoryGiB", NULL, 1,
    "diskGiB", NULL, 4, "startTimeoutSeconds", NULL, 300, "queueTimeoutSeconds", NULL, queue_s, "accelerator", "tcg",
    "worktreePath", al_test_path(stage.dir, "work"), "maxConcurrentVms", NULL, places, NULL);
}

#endif
