/* SPDX-License-Identifier: Apache-2.0 */
/* The way of an attached host: a `limactl shell NAME` of its own, which runs the lane's agent a second time. */
#include "lima_int.h"
#include "transport_int.h"

#include "mem.h"
#include <errno.h>
#include <stdio.h>

/* No byte of this comes from outside: TOKEN is hexadecimal. The agent is the owner's, so both are of one build. */
#define BOOTSTRAP \
  "[ -x /run/agent-lane/agent ] && printf '\\n%s%s\\n' && " \
  "exec /run/agent-lane/agent --attach --secret /run/agent-lane/proof"

/* Where the channel is a virtio port, sshd starts after the lane is ready: about half a minute of tries. */
#define RUNS_MAX 20

typedef struct attach_s {
  al_transport_t t;
  al_lima_t *l;
  char name[AL_NAME_LEN + 1], token[33];
  uint64_t end; /* of the deadline */
} attach_t;

static int
start(al_transport_t *t) {
  attach_t *s = (attach_t *) t;
  uint64_t now = uv_now(t->loop);
  char script[512], marker[64];
  al_lima_t *l = s->l;
  snprintf(script, sizeof script, BOOTSTRAP, AL__MARKER, s->token);
  snprintf(marker, sizeof marker, "\n%s%s\n", AL__MARKER, s->token);
  return al__transport_login(t, l, s->name, script, "", 0, marker, s->end > now ? s->end - now : 1);
}

int
al_transport_attach(al_lima_t *l, const char *name, uint64_t deadline_ms, const al_transport_cbs_t *cbs, void *data,
  al_transport_t **out) {
  uint8_t r[16];
  if (!al_name_valid(name)) return AL_EBAD_NAME;
  attach_t *s = al_calloc(1, sizeof *s);
  if (!s) return -ENOMEM;
  al__transport_init(&s->t, l->loop, cbs, data, NULL);
  s->l = l;
  uv_update_time(l->loop);
  s->end = uv_now(l->loop) + deadline_ms;
  s->t.again = start;
  s->t.runs_max = RUNS_MAX;
  snprintf(s->name, sizeof s->name, "%s", name);
  *out = &s->t;
  int rc = al_plat_random(r, sizeof r);
  for (size_t i = 0; i < sizeof r; i++) snprintf(s->token + 2 * i, 3, "%02x", r[i]);
  if (rc == 0) rc = start(&s->t);
  if (rc == 0) return 0;
  al_err_set(&s->t.err, rc, "limactl shell could not be run: %s", uv_strerror(rc));
  return al__transport_fail_soon(&s->t);
}
