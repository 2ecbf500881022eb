/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of a lane's logs, made safe to show: what stands in them comes from the guest, from QEMU and from Lima. */
#include "lima_look.h"
#include "lima_int.h"

#include "mem.h"
#include "utf8.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_MAX (1u << 20) /* of one file, from its end */

static const struct {
  const char *file, *what;
} logs[] = {
  {"serial.log.1", "guest"}, {"serial.log", "guest"},           {"serialp.log.1", "guest"}, {"serialp.log", "guest"},
  {"serialv.log.1", "guest"}, {"serialv.log", "guest"},         {"warden.log", "warden"},
  {"ha.stderr.log", "hostagent"}, {"ha.stdout.log", "hostagent"},
};

/* One line: valid UTF-8 stays, tabs too; everything that could drive a terminal, and every other byte, becomes \xNN. */
static al_val_t *
printable(const char *line, size_t len) {
  size_t shown = len < AL_LOG_LINE_MAX ? len : AL_LOG_LINE_MAX, used = 0;
  if (shown < len) shown = al_utf8_cut((const uint8_t *) line, shown);
  if (shown > 0 && shown == len && line[shown - 1] == '\r') shown--;
  AL_AUTO_FREE char *out = al_malloc(4 * shown + 32);
  if (!out) return NULL;
  for (size_t i = 0; i < shown;) {
    uint8_t c = (uint8_t) line[i];
    size_t n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    char one[8];
    bool fits = n <= shown - i && al_utf8_valid((const uint8_t *) line + i, n);
    bool safe = fits && (c == '\t' || (al_utf8_printable(one, sizeof one, line + i, n, false) == n && memcmp(one, line + i, n) == 0));
    if (safe) {
      memcpy(out + used, line + i, n);
      used += n;
      i += n;
    } else {
      used += (size_t) snprintf(out + used, 5, "\\x%02x", c);
      i++;
    }
  }
  if (len > AL_LOG_LINE_MAX) used += (size_t) snprintf(out + used, 24, " … (%zu bytes)", len);
  return al_val_textn(out, used);
}

/* Where the last `lines` lines of the text begin; the newline at the very end is no line's beginning. */
static size_t
begin_of(const char *text, size_t len, size_t lines) {
  size_t at = len;
  if (at > 0 && text[at - 1] == '\n') at--;
  while (at > 0) {
    if (text[at - 1] == '\n' && --lines == 0) return at;
    at--;
  }
  return 0;
}

/* A log that was cut begins with a hole. */
static size_t
skip_hole(const char *text, size_t len) {
  size_t at = 0;
  while (at < len && text[at] == 0) at++;
  return at;
}

static int
add_lines(al_val_t *list, const char *text, size_t len) {
  int rc = 0;
  for (size_t at = 0; rc == 0 && at < len;) {
    const char *end = memchr(text + at, '\n', len - at);
    size_t n = end ? (size_t) (end - text) - at : len - at;
    rc = al_val_add(list, printable(text + at, n));
    at += n + 1;
  }
  return rc;
}

/* The last bytes of the file, at most READ_MAX. */
static ssize_t
read_end(int fd, off_t size, char *text) {
  size_t used = 0, want = size < (off_t) READ_MAX ? (size_t) size : READ_MAX;
  off_t from = size - (off_t) want;
  while (used < want) {
    ssize_t n = pread(fd, text + used, want - used, from + (off_t) used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if (n == 0) break;
    used += (size_t) n;
  }
  return (ssize_t) used;
}

static int
add_log(al_val_t *out, int dir, size_t which, size_t lines, char *text) {
  struct stat st;
  AL_AUTO_FD int fd = openat(dir, logs[which].file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return 0;
  ssize_t len = read_end(fd, st.st_size, text);
  if (len < 0) return 0;
  size_t hole = skip_hole(text, (size_t) len);
  size_t from = hole + begin_of(text + hole, (size_t) len - hole, lines);
  al_val_t *list = al_val_list(), *v = al_val_map();
  int rc = list ? add_lines(list, text + from, (size_t) len - from) : -ENOMEM;
  rc |= al_val_set(v, "file", al_val_text(logs[which].file)) | al_val_set(v, "what", al_val_text(logs[which].what)) |
    al_val_set(v, "bytes", al_val_int(st.st_size)) | al_val_set(v, "cut", al_val_bool(from > 0 || st.st_size > len)) |
    al_val_set(v, "lines", list) | al_val_add(out, v);
  return rc;
}

int
al_lima_logs(const al_home_t *home, const char *name, size_t lines, al_val_t **out, al_err_t *err) {
  AL_AUTO_FD int dir = al__lima_lane_dir(home, name);
  if (dir < 0 && dir != -ENOENT)
    return al_err_set(err, dir, "the directory of %s cannot be opened: %s", name, strerror(-dir));
  AL_AUTO_FREE char *text = al_malloc(READ_MAX);
  al_val_t *list = text ? al_val_list() : NULL;
  int rc = list ? 0 : -ENOMEM;
  for (size_t i = 0; dir >= 0 && rc == 0 && i < sizeof logs / sizeof *logs; i++) rc = add_log(list, dir, i, lines, text);
  if (rc) {
    al_val_free(list);
    return al_err_set(err, -ENOMEM, "out of memory");
  }
  *out = list;
  return 0;
}
