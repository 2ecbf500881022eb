/* SPDX-License-Identifier: Apache-2.0 */
/* The primitives that differ between Linux and macOS; platform_linux.c, platform_darwin.c, platform_posix.c.
 * Synchronous, any thread. Return 0 or -errno. */
#ifndef AL_PLATFORM_H
#define AL_PLATFORM_H

#include "err.h"
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define AL_BOOT_ID_MAX 64
#define AL_EXE_MAX 1024

/* Identity of a process: never a bare pid. start is in the kernel's own unit (Linux: clock ticks since boot, field 22
 * of /proc/PID/stat; macOS: microseconds since 1970), compared for equality only. */
typedef struct al_ident_s {
  pid_t pid;
  uint64_t start;
  char boot[AL_BOOT_ID_MAX];
  char exe[AL_EXE_MAX];
} al_ident_t;

int
al_plat_ident(pid_t pid, al_ident_t *out); /* -ESRCH when there is none (a zombie counts as none) */
/* 1 = that very process runs, 0 = gone (other start, other boot, other executable, or no such pid), < 0 = cannot tell.
 * An empty exe in `id` is not compared. */
int
al_plat_ident_alive(const al_ident_t *id);
/* Kills exactly that process (pidfd on Linux; checked again right before). 0 also when it was gone already. */
int
al_plat_ident_kill(const al_ident_t *id, int signo);

/* Memory of its own that the process holds right now, in bytes. -ESRCH when it is gone. */
int
al_plat_memory(const al_ident_t *id, uint64_t *out);

/* Calls cb for every process of our uid with its identity and its command line (argv joined by NUL, `len` bytes).
 * Non-zero from cb stops. */
typedef int (*al_plat_proc_cb)(void *data, const al_ident_t *id, const char *cmdline, size_t len);
int
al_plat_each_process(al_plat_proc_cb cb, void *data);

/* The process of our uid that listens on 127.0.0.1:port. -ENOENT when nobody does, -EPERM when another user
 * does. -ENOSYS where it cannot be told. */
int
al_plat_tcp_listener(uint16_t port, al_ident_t *out);

/* Connects to the local socket `path`: the descriptor, non-blocking, not inherited; or -errno. Never waits: -EAGAIN when
 * the listener's queue is full. */
int
al_plat_local_connect(const char *path);
/* The process at the other end of the connected local socket `fd`, as the kernel knows it from the time it listened or
 * made the pair. -EPERM when it is another user's, -ESRCH when it is gone. */
int
al_plat_socket_peer(int fd, al_ident_t *out);

/* Two ends of a local stream, neither of which a child inherits. */
int
al_plat_socketpair(int fds[2]);

int
al_plat_boot_id(char out[AL_BOOT_ID_MAX]);
int
al_plat_random(void *p, size_t n);
uint64_t
al_plat_boot_ms(void); /* milliseconds of boot time, sleep included: for lifetimes */
uint64_t
al_plat_mono_ms(void); /* monotonic: for deadlines and pings */
int64_t
al_plat_wall_ms(void); /* unix time in ms, which may jump: for people */
int
al_plat_exe_path(char *out, size_t cap); /* of this process */
/* 1 when `fd` is on a network file system, 0 when not, < 0 on error. */
int
al_plat_is_network_fs(int fd);
struct stat;
void
al_plat_stat_times(const struct stat *st, int64_t *mtime_ns, int64_t *ctime_ns); /* nanoseconds since 1970 */
int
al_plat_fsync(int fd); /* F_FULLFSYNC on macOS */
/* Everything that was written to the file system of `fd`. macOS starts it, and waits only for the drive. */
int
al_plat_sync_fs(int fd);
/* Opens a directory only to look into it and go through it: its x bit is enough. */
#ifdef O_PATH
#define AL_O_LOOK O_PATH
#else
#define AL_O_LOOK O_SEARCH
#endif
/* Opens a path below dirfd with no symbolic link followed in any component. */
int
al_plat_open_beneath(int dirfd, const char *path, int flags, mode_t mode);
/* Copy by clone where the file system can (macOS: clonefile, Linux: FICLONE), else a plain copy that keeps holes. `to`
 * must not exist. */
int
al_plat_clone_file(const char *from, const char *to, mode_t mode);
/* Removes a directory tree below dirfd by descriptors, following no link and crossing no file system. -ENOENT when
 * absent. */
int
al_plat_remove_tree(int dirfd, const char *name);
/* mkdir whose owner has the rights of `mode` whatever the umask. -EEXIST when it is there already. */
int
al_plat_mkdir(const char *path, mode_t mode);
/* The same with parents, mode for the new ones. */
int
al_plat_mkdirs(const char *path, mode_t mode);
/* Reads a whole file of at most cap bytes; result is zero-terminated, caller frees. -EFBIG when larger. */
int
al_plat_read_file(int dirfd, const char *path, size_t cap, char **out, size_t *len);
/* Writes a file that must not exist, fsyncs it. */
int
al_plat_write_new(int dirfd, const char *path, const void *p, size_t n, mode_t mode);
/* Replaces `path` whole (temporary sibling, fsync, rename). */
int
al_plat_write_replace(int dirfd, const char *path, const void *p, size_t n, mode_t mode);
/* Finds a program: absolute path of `name` in PATH-like `path` (NULL: the process's own PATH), skipping relative,
 * group- or world-writable and node_modules entries; or checks `name` itself when it has a slash (AL_EPROGRAM_UNSAFE
 * when it may not be used). -ENOENT. */
int
al_plat_find_program(const char *name, const char *path, char *out, size_t cap, al_err_t *err);

#endif
