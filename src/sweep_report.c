/* SPDX-License-Identifier: Apache-2.0 */
/* Sweep: what is told of it to who asked. */
#include "sweep.h"
#include "mem.h"
#include <string.h>

int
al_sweep_report_init(al_sweep_report_t *report) {
  al_val_t **const lists[] = {&report->reaped, &report->kept, &report->removed, &report->notices};
  report->told = true;
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    if (!(*lists[i] = al_val_list())) return -ENOMEM;
  return 0;
}

void
al_sweep_report_free(al_sweep_report_t *report) {
  al_val_free(report->reaped);
  al_val_free(report->kept);
  al_val_free(report->strays);
  al_val_free(report->removed);
  al_val_free(report->notices);
  memset(report, 0, sizeof *report);
}

void
al_sweep_report_note(al_sweep_report_t *report, al_val_t *list, const char *name, const char *reason, int ok,
  const char *message) {
  if (!report->told) return;
  al_val_t *v = al_val_map();
  int rc = al_val_set(v, "name", al_val_text(name)) | al_val_set(v, "reason", al_val_text(reason));
  if (ok >= 0) rc |= al_val_set(v, "ok", al_val_bool(ok));
  if (message && *message) rc |= al_val_set(v, "message", al_val_text(message));
  if (rc) al_val_free(v);
  else rc = al_val_add(list, v);
  if (rc) report->rc = rc;
}

al_val_t *
al_sweep_report_take(al_sweep_report_t *report, int *rc) {
  al_val_t *v = al_val_map();
  *rc = report->rc | al_val_set(v, "reaped", al_steal(&report->reaped)) |
    al_val_set(v, "kept", al_steal(&report->kept)) | al_val_set(v, "unlisted", al_steal(&report->strays)) |
    al_val_set(v, "removed", al_steal(&report->removed)) | al_val_set(v, "notices", al_steal(&report->notices));
  return v;
}
