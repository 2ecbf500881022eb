/* SPDX-License-Identifier: Apache-2.0 */
/* The home: our directory, its layout, and why one may be refused. Synchronous, any thread. */
#ifndef AL_HOME_H
#define AL_HOME_H

#include "err.h"
#include "names.h"

#define AL_HOME_MAX 256

/* Absolute paths. lima: LIMA_HOME of our instances. run: scratch cwd and TMPDIR of children.
 * runs: the manifests of lanes. */
typedef struct al_home_s {
  char root[AL_HOME_MAX], lima[AL_HOME_MAX], images[AL_HOME_MAX], bin[AL_HOME_MAX], run[AL_HOME_MAX], runs[AL_HOME_MAX],
    registry[AL_HOME_MAX];
} al_home_t;

/* `path` NULL: AGENT_LANE_HOME, else ~/.agent-lane. Makes the directories (0700), resolves links, checks: ours, not
 * group- or world-writable, no component reached through another user's link, local file system (AL_EHOME_UNSAFE with
 * the reason); and that Lima's longest socket name fits (realpath(LIMA_HOME) + AL_NAME_LEN <= 80 on Linux, 76 on macOS;
 * AL_EHOME_TOO_LONG with the lengths). */
int
al_home_open(const char *path, al_home_t *out, al_err_t *err);

/* Copies the program at `from` to <home>/bin/<sha256>/<basename> (0700, verified, atomic, safe between processes) and
 * gives that path. */
int
al_home_install(const al_home_t *home, const char *from, char *out, size_t cap, al_err_t *err);

#endif
