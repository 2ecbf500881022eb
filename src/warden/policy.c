/* SPDX-License-Identifier: Apache-2.0 */
/* The warden's own words: a policy that is whole, known and given once each, or nothing starts. */
#include "warden.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORD_VERSION, WORD_QEMU, WORD_NETWORK, WORD_ACCEL, WORD_CHANNEL, WORD_OWNER, WORD_KEEPER, WORD_LOG, WORDS };

static const char *const words[WORDS] = {
  "--agent-lane-policy", "--qemu", "--network", "--accel", "--channel", "--owner", "--keeper", "--log"};

static int
refuse(char *why, size_t cap, const char *what, const char *word) {
  snprintf(why, cap, "%s %.80s", what, word);
  return -1;
}

/* PID:START, both decimal, nothing else. */
static int
parse_process(const char *text, pid_t *out, uint64_t *out_start) {
  char *end;
  if (*text < '1' || *text > '9') return -1;
  errno = 0;
  long pid = strtol(text, &end, 10);
  if (errno != 0 || *end != ':' || pid < 2 || pid > 0x7fffffff) return -1;
  const char *start = end + 1;
  if (*start < '0' || *start > '9') return -1;
  unsigned long long ticks = strtoull(start, &end, 10);
  if (errno != 0 || *end != 0) return -1;
  *out = (pid_t) pid;
  *out_start = ticks;
  return 0;
}

/* QEMU must be a program that nobody but its owner can change, and that owner root or us. */
static const char *
check_program(const char *path) {
  struct stat st;
  if (path[0] != '/' || strlen(path) >= AL_WARDEN_PATH_MAX) return "--qemu is not an absolute path:";
  if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return "--qemu is not a program:";
  if ((st.st_uid != 0 && st.st_uid != geteuid()) || (st.st_mode & 022) != 0) return "--qemu may be changed by others:";
  if (access(path, X_OK) != 0) return "--qemu cannot be run:";
  return NULL;
}

static const char *
take(int word, char *value, al_warden_policy_t *out) {
  switch (word) {
  case WORD_VERSION: return strcmp(value, AL_WARDEN_POLICY) == 0 ? NULL : "unknown policy version";
  case WORD_QEMU: out->qemu = value; return check_program(value);
  case WORD_NETWORK:
    out->network_open = strcmp(value, "open") == 0;
    return out->network_open || strcmp(value, "none") == 0 ? NULL : "unknown --network";
  case WORD_ACCEL:
    if (strcmp(value, "tcg") == 0) out->accel = AL_WARDEN_TCG;
    else if (strcmp(value, "kvm") == 0) out->accel = AL_WARDEN_KVM;
    else if (strcmp(value, "hvf") == 0) out->accel = AL_WARDEN_HVF;
    else return "unknown --accel";
    return NULL;
  case WORD_CHANNEL:
    out->port = strcmp(value, "port") == 0;
    return out->port || strcmp(value, "shell") == 0 ? NULL : "unknown --channel";
  case WORD_OWNER:
    return parse_process(value, &out->owner, &out->owner_start) == 0 ? NULL : "--owner is not PID:START:";
  case WORD_KEEPER:
    return parse_process(value, &out->keeper, &out->keeper_start) == 0 ? NULL : "--keeper is not PID:START:";
  case WORD_LOG:
    out->log = value;
    return value[0] == '/' && strlen(value) < AL_WARDEN_PATH_MAX ? NULL : "--log is not an absolute path:";
  default: return "unknown policy word";
  }
}

int
al_warden_policy_parse(int argc, char **argv, al_warden_policy_t *out, char *why, size_t cap) {
  bool seen[WORDS] = {false};
  int i = 1;
  memset(out, 0, sizeof *out);
  for (; i < argc && strcmp(argv[i], "--") != 0; i += 2) {
    int word = 0;
    while (word < WORDS && strcmp(words[word], argv[i]) != 0) word++;
    if (word == WORDS) return refuse(why, cap, "unknown policy word", argv[i]);
    if (seen[word]) return refuse(why, cap, "given twice:", argv[i]);
    if (i + 1 >= argc) return refuse(why, cap, "no value for", argv[i]);
    seen[word] = true;
    const char *wrong = take(word, argv[i + 1], out);
    if (wrong != NULL) return refuse(why, cap, wrong, argv[i + 1]);
  }
  if (i >= argc) return refuse(why, cap, "no \"--\" after the policy;", "this program is started by Agent Lane only");
  for (int word = 0; word < WORDS; word++) {
    if (!seen[word]) return refuse(why, cap, "missing policy word", words[word]);
  }
  return i + 1;
}

int
al_warden_probe_qemu(char *out, size_t cap) {
#if defined(__aarch64__)
  static const char name[] = "qemu-system-aarch64";
#else
  static const char name[] = "qemu-system-x86_64";
#endif
  const char *path = getenv("PATH");
  while (path != NULL && *path != 0) {
    size_t n = strcspn(path, ":");
    int len = snprintf(out, cap, "%.*s/%s", (int) n, path, name);
    if (len > 0 && (size_t) len < cap && check_program(out) == NULL) return 0;
    path += n + (path[n] == ':');
  }
  return -1;
}
