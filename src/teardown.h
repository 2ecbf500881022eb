/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that end one lane and prove it. Synchronous, each for a thread that may block; no libuv, since the keeper
 * uses them, too. */
#ifndef AL_TEARDOWN_H
#define AL_TEARDOWN_H

#include "lima_procs.h"

#define AL_TEARDOWN_DELETE_MS 5000u /* limactl delete takes 0.2 s */
#define AL_TEARDOWN_SWEEP_MS 5000
#define AL_TEARDOWN_SWEEP_PAUSE_MS 5
#define AL_TEARDOWN_PROVE_MS 2000 /* two processes may remove one lane at once, and each finds what the other has half done */
#define AL_TEARDOWN_PROVE_PAUSE_MS 20

/* Theory of operation. Four steps, each of which can find its work done already; so they may be run again from any
 * state, by any process, by several at once.
 *   1 inspect: the directory must be a directory of ours directly below <home>/lima, not a link. `limactl delete -f` kills
 *     whatever stands in a pid file, so each pid file's process is identified by its command line, and the file of a stranger is unlinked.
 *   2 `limactl delete -f NAME`, by the caller, when step 1 says that it is needed. Its failure is not final.
 *   3 sweep: processes of the lane are killed by identity until a scan finds none, at most AL_TEARDOWN_SWEEP_MS.
 *   4 prove: the directory, if it is still there, is removed by descriptors, also _tmp.NAME; then nothing may be left.
 * A directory that Lima could not read (half-made) goes straight to 3, and so does one that we cannot: its VM must end
 * whatever has become of the directory, and the proof says what is wrong with that.
 *
 * Step 2 is left out, too, when no process of the lane is there and the directory carries our sealed record: all that
 * Lima's delete does then is to remove it. (It kills by pid files, unlocks additional disks, lets the driver clean up,
 * which for QEMU and vz is nothing, and ends daemons of its own networks; our instances have no such disks or networks.)
 * Who is just about to start a process of the lane finds the directory gone in either case, and step 3 looks again. */
typedef struct al_teardown_s {
  char lima[AL_HOME_MAX];
  char name[AL_NAME_LEN + 1];
  char dir[AL_HOME_MAX + AL_NAME_LEN + 2];
  bool needs_limactl;     /* there is a lima.yaml for it to read, and more to do than to remove a directory of ours */
  bool clean;             /* the last sweep found nothing */
  bool killed_any;        /* something was killed since the last clean scan */
  uint64_t sweep_start;
  char limactl_says[300]; /* why step 2 failed, for messages; "" */
  al_err_t err;
  al__lima_procs_t procs;
} al_teardown_t;

/* `lima`: <home>/lima. AL_EBAD_NAME unless `name` is a lane's. */
int
al_teardown_init(al_teardown_t *t, const char *lima, const char *name);
/* Each returns 0 or t->err.code. */
int
al_teardown_inspect(al_teardown_t *t);
/* One scan with its kills; t->clean says whether it may stop. Again after AL_TEARDOWN_SWEEP_PAUSE_MS. */
int
al_teardown_sweep(al_teardown_t *t);
/* AL_EDESTROY_FAILED says what is left; worth another try for AL_TEARDOWN_PROVE_MS. */
int
al_teardown_prove(al_teardown_t *t);

#endif
