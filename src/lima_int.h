/* SPDX-License-Identifier: Apache-2.0 */
/* Lima driver, inside: what lima_*.c and transport_*.c share. Nobody else includes it. */
#ifndef AL_LIMA_INT_H
#define AL_LIMA_INT_H

#include "buf.h"
#include "lima.h"
#include "lima_procs.h"
#include "db.h"
#include "val.h"

#define AL__LIMA_JSON_MAX (1u << 20)  /* output of `limactl list --json NAME` */
#define AL__LIMA_LOG_TAIL 16384u      /* how much of a log's end is read for an error message */
#define AL__LIMA_QUICK_MS 10000u      /* deadline of limactl calls that only read files */
#define AL__LIMA_SOCKET "lane.sock"   /* the warden's, in the lane's directory; shorter than any of Lima's own */

/* First member of every asynchronous operation: who asked, and a job that brings the end back to the loop. */
typedef struct al__lima_op_s {
  al_job_t job;
  al_lima_t *l;
  al_lima_cb cb;
  void *data;
  al_err_t err;
} al__lima_op_t;

/* Allocates an operation of `size` bytes that begins with al__lima_op_t. When memory is out, cb is told at once (the
 * one exception to "never from inside the call") and NULL is returned. */
void *
al__lima_op_new(al_lima_t *l, size_t size, al_lima_cb cb, void *data);
/* Calls back with `status` (and op->err, filled from status when empty), then frees the operation. */
void
al__lima_op_end(al__lima_op_t *op, int status);
/* The same from inside the call that began the operation: one turn through the worker first. */
void
al__lima_op_end_soon(al__lima_op_t *op, int status);

/* The whole environment of a child, built from nothing; QEMU_SYSTEM_* (the warden and its policy) only with `spec`.
 * NULL when out of memory. */
char **
al__lima_env(const al_lima_t *l, const al_lane_spec_t *spec);
void
al__lima_strv_free(char **v);
/* Starts argv[0] in its own session: stdin null, stdout into p->out up to out_cap (0: null), stderr as bounded tail.
 * Returns as al_proc_start does. */
int
al__lima_spawn(al_lima_t *l, const al_lane_spec_t *spec, al_proc_t *p, const char *const *argv, uint64_t deadline_ms,
  size_t out_cap, al_proc_cb cb);
/* 0 when the child ended with exit code 0, else sets err: what was run, how it ended, the last message it wrote. */
int
al__lima_child_result(al_proc_t *p, int status, int code, const char *what, al_err_t *err);
/* The last error or fatal message of a log in logrus JSON lines, else its last line; printable, "" when there is
 * nothing. */
void
al__lima_last_message(const char *text, size_t len, char *out, size_t cap);
/* The same of the last AL__LIMA_LOG_TAIL bytes of <dir>/<name>. */
void
al__lima_log_message(const char *dir, const char *name, char *out, size_t cap);

/* What the guest said last on its console, made safe to show: where a boot that hangs got to. "" when it said nothing. */
void
al__lima_console_line(const char *dir, char *out, size_t cap);

/* _config may hold user, user.pub and networks.yaml, all plain files of ours: else AL_ECONFIG_REFUSED. A missing
 * _config is fine. */
int
al__lima_config_check(const al_home_t *home, al_err_t *err);

/* lima_yaml.c: text of lima.yaml; and the text of a QEMU_SYSTEM_* value (words quoted for Lima's shell-like
 * splitting). */
int
al__lima_yaml(const al_lima_t *l, const al_lane_spec_t *spec, al_buf_t *out, al_err_t *err);
int
al__lima_qemu_words(const al_lima_t *l, const al_lane_spec_t *spec, al_buf_t *out);
void
al__lima_yaml_quote(al_buf_t *out, const char *s, int *rc);

/* lima_verify.c: compares an instance record of `limactl list --json` with what we asked for. */
int
al__lima_compare(const al_lima_t *l, const al_lane_spec_t *spec, const al_val_t *instance, al_err_t *err);
/* SHA-256 of the record's `config` as JSON without blanks, members in the order of their names' bytes, and the lane's
 * secret, which would make it another one for each lane, left empty. Changes `instance`. 0, -ENOMEM. */
int
al__lima_config_digest(al_val_t *instance, char digest[AL_SHA256_HEX]);

/* lima_look.c: the lane's directory, opened through no link; -ENOENT, -EPERM (another user's), -errno. */
int
al__lima_lane_dir(const al_home_t *home, const char *name);

#endif
