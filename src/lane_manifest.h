/* SPDX-License-Identifier: Apache-2.0 */
/* The run manifest of a live lane: what is told of it, and when. Loop thread; the files are written on the site's
 * worker. */
#ifndef AL_LANE_MANIFEST_H
#define AL_LANE_MANIFEST_H

#include "lane_calls.h"

/* The time at which the lane came to this state. */
void
al_manifest_state(al_lane_t *lane, int state);
/* Makes it: what runs, from what, and what is enforced. A lane without one is not used, so `cb` (data: the lane) may
 * bring an error. */
void
al_manifest_ready(al_lane_t *lane, al_lima_cb cb);
/* A command was ended by us, or by its own exit code. Nothing is written. */
void
al_manifest_command(al_lane_t *lane, bool interrupted, int exit_code);
/* Adds what a copy out has brought; cb when it is written, or could not be, which is told as a warning: the files are in
 * place either way. Only from on_end of `x`. At once without memory. */
void
al_manifest_copied(al_op_t *op, al_xfer_t *x, const al_xfer_stats_t *stats, void (*cb)(al_op_t *op));
/* From time to time: writes the counts of commands when they have changed, at most once a minute, so that little is lost
 * with a process that is killed. */
void
al_manifest_count(al_lane_t *lane);
/* Another process uses the lane: says so. */
void
al_manifest_attached(al_lane_t *lane);
/* What the owner knows at the end, written beside the destruction. False: there is nothing to write, cb does not come. */
bool
al_manifest_closing(al_lane_t *lane, void (*cb)(al_lane_t *lane));
/* The lane is proven gone: the last event. Always calls back; what fails is told as a warning. */
void
al_manifest_end(al_lane_t *lane, void (*cb)(al_lane_t *lane));
/* For whoever ends a lane that is not his: the manifest's end, then the row's. `by` as in al_run_end_event; not proven: the
 * row is stuck, and its manifest open. */
void
al_manifest_close_row(al_site_t *site, const al_lane_row_t *row, const char *by, const char *reason, bool proven,
  al_registry_cb cb, void *data);
/* Learns the version of the driver's QEMU, unless it is known. */
void
al_manifest_ask_vm(al_site_t *site, al_driver_t *driver);

/* manifest_ready.c: on the loop, all that needs no file; then on the worker, the rest. */
typedef struct al_ready_facts_s {
  const al_home_t *home;
  const char *package_dir;
  al_lane_row_t row;
  char kernel[sizeof ((al_image_t *) 0)->kernel];
} al_ready_facts_t;

al_val_t *
al_manifest_ready_event(const al_lane_t *lane); /* NULL when out of memory */
int
al_manifest_ready_look(al_val_t *event, const al_ready_facts_t *facts, al_err_t *err);
al_val_t *
al_manifest_commands(const al_lane_t *lane);

#endif
