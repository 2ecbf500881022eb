/* SPDX-License-Identifier: Apache-2.0 */
/* The core's face: one engine per JavaScript environment. The only header that binding/ sees. */
#ifndef AL_H
#define AL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "err.h"
#include "val.h"

typedef struct al_engine_s al_engine_t;

typedef enum {
  AL_EVENT_DONE,  /* request `id` succeeded with `value` (may be NULL) */
  AL_EVENT_ERROR, /* request `id` failed with `err` */
  AL_EVENT_LINES, /* request `id` (exec): `value` is AL_BYTES: whole lines, each ended by '\n'; give back with al_engine_taken */
  AL_EVENT_BYTES, /* request `id` (exec stream mode): `value` is AL_BYTES of sub-stream `sub` (1 stdout, 2 stderr); give back with al_engine_taken */
  AL_EVENT_DRAIN, /* request `id` (exec with open input): more input is welcome */
  AL_EVENT_PROGRESS, /* request `id` (a copy with progress): `value`: map {bytes, files, totalBytes?} so far */
  AL_EVENT_LANE,  /* `value`: map {lane, type, time_ms, …} for onEvent; `id` is the create request's */
} al_event_type_t;

typedef struct al_event_s {
  al_event_type_t type;
  uint32_t id;
  int sub;
  al_val_t *value; /* owned by the event */
  al_err_t err;
  struct al_event_s *next; /* for the receiver's queue */
} al_event_t;

void
al_event_free(al_event_t *e);
/* Any thread, for a receiver that queues events. LINES and BYTES for which there is one of the same request and
 * sub-stream in `queue` are put behind its bytes and freed, and true is returned: an event costs a hundred times what a
 * guest pays for one byte in a frame. PROGRESS takes the place of an older one: only the newest is of interest. */
bool
al_event_join(al_event_t *queue, al_event_t *e);

typedef struct al_engine_opts_s {
  const char *package_dir;  /* where prebuilds/ lies; copied */
  /* Engine thread. The event is taken. Must not block. */
  void (*on_event)(void *data, al_event_t *event);
  void (*on_turn)(void *data); /* engine thread: nothing more comes at once after these events; may be NULL */
  void *data;
} al_engine_opts_t;

/* Starts the engine's thread and loop; cheap: no file is touched before the first request. */
int
al_engine_open(const al_engine_opts_t *opts, al_engine_t **out, al_err_t *err);

/* Any thread. `id` is chosen by the caller, unique among open requests; `params` (AL_MAP) is taken. Exactly one DONE or ERROR answers,
 * unless it returns -ENOMEM, when nothing does.
 *
 * op            params -> value
 * create        home?, limactlPath?, allowUnknownLima?, cpus, memoryGiB, diskGiB, timeoutMinutes, startTimeoutSeconds, syncInTimeoutSeconds (0 = none),
 *               queueTimeoutSeconds (0 = inside the start timeout), maxConcurrentVms, image?, network,
 *               accelerator, guestSudo, worktreePath, env {NAME: text},
 *               imageKeys? [text], imageDigests? ["DIGEST KEY": sha256 of a manifest that may be used, and the
 *               public key that has signed it; must be there with imageKeys]  ->  {lane, worktreePath, home, dir, pid, …}
 * attach        home?, limactlPath?, lane  ->  {lane}: a ready lane of another process, for the calls below; close leaves it
 * exec          lane, command | argv [..], cwd?, sudo?, env? {}, stdin? bytes, inputOpen?, mode: "whole" | "lines" | "stream"
 *               -> {exitCode, signal, stdout bytes, stderr bytes, stdoutDropped, stderrDropped, spawnNs}
 * write         exec (id of the exec request), data bytes | [bytes], end?   -> {queued}
 * signal        exec, signal, tree?                                -> null
 * resize        exec, rows, columns                                -> null; exec takes these too, with tty: true
 * cancel        exec (id of an exec or a copy), code?, message?    -> null; that request itself fails with that error
 * copyIn        lane, hostPath, guestPath, ignore? [patterns], progress?
 *               -> {bytes, files, changed, changedPath?}
 * copyOut       lane, guestPath, hostPath, root?, maxBytes?, progress?   -> {bytes, files}
 * copyTreeOut   lane, guestPath, hostPath, root?, maxBytes?, maxEntries?, maxDepth?, executables?, progress?
 *               -> {bytes, files, changed, changedPath?, skipped, skippedPath?}
 * syncedIn      lane                                               -> null; ends the sync-in watchdog
 * ping          lane                                               -> {ns}
 * close         lane, reason?                                      -> null; idempotent, bounded; fails with DESTROY_FAILED when the end could not be proven
 * list          home?, all?                                        -> [row]
 * inspect       home?, lane   -> {lane: row, history: [{atMs, from, to, reason}], settings: {dotted name: text}?,
 *                 arguments: [QEMU's]?, processes: [{pid, kind, program, memoryBytes}], enforced: [{what, enforced?, by}],
 *                 manifest: as of runCheck?}
 * logs          home?, lane, lines?                                -> [{file, what, bytes, cut, lines: [text]}]
 * events        home?, after?   -> {last, changes: [{number, atMs, lane, from?, to, reason}]}; without `after` only `last`
 * runs          home?, max?   -> [{name, state: "open"|"ended", readyMs, endedMs?, by?, reason?, image, bytes}], newest first
 * runCheck      home?, lane | path   -> {path, ok, state, count, head?, line?, why?, interruptedBytes, events: [event]}
 * end           home?, limactlPath?, lane   -> {lane, by}: destroys it whoever owns it; its owner hears LANE_CLOSED
 * reap          home?, limactlPath?, force?, dryRun?
 *                 -> {reaped: [{name, reason, ok, message?}], kept: [{name, reason}],
 *                     unlisted: [name of a lane directory without an open row]}
 * imageImport   home?, from, imageDigests?, progress?              -> {id, dir, arch, manifestSha256}; from: directory or tar
 * imageExport   home?, image, to, progress?                        -> {id, to}
 * imageList     home?                                              -> [image row]
 * imageInspect  home?, image                                       -> image row with {manifest: text}
 * imageSigned   home?, from?           -> [{id, sha256, manifest bytes, signature bytes}] of the store, or of `from`
 * imageVerify   home?, image, imageDigests?, progress?             -> as imageImport; every byte is hashed
 * imageRemove   home?, image                                       -> as imagePrune; fails with IMAGE_IN_USE
 * imagePrune    home?, dryRun?   -> {removed: [{id, bytes?, reason?}], kept: [{id, bytes, reason}], leftovers, dryRun}
 * imageDerived  home?, limactlPath?, allowUnknownLima?, image?, imageDigests?, project, inputsKey, claim?
 *                 -> {parent, parentSha256, image?, claimed}: the project's image derived from that one; with claim, and when
 *                 there is none, claimed: it is the caller's turn to make it, until imageUnclaim
 * imageUnclaim  claim: id of that request                           -> null; also when it had no turn
 * derive        lane, project, inputsKey -> {image, manifestSha256}: closes the lane; its disk is the project's image then
 * doctor        home?, limactlPath?, image?, allowUnknownLima?      -> {ok, checks: [{name, status: "found"|"missing"|"too old"|"unsafe"|"skipped", detail, cure?}]}
 * explain       options of create   -> [{what, enforced?, by}]: the table of inspect, before anything is there
 * home          home?                                              -> {home}: the one that is meant, resolved
 * errors        -                                                  -> [{code, number, meaning, cure}] (the table of err.h)
 */
int
al_engine_post(al_engine_t *e, uint32_t id, const char *op, al_val_t *params);

/* Any thread: the receiver has consumed n bytes of LINES (sub 1) or BYTES of request `id`. */
void
al_engine_taken(al_engine_t *e, uint32_t id, int sub, size_t n);

/* Any thread, once, blocks at most timeout_ms: refuses new requests, fails the open ones with AL_EINTERRUPTED, destroys
 * every lane of this engine, ends the thread. What is not done in time is left to the reaper (rows stay). The memory is
 * gone afterwards, so no other thread may be inside al_engine_post or al_engine_taken, or enter it, from this call on; no
 * event comes after it. After al_engines_leave it does nothing. Returns the number of lanes left. */
int
al_engine_close(al_engine_t *e, unsigned timeout_ms);

/* Any thread, when the process is about to end, for all its engines: those with work stop where they stand, at the next
 * turn of their loops; their lanes are their keeper's. Without it libuv, which takes itself down inside
 * exit(), aborts the process when a loop starts a child or sees one end meanwhile. Engines without work stay as they are.
 * Blocks for at most timeout_ms. 0, or -ETIMEDOUT when one had not stopped by then (it does at its next turn). */
int
al_engines_leave(unsigned timeout_ms);

/* Any thread, needs no engine. Switches off what the terminal at `fd` does to output. 0 or -errno. */
int
al_tty_raw_output(int fd);

#ifdef __cplusplus
}
#endif
#endif
