/* SPDX-License-Identifier: Apache-2.0 */
/* The request explain: what these options of a create would enforce. Starts nothing and looks at no file. */
#include "admin.h"
#include "enforced.h"
#include "lane_life.h"
#include "mem.h"

#include <errno.h>
#include <string.h>
#include <sys/utsname.h>

void
al_do_explain(al_engine_t *e, al_request_t *r) {
  al_err_t err = {0};
  al_val_t *list = NULL;
  struct utsname u;
  AL_AUTO_FREE al_lane_t *lane = al_calloc(1, sizeof *lane);
  int rc = lane ? al_lane_read_options(lane, r->params, &err) : al_err_set(&err, -ENOMEM, "out of memory");
  if (rc == 0 && uname(&u) != 0) rc = al_err_set(&err, -errno, "uname: %s", strerror(errno));
  if (lane) {
    al_env_free(lane->env);
    lane->env = NULL;
  }
  if (rc) {
    al_engine_fail(e, r->id, &err);
    return;
  }
  al_enforced_plan_t plan = {
    .vz = strcmp(u.sysname, "Darwin") == 0,
    .network_none = lane->spec.network == AL_NETWORK_NONE,
    .cpus = lane->spec.cpus,
    .timeout_minutes = lane->timeout_minutes,
    .memory_mib = lane->spec.memory_mib,
  };
  rc = al_enforced_plan(&plan, &list);
  al_engine_answer(e, r->id, "explain", list, rc);
}
