/* SPDX-License-Identifier: Apache-2.0 */
/* The calls exec, write and signal: the options of a command, its output on the way to JavaScript, its result. */
#include "hook.h"
#include "lane_manifest.h"
#include "mem.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Output that is lost must not look like output that never was: the command fails. */
static void
give_up(al_op_t *op, const char *what) {
  al_err_t why = { 0 };
  al_err_set(&why, -ENOMEM, "exec: out of memory for %s", what);
  al_exec_cancel(op->exec, &why);
}

static void
hand_on(al_op_t *op, al_event_type_t type, int sub, const uint8_t *p, size_t n) {
  al_val_t *bytes = al_val_bytes(p, n);
  if (!bytes || al_engine_emit(op->lane->engine, type, op->id, sub, bytes)) give_up(op, "the command's output");
}

static void
on_lines(al_exec_t *x, void *data, int sub, const uint8_t *p, size_t n) {
  (void) x;
  hand_on(data, AL_EVENT_LINES, sub, p, n);
}

static void
on_bytes(al_exec_t *x, void *data, int sub, const uint8_t *p, size_t n) {
  (void) x;
  hand_on(data, AL_EVENT_BYTES, sub, p, n);
}

static void
on_drain(al_exec_t *x, void *data) {
  al_op_t *op = data;
  (void) x;
  /* Whoever writes its input waits for this. */
  if (al_engine_emit(op->lane->engine, AL_EVENT_DRAIN, op->id, 0, NULL)) give_up(op, "its input");
}

static void
on_wait(al_exec_t *x, void *data) {
  al_op_t *op = data;
  (void) x;
  al_engine_hurry(op->lane->engine, op->id);
}

static al_val_t *
exec_value(al_exec_result_t *r) {
  al_val_t *v = al_val_map();
  if (!v) {
    al_free(r->out);
    al_free(r->errs);
    return NULL;
  }
  int rc = al_val_set(v, "exitCode", al_val_int(r->exit_code)) | al_val_set(v, "signal", al_val_int(r->signal));
  rc |= al_val_set(v, "stdout", al_val_bytes_take(r->out, r->out_len));
  rc |= al_val_set(v, "stderr", al_val_bytes_take(r->errs, r->errs_len));
  rc |= al_val_set(v, "stdoutDropped", al_val_int((int64_t) r->out_dropped));
  rc |= al_val_set(v, "stderrDropped", al_val_int((int64_t) r->errs_dropped));
  rc |= al_val_set(v, "cutLines", al_val_int((int64_t) (r->out_cuts + r->errs_cuts)));
  rc |= al_val_set(v, "oom", al_val_bool(r->oom));
  rc |= al_val_set(v, "spawnNs", al_val_int((int64_t) r->spawn_ns));
  if (rc) {
    al_val_free(v);
    return NULL;
  }
  return v;
}

static void
on_done(al_exec_t *x, void *data, al_exec_result_t *result, const al_err_t *err) {
  al_op_t *op = data;
  al_engine_t *e = op->lane->engine;
  (void) x;
  al_err_t why = *err;
  al_manifest_command(op->lane, why.code != 0, result->exit_code);
  al_val_t *v = exec_value(result);
  if (!why.code && !v) al_err_set(&why, -ENOMEM, "exec: out of memory for the result");
  if (!why.lane[0]) snprintf(why.lane, sizeof why.lane, "%s", op->lane->spec.name);
  if (why.code) al_engine_fail_with(e, op->id, &why, v); /* with what had come until then */
  else al_engine_done(e, op->id, v);
  al_op_free(op);
}

static bool
is_input(const al_val_t *v) {
  return v->kind == AL_BYTES || v->kind == AL_TEXT;
}

/* The lane's environment, then the call's own: a name given twice counts with its last value. Points into both; free
 * the array only. */
static const char **
merge_env(char *const *base, char *const *own) {
  size_t n = 0, used = 0;
  for (char *const *s = base; *s; s++) n++;
  for (char *const *s = own; s && *s; s++) n++;
  const char **all = al_calloc(n + 2, sizeof *all);
  if (!all) return NULL;
  bool lang = false;
  for (char *const *s = base; *s; s++) {
    size_t len = (size_t) (strchr(*s, '=') - *s) + 1;
    bool hidden = false;
    for (char *const *o = own; o && *o; o++) hidden |= strncmp(*s, *o, len) == 0;
    if (!hidden) all[used++] = *s;
  }
  for (char *const *o = own; o && *o; o++) all[used++] = *o;
  for (size_t i = 0; i < used; i++) lang |= strncmp(all[i], "LANG=", 5) == 0;
  if (!lang) all[used] = "LANG=C.UTF-8";
  return all;
}

#define ARGV_MAX 1024

typedef struct exec_call_s {
  const char *argv[ARGV_MAX + 1];
  const char **env;
  char **own_env;
  al_exec_opts_t opts;
} exec_call_t;

#define GRACE_MOST_MS 3600000
#define TIMEOUT_MOST_MS 2147483647
#define MEMORY_LEAST (1 << 20)
#define MEMORY_MOST (1ll << 50)
#define PROCESSES_MOST 4194304

/* For a request a grace of 0 is no grace; for al_exec_req_t it is the default. */
static int
read_grace(const al_val_t *p, const char *key, int *out, al_err_t *err) {
  int64_t ms;
  int rc = al_val_get_int(p, key, AL_GRACE_DEFAULT_MS, 0, GRACE_MOST_MS, &ms, err);
  if (!rc) *out = ms ? (int) ms : -1;
  return rc;
}

/* Into opts whose req is set: time, memory on this side, and what the guest enforces. */
static int
read_bounds(const al_val_t *p, al_exec_opts_t *o, al_err_t *err) {
  int64_t timeout, output, processes, memory;
  double cpus;
  bool daemons;
  int rc = al_val_get_int(p, "timeoutMs", 0, 1, TIMEOUT_MOST_MS, &timeout, err);
  if (!rc) rc = read_grace(p, "killGraceMs", &o->req.kill_ms, err);
  if (!rc) rc = read_grace(p, "holdGraceMs", &o->req.hold_ms, err);
  if (!rc) rc = al_val_get_bool(p, "leaveDaemons", true, &daemons, err);
  if (!rc) rc = al_val_get_int(p, "maxOutputBytes", AL_OUTPUT_MAX, 1, AL_OUTPUT_MOST, &output, err);
  if (!rc) rc = al_val_get_int(p, "maxProcesses", 0, 1, PROCESSES_MOST, &processes, err);
  if (!rc) rc = al_val_get_int(p, "maxMemoryBytes", 0, MEMORY_LEAST, MEMORY_MOST, &memory, err);
  if (!rc) rc = al_val_get_double(p, "maxCpus", 0, 0.01, 1024, &cpus, err);
  if (rc) return rc;
  o->timeout_ms = (uint64_t) timeout;
  o->max_output = (size_t) output;
  o->req.end_tree = !daemons;
  o->req.max_processes = (uint32_t) processes;
  o->req.max_memory = (uint64_t) memory;
  o->req.max_cpu_milli = (uint32_t) (cpus * 1000 + 0.5);
  return 0;
}

static int
read_exec(al_lane_t *lane, const al_val_t *p, exec_call_t *c, al_err_t *err) {
  const char *command, *cwd, *mode;
  bool sudo, open;
  int rc;
  if (
    (rc = al_val_get_text(p, "command", NULL, &command, err))
    || (rc = al_val_get_text(p, "cwd", lane->attached ? NULL : lane->worktree, &cwd, err))
    || (rc = al_val_get_text(p, "mode", "whole", &mode, err)) || (rc = al_val_get_bool(p, "sudo", false, &sudo, err))
    || (rc = al_val_get_bool(p, "inputOpen", false, &open, err))
  )
    return rc;
  const al_val_t *argv = al_val_get(p, "argv"), *input = al_val_get(p, "stdin"), *env = al_val_get(p, "env");
  if (!command == !argv) return al_err_set(err, AL_EBAD_OPTION, "exec takes either command or argv");
  if (cwd && cwd[0] != '/') return al_err_set(err, AL_EBAD_OPTION, "cwd must be an absolute path in the guest");
  if (input && !is_input(input)) return al_err_set(err, AL_EBAD_OPTION, "stdin must be text or bytes");
  if (argv && (rc = al_op_texts(argv, c->argv, ARGV_MAX, "argv", err))) return rc;
  if (command) {
    c->argv[0] = "/bin/sh";
    c->argv[1] = "-c";
    c->argv[2] = command;
  }
  if (env && !(c->own_env = al_env_list(env, err))) return err->code;
  if (!(c->env = merge_env(lane->env, c->own_env))) return al_err_set(err, -ENOMEM, "out of memory");
  c->opts.req = (al_exec_req_t) {
    .argv = c->argv, .env = c->env, .cwd = cwd, .user = sudo ? "root" : "agent", .with_stdin = input || open
  };
  if ((rc = al_tty_read(p, &c->opts.req, err)) || (rc = read_bounds(p, &c->opts, err))) return rc;
  if ((rc = al_val_get_bool(p, "errLines", false, &c->opts.err_lines, err))) return rc;
  c->opts.lines = strcmp(mode, "lines") == 0;
  c->opts.stream = strcmp(mode, "stream") == 0;
  if (!c->opts.lines && !c->opts.stream && strcmp(mode, "whole"))
    return al_err_set(err, AL_EBAD_OPTION, "mode must be whole, lines or stream");
  c->opts.input_open = open;
  c->opts.budget = &lane->budget;
  return 0;
}

/* Without a copy: the request is over when the command has started. */
static void
take_input(al_val_t *params, al_exec_opts_t *o) {
  al_val_t *input = al_val_at(params, "stdin");
  if (input) o->input = al_val_take_text(input, &o->input_len);
}

void
al_do_exec(al_engine_t *e, al_request_t *r) {
  static const al_exec_cbs_t cbs = { on_lines, on_bytes, on_drain, on_wait, on_done };
  al_lane_t *lane = al_op_lane(e, r);
  if (!lane) return;
  al_err_t err = { 0 };
  exec_call_t *c = al_calloc(1, sizeof *c);
  int rc = c ? read_exec(lane, r->params, c, &err) : al_err_set(&err, -ENOMEM, "out of memory");
  al_op_t *op = rc ? NULL : al_op_new(lane, r->id, AL_OP_EXEC);
  if (!rc && !op) rc = al_err_set(&err, -ENOMEM, "out of memory");
  if (!rc) take_input(r->params, &c->opts);
  if (!rc && (rc = al_exec_start(lane->chan, &c->opts, &cbs, op, &op->exec, &err))) {
    if (!err.code)
      al_err_set(&err, AL_EEXEC_FAILED, "exec: the command could not be sent: %s",
        rc > -4096 ? strerror(-rc) : al_err_name(rc));
    al_op_free(op);
  }
  if (!rc) lane->manifest.started++;
  AL_HOOK("exec");
  if (rc) al_op_fail(e, r->id, &err, lane->spec.name);
  if (!c) return;
  al_env_free(c->own_env);
  al_free(c->env);
  al_free(c);
}

static bool
is_input_list(const al_val_t *v) {
  if (v->kind != AL_LIST) return false;
  for (size_t i = 0; i < v->len; i++)
    if (!is_input(v->items[i])) return false;
  return true;
}

/* Gives what is queued then, or the error of the first part that was not. */
static int64_t
write_parts(al_exec_t *x, al_val_t *data) {
  al_val_t **parts = data->kind == AL_LIST ? data->items : &data;
  size_t count = data->kind == AL_LIST ? data->len : 1, n;
  int64_t queued = 0;
  for (size_t i = 0; i < count && queued >= 0; i++) {
    char *bytes = al_val_take_text(parts[i], &n);
    queued = al_exec_write(x, bytes, n);
  }
  return queued;
}

void
al_do_write(al_engine_t *e, al_request_t *r) {
  al_op_t *op = al_op_named(e, r);
  if (!op) return;
  al_err_t err = { 0 };
  bool end;
  al_val_t *data = al_val_at(r->params, "data"); /* its bytes go into the queue */
  int64_t queued = 0;
  int rc = al_val_get_bool(r->params, "end", false, &end, &err);
  if (!rc && op->kind != AL_OP_EXEC) rc = al_err_set(&err, AL_EBAD_OPTION, "write: a copy takes no input");
  if (!rc && data && !is_input(data) && !is_input_list(data))
    rc = al_err_set(&err, AL_EBAD_OPTION, "data must be text or bytes, or a list of them");
  /* Before the bytes are queued: after that it must not fail. */
  al_val_t *v = rc ? NULL : al_val_map(), *count = rc ? NULL : al_val_int(0);
  if (!rc && al_val_set(v, "queued", count)) rc = al_err_set(&err, -ENOMEM, "write: out of memory");
  if (!rc && data && (queued = write_parts(op->exec, data)) < 0)
    rc = al_err_set(&err, (int) queued, "write: the command's input could not be queued");
  if (rc) {
    al_val_free(v);
    al_op_fail(e, r->id, &err, op->lane->spec.name);
    return;
  }
  if (end) al_exec_end(op->exec);
  count->i = queued;
  al_engine_done(e, r->id, v);
}

void
al_do_signal(al_engine_t *e, al_request_t *r) {
  al_op_t *op = al_op_named(e, r);
  if (!op) return;
  al_err_t err = { 0 };
  int64_t signo;
  bool tree;
  int rc = al_val_get_int(r->params, "signal", SIGTERM, 1, 64, &signo, &err);
  if (!rc) rc = al_val_get_bool(r->params, "tree", false, &tree, &err);
  if (!rc && op->kind != AL_OP_EXEC) rc = al_err_set(&err, AL_EBAD_OPTION, "signal: a copy takes no signals");
  if (rc) {
    al_op_fail(e, r->id, &err, op->lane->spec.name);
    return;
  }
  al_exec_signal(op->exec, (int) signo, tree);
  al_engine_done(e, r->id, NULL);
}

void
al_calls_taken(al_engine_t *e, uint32_t id, int sub, size_t n) {
  al_op_t *op = al_op_find(e, id);
  if (op && op->exec) al_exec_taken(op->exec, sub, n);
}
