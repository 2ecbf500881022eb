/* SPDX-License-Identifier: Apache-2.0 */
/* What another process of the same user needs to attach to a lane: its secret, from its own directory. */
#include "lima_int.h"

#include "mem.h"
#include "seal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define YAML_MAX 65536

/* The secret is where the owner wrote it, mode 0600 in a directory of 0700: who can read it is this user, who could
 * also read the owner's memory. The sealed record says that this very directory is that of the registry's row. */
static int
check_seal(int dir, const char *name, int64_t row) {
  struct stat st;
  al_seal_t seal;
  if (fstat(dir, &st) != 0) return -errno;
  if (st.st_uid != geteuid()) return -EPERM;
  int rc = al_seal_read(dir, &seal);
  if (rc < 0) return rc;
  return rc == 1 && strcmp(seal.name, name) == 0 && seal.row == row ? 0 : -ESTALE;
}

static int
find_proof(const char *yaml, char proof[65]) {
  static const char key[] = "\n  content: \"";
  const char *at = strstr(yaml, key);
  if (!at) return -ENODATA;
  at += sizeof key - 1;
  if (strspn(at, "0123456789abcdef") != 64 || at[64] != '"') return -EBADMSG;
  memcpy(proof, at, 64);
  proof[64] = 0;
  return 0;
}

int
al_lima_read_proof(const al_home_t *home, const char *name, int64_t row, char proof[65], al_err_t *err) {
  AL_AUTO_FREE char *text = NULL;
  size_t len = 0;
  if (!al_name_valid(name)) return al_err_set(err, AL_EBAD_NAME, "\"%.40s\" is not the name of a lane", name);
  AL_AUTO_FD int lima = open(home->lima, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  AL_AUTO_FD int dir = lima < 0 ? -1 : openat(lima, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int rc = dir < 0 ? -errno : check_seal(dir, name, row);
  if (rc == 0) rc = al_plat_read_file(dir, "lima.yaml", YAML_MAX, &text, &len);
  if (rc == 0) rc = find_proof(text, proof);
  if (text) al_wipe(text, len);
  if (rc == -ESTALE)
    return al_err_set(err, AL_ENO_SUCH_LANE, "the directory of %s is not the one that its row was sealed with", name);
  return rc ? al_err_set(err, rc, "the secret of %s cannot be read: %s", name, strerror(-rc)) : 0;
}
