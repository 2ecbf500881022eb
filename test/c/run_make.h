/* SPDX-License-Identifier: Apache-2.0 */
/* Run manifests for tests: events as they come, and files of them. */
#ifndef AL_RUN_MAKE_H
#define AL_RUN_MAKE_H

#include "al_test.h"
#include "db.h"
#include "run_log.h"

#define NAME "agent-lane-00000000-0000000a"
#define OTHER "agent-lane-00000000-0000000b"
#define THIRD "agent-lane-00000000-0000000c"
#define H64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define COMMANDS "{\"started\":3,\"ended\":2,\"interrupted\":1,\"exits\":[{\"code\":0,\"count\":2}]}"
#define READY(days) \
  "{\"event\":\"ready\",\"schema\":2,\"lane\":\"" NAME "\",\"row\":7,\"versions\":{\"agentLane\":\"0.1.0\",\"lima\":\"2.2.0\"," \
  "\"vmType\":\"qemu\",\"vm\":null,\"kernel\":null,\"host\":\"Linux\"},\"owner\":{\"pid\":1,\"program\":null," \
  "\"environment\":\"e\"},\"image\":{\"id\":\"base-1\",\"arch\":\"x86_64\",\"manifestSha256\":\"" H64 "\"," \
  "\"diskSha256\":\"" H64 "\",\"kernelSha256\":null,\"untrustedSetup\":false," \
  "\"signature\":{\"manifestSha256\":\"" H64 "\",\"keyId\":\"0123456789ABCDEF\",\"key\":null},\"parents\":[]},\"options\":{\"cpus\":1,\"memoryMiB\":1024," \
  "\"diskGiB\":4,\"timeoutMinutes\":60,\"startTimeoutSeconds\":50,\"syncInTimeoutSeconds\":0,\"queueTimeoutSeconds\":0," \
  "\"maxConcurrentVms\":2,\"maxCopyOutBytes\":1,\"maxCopyOutTotalBytes\":1,\"maxBufferedBytes\":1," \
  "\"maxDiskGrowthBytes\":0,\"maxHostLogBytes\":0,\"minHostFreeBytes\":0,\"onLowSpace\":\"close\",\"network\":\"none\"," \
  "\"accelerator\":\"tcg\",\"transport\":\"auto\",\"guestSudo\":true,\"worktreePath\":\"/w\",\"image\":null," \
  "\"imageKeys\":[\"k\"],\"limactlPath\":\"/l\",\"allowUnknownLima\":false,\"keepManifestDays\":" days "},\"used\":{\"accelerator\":\"tcg\"," \
  "\"transport\":\"shell\",\"agentUser\":\"agent\",\"sshPort\":1},\"environment\":[\"A\"],\"moreEnvironment\":0," \
  "\"configurationSha256\":\"" H64 "\",\"arguments\":[\"qemu\",\"-m\"],\"enforced\":[{\"what\":\"network\"," \
  "\"enforced\":true,\"by\":\"-netdev\"},{\"what\":\"memory\",\"enforced\":null,\"by\":\"?\"}]," \
  "\"timeline\":[{\"state\":\"asked\",\"atMs\":1}]}"
#define COPIED \
  "{\"event\":\"copied\",\"process\":1,\"kind\":\"file\",\"from\":\"/w/a\",\"to\":\"/h/a\",\"entries\":1,\"bytes\":5," \
  "\"skipped\":0,\"changed\":0,\"unlisted\":0,\"files\":[{\"path\":\"/w/a \\\"\\\\\\n\\u001b\xc3\xa9\",\"bytes\":5," \
  "\"sha256\":\"" H64 "\"}],\"commands\":" COMMANDS "}"
#define FILES "{\"event\":\"files\",\"files\":[{\"path\":\"b\",\"bytes\":0,\"sha256\":\"" H64 "\"}]}"
#define ATTACHED "{\"event\":\"attached\",\"process\":2,\"program\":null}"
#define CLOSING \
  "{\"event\":\"closing\",\"process\":1,\"code\":\"LANE_CLOSED\",\"reason\":\"closed\",\"commands\":" COMMANDS "," \
  "\"copies\":{\"copies\":1,\"bytes\":5},\"missed\":0}"

AL_TEST_FN al_val_t *
run_event(const char *json) {
  al_val_t *v = NULL;
  al_err_t err = {0};
  if (al_json_parse(json, strlen(json), &v, &err)) fail_msg("%s", err.msg);
  return v;
}

AL_TEST_FN int
run_begin(const al_home_t *home, const char *name, const char *json) {
  al_val_t *v = run_event(json);
  int rc = al_run_begin(home, name, v, NULL);
  al_val_free(v);
  return rc;
}

AL_TEST_FN int
run_add(const al_home_t *home, const char *name, const char *json) {
  al_val_t *v = run_event(json);
  const al_val_t *const events[] = {v};
  int rc = al_run_add(home, name, events, 1, NULL);
  al_val_free(v);
  return rc;
}

AL_TEST_FN int
run_end(const al_home_t *home, const char *name) {
  al_val_t *v = al_run_end_event("owner", 1, "LANE_CLOSED", "the test");
  int rc = al_run_end(home, name, v, NULL);
  al_val_free(v);
  return rc;
}

AL_TEST_FN al_run_check_t
run_check(const char *text, size_t len) {
  al_run_check_t c;
  assert_int_equal(al_run_check(text, len, &c, NULL), 0);
  return c;
}

/* The whole file; caller frees. */
AL_TEST_FN char *
run_read(const al_home_t *home, const char *name, size_t *len) {
  char *text = NULL;
  al_err_t err = {0};
  if (al_run_read(home, name, NULL, &text, len, &err)) fail_msg("%s", err.msg);
  return text;
}

AL_TEST_FN al_run_check_t
run_check_file(const al_home_t *home, const char *name) {
  size_t len;
  char *text = run_read(home, name, &len);
  al_run_check_t c = run_check(text, len);
  al_free(text);
  return c;
}

AL_TEST_FN void
run_file(const al_home_t *home, const char *name, char path[AL_RUN_PATH_MAX]) {
  al_run_path(home, name, path);
}

/* Puts `len` bytes in the manifest's place, open as one that has no end. */
AL_TEST_FN void
run_put(const al_home_t *home, const char *name, const char *text, size_t len) {
  char path[AL_RUN_PATH_MAX];
  run_file(home, name, path);
  unlink(path);
  FILE *f = fopen(path, "we");
  assert_non_null(f);
  assert_int_equal(fwrite(text, 1, len, f), len);
  assert_int_equal(fclose(f), 0);
  assert_int_equal(chmod(path, 0600), 0);
}

#endif
