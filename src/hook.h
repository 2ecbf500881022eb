/* SPDX-License-Identifier: Apache-2.0 */
/* Edges of a lane's life by name, where scripts/chaos stops an engine to kill somebody; nothing in the product. */
#ifndef AL_HOOK_H
#define AL_HOOK_H

/* Only `make VARIANT=hooks` defines AL_HOOKS; test/chaos/hooks.c is what it then links. In every other build the names
 * are not even in the object file (test/ts/hooks.test.ts). */
#ifdef AL_HOOKS
#include <stdint.h>

/* When this edge is the one that AGENT_LANE_HOOK asks for, tells so and waits there, the first time. */
void
al_hook(const char *name);
/* A lifetime in ms: what AGENT_LANE_HOOK_LIFE_MS says, else `ms`. */
uint64_t
al_hook_life(uint64_t ms);
#define AL_HOOK(name) al_hook(name)
#define AL_HOOK_LIFE(ms) al_hook_life(ms)
#else
#define AL_HOOK(name) ((void) 0)
#define AL_HOOK_LIFE(ms) (ms)
#endif

#endif
