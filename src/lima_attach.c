/* SPDX-License-Identifier: Apache-2.0 */
/* What another process of the same user needs to attach to a lane: its secret, from its own directory. */
#include "lima_int.h"

#include "db.h"
#include "mem.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define YAML_MAX 65536

/* The secret is where the owner wrote it, mode 0600 in a directory of 0700: who can read it is this user, who could
 * also read the owner's memory. The sealed record says that this very directory is that of the registry's row. */
static int
check_seal(int dir, const char *name, int64_t row) {
  AL_AUTO_FREE char *text = NULL;
  size_t len = 0;
  struct stat st;
  al_val_t *v = NULL;
  if (fstat(dir, &st) != 0) return -errno;
  if (st.st_uid != geteuid()) return -EPERM;
  int rc = al_plat_read_file(dir, "agent-lane.json", 4096, &text, &len);
  if (rc == 0) rc = al_json_parse(text, len, &v, NULL);
  if (rc) return rc;
  const char *sealed = "";
  int64_t dev = -1, ino = -1, id = -1;
  bool ok = v->kind == AL_MAP && al_val_get_text(v, "name", "", &sealed, NULL) == 0 &&
    al_val_get_int(v, "row", -1, 0, INT64_MAX, &id, NULL) == 0 &&
    al_val_get_int(v, "dev", -1, 0, INT64_MAX, &dev, NULL) == 0 &&
    al_val_get_int(v, "ino", -1, 0, INT64_MAX, &ino, NULL) == 0 && strcmp(sealed, name) == 0 && id == row &&
    (uint64_t) dev == (uint64_t) st.st_dev && (uint64_t) ino == (uint64_t) st.st_ino;
  al_val_free(v);
  return ok ? 0 : -ESTALE;
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
  if (text) explicit_bzero(text, len);
  if (rc == -ESTALE)
    return al_err_set(err, AL_ENO_SUCH_LANE, "the directory of %s is not the one that its row was sealed with", name);
  return rc ? al_err_set(err, rc, "the secret of %s cannot be read: %s", name, strerror(-rc)) : 0;
}
