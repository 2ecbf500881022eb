/* SPDX-License-Identifier: Apache-2.0 */
/* What the warden writes: its own short log, and the guest's serial output, which must not fill the disk. */
#include "warden.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void
put(int fd, const char *p, size_t n) {
  while (fd >= 0 && n > 0) {
    ssize_t done = write(fd, p, n);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return; /* a full disk must not stop the watch */
    p += done;
    n -= (size_t) done;
  }
}

int
al_warden_log_open(const char *path) {
  struct stat st;
  int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return -1;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || ftruncate(fd, 0) != 0) {
    close(fd);
    errno = EPERM;
    return -1;
  }
  return fd;
}

void
al_warden_log(int fd, const char *fmt, ...) {
  char line[1024];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(line, sizeof line - 1, fmt, ap);
  va_end(ap);
  if (n < 0) return;
  size_t len = (size_t) n < sizeof line - 1 ? (size_t) n : sizeof line - 2;
  line[len++] = '\n';
  put(fd, line, len);
  put(STDERR_FILENO, line, len);
}

/* Every byte of an argument is printable ASCII by now or was refused, but for paths. */
static void
put_json(int fd, const char *text) {
  char out[1024];
  size_t n = 0;
  out[n++] = '"';
  for (; *text != 0; text++) {
    unsigned char c = (unsigned char) *text;
    if (n > sizeof out - 8) {
      put(fd, out, n);
      n = 0;
    }
    if (c == '"' || c == '\\') out[n++] = '\\';
    if (c < 0x20) n += (size_t) snprintf(out + n, 7, "\\u%04x", c);
    else out[n++] = (char) c;
  }
  out[n++] = '"';
  put(fd, out, n);
}

void
al_warden_log_argv(int fd, const al_warden_vm_t *vm, pid_t qemu) {
  char head[96];
  int n = snprintf(head, sizeof head, "{\"warden\":%ld,\"qemu\":%ld,\"argv\":[", (long) getpid(), (long) qemu);
  put(fd, head, (size_t) n);
  for (int i = 0; i < vm->argc; i++) {
    if (i > 0) put(fd, ",", 1);
    put_json(fd, vm->argv[i]);
  }
  put(fd, "]}\n", 3);
}

static void
turn_over(al_warden_sink_t *sink) {
  char old[AL_WARDEN_PATH_MAX + 4];
  if (sink->file_fd >= 0) {
    close(sink->file_fd);
    snprintf(old, sizeof old, "%s.1", sink->path);
    (void) rename(sink->path, old);
  }
  (void) unlink(sink->path);
  sink->size = 0;
  sink->file_fd = open(sink->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

void
al_warden_sink_pump(al_warden_sink_t *sink) {
  char block[16384];
  ssize_t n = sink->read_fd >= 0 ? read(sink->read_fd, block, sizeof block) : -1;
  if (n < 0) return;
  if (n == 0) {
    close(sink->read_fd);
    sink->read_fd = -1;
    return;
  }
  if (sink->file_fd < 0 || sink->size + (uint32_t) n > AL_WARDEN_SINK_MAX) turn_over(sink);
  put(sink->file_fd, block, (size_t) n);
  sink->size += (uint32_t) n;
}
