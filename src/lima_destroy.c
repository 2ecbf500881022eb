/* SPDX-License-Identifier: Apache-2.0 */
/* Destroys one lane on the loop: the steps of teardown.c on a worker, with Lima's own delete between them where that is
 * needed. */
#include "lima_int.h"

#include "hook.h"
#include "teardown.h"
#include <stdio.h>
#include <string.h>

typedef struct destroy_s {
  al__lima_op_t op;
  al_proc_t proc;
  uv_timer_t timer;
  uint64_t sweep_end, prove_end;
  int status;
  al_teardown_t t;
} destroy_t;

static int
inspect(al_job_t *job) {
  return al_teardown_inspect(&((destroy_t *) job)->t);
}

static int
sweep(al_job_t *job) {
  return al_teardown_sweep(&((destroy_t *) job)->t);
}

static int
prove(al_job_t *job) {
  return al_teardown_prove(&((destroy_t *) job)->t);
}

static void
on_timer_closed(uv_handle_t *h) {
  destroy_t *d = h->data;
  al__lima_op_end(&d->op, d->status);
}

static void
end(destroy_t *d, int status) {
  d->status = status;
  d->op.err = d->t.err;
  if (status) snprintf(d->op.err.lane, sizeof d->op.err.lane, "%s", d->t.name);
  uv_close((uv_handle_t *) &d->timer, on_timer_closed);
}

static void
prove_again(uv_timer_t *t);

static void
proven(al_job_t *job, int status) {
  destroy_t *d = (destroy_t *) job;
  AL_HOOK("removed");
  bool again = status == AL_EDESTROY_FAILED && d->t.clean && al_plat_mono_ms() < d->prove_end;
  if (again) uv_timer_start(&d->timer, prove_again, AL_TEARDOWN_PROVE_PAUSE_MS, 0);
  else end(d, status);
}

static void
prove_again(uv_timer_t *t) {
  destroy_t *d = t->data;
  al_worker_post(d->op.l->io, &d->op.job, prove, proven);
}

static void
begin_proof(destroy_t *d) {
  AL_HOOK("swept");
  d->prove_end = al_plat_mono_ms() + AL_TEARDOWN_PROVE_MS;
  al_worker_post(d->op.l->io, &d->op.job, prove, proven);
}

static void
swept(al_job_t *job, int status);

static void
sweep_again(uv_timer_t *t) {
  destroy_t *d = t->data;
  al_worker_post(d->op.l->io, &d->op.job, sweep, swept);
}

static void
swept(al_job_t *job, int status) {
  destroy_t *d = (destroy_t *) job;
  if (status) end(d, status);
  else if (d->t.clean || uv_now(d->op.l->loop) >= d->sweep_end) begin_proof(d);
  else uv_timer_start(&d->timer, sweep_again, d->t.procs.count + d->t.procs.nameless ? AL_TEARDOWN_SWEEP_PAUSE_MS : 0, 0);
}

static void
begin_sweep(destroy_t *d) {
  uv_update_time(d->op.l->loop);
  d->sweep_end = uv_now(d->op.l->loop) + AL_TEARDOWN_SWEEP_MS;
  al_worker_post(d->op.l->io, &d->op.job, sweep, swept);
}

static void
deleted(al_proc_t *p, int status) {
  destroy_t *d = p->data;
  al_err_t err = {0};
  AL_HOOK("deleted");
  if (al__lima_child_result(p, status, AL_ELIMA_FAILED, "limactl delete", &err) != 0)
    snprintf(d->t.limactl_says, sizeof d->t.limactl_says, "%.299s", err.msg);
  al_proc_deinit(p);
  begin_sweep(d);
}

static void
inspected(al_job_t *job, int status) {
  destroy_t *d = (destroy_t *) job;
  al_lima_t *l = d->op.l;
  AL_HOOK("inspected");
  if (status == UV_ECANCELED) {
    end(d, status);
    return;
  }
  const char *const argv[] = {l->limactl, "--tty=false", "--log-format", "json", "delete", "-f", d->t.name, NULL};
  d->proc.data = d;
  if (!d->t.needs_limactl || al__lima_spawn(l, NULL, &d->proc, argv, l->delete_ms, 0, deleted) != 0) begin_sweep(d);
  else AL_HOOK("deleting");
}

void
al_lima_destroy(al_lima_t *l, const char *name, al_lima_cb cb, void *data) {
  destroy_t *d = al__lima_op_new(l, sizeof *d, cb, data);
  if (!d) return;
  int rc = al_teardown_init(&d->t, l->home->lima, name);
  if (rc) {
    d->op.err = d->t.err;
    al__lima_op_end_soon(&d->op, rc);
    return;
  }
  uv_timer_init(l->loop, &d->timer);
  d->timer.data = d;
  al_worker_post(l->io, &d->op.job, inspect, inspected);
}
