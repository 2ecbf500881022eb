/* SPDX-License-Identifier: Apache-2.0 */
/* The `shell` transport: one `limactl shell NAME` takes the lane agent into the guest and then is the channel. */
#include "lima_int.h"
#include "transport_int.h"

#include "mem.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Theory of operation. The login shell runs the constant bootstrap by sudo: it takes SIZE bytes of its stdin as the
 * agent, prints a marker line with a random token, and becomes the agent. Whatever a login shell or a profile prints
 * comes before the marker and is dropped, within bounds. The agent never speaks first, so bytes behind the marker in
 * the same read are a violation, not data to keep. */

/* No byte of this comes from outside: SIZE is a number, TOKEN is hexadecimal. mkdir and chmod are for images that did
 * not prepare the place: every program costs 30 ms and more in an emulated guest. */
#define BOOTSTRAP \
  "umask 077; cd /run && { [ -d agent-lane ] || mkdir agent-lane; } && head -c %zu > agent-lane/agent && " \
  "{ [ -x agent-lane/agent ] || chmod 700 agent-lane/agent; } && " \
  "printf '\\n%s%s\\n' && exec /run/agent-lane/agent --secret /run/agent-lane/proof"

typedef struct shell_s {
  al_transport_t t;
  al_lima_t *l;
  char arch[16];
  char name[AL_NAME_LEN + 1];
  uint64_t end; /* of the deadline */
  al__agent_t agent;
} shell_t;

static int
load(al_job_t *job) {
  shell_t *s = job->data;
  return al__transport_load(s->l, s->arch, 0, &s->agent, &s->t.err);
}

int
al__transport_login(al_transport_t *t, al_lima_t *l, const char *name, const char *script, const char *input,
  size_t len, const char *marker, uint64_t ms) {
  const char *const argv[] = {
    l->limactl, "--tty=false", "shell", "--workdir", "/", name, "sudo", "-n", "/bin/sh", "-c", script, NULL};
  char **env = al__lima_env(l, NULL);
  if (!env) return -ENOMEM;
  al_proc_opts_t o = {.file = l->limactl,
    .argv = argv,
    .env = (const char *const *) env,
    .cwd = l->home->run,
    .in = AL_PROC_PIPE,
    .out = AL_PROC_PIPE,
    .stderr_fd = -1};
  int rc = al__transport_run(t, &o, input, len, marker, ms);
  al__lima_strv_free(env);
  return rc;
}

static int
start(al_transport_t *t) {
  shell_t *s = (shell_t *) t;
  uint64_t now = uv_now(t->loop);
  char script[512], marker[64];
  uint64_t ms = s->end > now ? s->end - now : 1;
  snprintf(script, sizeof script, BOOTSTRAP, s->agent.len, AL__MARKER, s->agent.token);
  snprintf(marker, sizeof marker, "\n%s%s\n", AL__MARKER, s->agent.token);
  return al__transport_login(t, s->l, s->name, script, s->agent.bytes, s->agent.len, marker, ms);
}

static void
loaded(al_job_t *job, int status) {
  shell_t *s = job->data;
  if (!al__transport_job_ended(&s->t)) return;
  if (status == 0) status = start(&s->t);
  if (status != 0) al__transport_fail(&s->t, status, NULL);
}

static void
release(al_transport_t *t) {
  shell_t *s = (shell_t *) t;
  al_free(s->agent.bytes);
}

int
al_transport_shell(al_lima_t *l, const al_lane_spec_t *spec, uint64_t deadline_ms, const al_transport_cbs_t *cbs,
  void *data, al_transport_t **out) {
  if (!al_name_valid(spec->name)) return AL_EBAD_NAME;
  shell_t *s = al_calloc(1, sizeof *s);
  if (!s) return -ENOMEM;
  al__transport_init(&s->t, l->loop, cbs, data, release);
  s->l = l;
  uv_update_time(l->loop);
  s->end = uv_now(l->loop) + deadline_ms;
  s->t.again = start;
  snprintf(s->arch, sizeof s->arch, "%s", spec->image.arch);
  snprintf(s->name, sizeof s->name, "%s", spec->name);
  al__transport_job(&s->t, l->io, load, loaded);
  *out = &s->t;
  return 0;
}
