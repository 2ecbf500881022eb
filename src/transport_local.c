/* SPDX-License-Identifier: Apache-2.0 */
/* The `local` transport: a program of this machine in the guest's place, for tests and benchmarks. */
#include "transport_int.h"

#include "mem.h"
#include <errno.h>

typedef struct local_s {
  al_transport_t t;
} local_t;

int
al_transport_local(uv_loop_t *loop, const char *const *argv, const char *const *env, const al_transport_cbs_t *cbs,
  void *data, al_transport_t **out) {
  if (!argv || !argv[0] || argv[0][0] != '/' || !env) return -EINVAL;
  local_t *s = al_calloc(1, sizeof *s);
  if (!s) return -ENOMEM;
  al__transport_init(&s->t, loop, cbs, data, NULL);
  al_proc_opts_t o = {.file = argv[0], .argv = argv, .env = env, .cwd = "/", .stderr_fd = -1};
  int rc = al__transport_run(&s->t, &o, NULL, 0, NULL, 0);
  *out = &s->t;
  if (rc) { /* told on the loop, like every other failure */
    al_err_set(&s->t.err, rc, "%s could not be run: %s", argv[0], uv_strerror(rc));
    return al__transport_fail_soon(&s->t);
  }
  return 0;
}
