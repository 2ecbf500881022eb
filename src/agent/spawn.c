/* SPDX-License-Identifier: Apache-2.0 */
/* Starting a command: a vfork-like clone straight into its cgroup, and what the child does until exec. */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATH_TRY_MAX 4096
#define STACK_SIZE 65536u
#define CLONE_CLEAR_SIGHAND_ 0x100000000ull
#define CLONE_INTO_CGROUP_ 0x200000000ull
#define SYS_CLONE3 435 /* the same number on every architecture */

struct clone3_args {
  uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

/* The child runs on this stack in our memory while we are suspended, so no page table is copied. */
static uint8_t child_stack[STACK_SIZE] __attribute__((aligned(16)));
static al_fail_t *fails;
static struct rlimit files_limit;
static bool no_clone3;

int
al_spawn_init(void) {
  void *p = mmap(NULL, sizeof(al_fail_t) * AL_STREAMS_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return -errno;
  fails = p;
  /* Three pipes for each command and two descriptors for its cgroup; commands get the old limit back. */
  if (getrlimit(RLIMIT_NOFILE, &files_limit) != 0) return -errno;
  struct rlimit more = files_limit;
  if (more.rlim_cur < 8192) more.rlim_cur = 8192;
  if (more.rlim_max < more.rlim_cur) more.rlim_max = more.rlim_cur;
  if (setrlimit(RLIMIT_NOFILE, &more) != 0) {
    more.rlim_cur = more.rlim_max = files_limit.rlim_max;
    (void) setrlimit(RLIMIT_NOFILE, &more);
  }
  return 0;
}

al_fail_t *
al_spawn_fail(size_t slot) {
  return &fails[slot];
}

static void
append(al_fail_t *f, const char *text) {
  size_t at = strnlen(f->text, sizeof(f->text) - 1), n = strlen(text);
  if (n > sizeof(f->text) - 1 - at) n = sizeof(f->text) - 1 - at;
  memcpy(f->text + at, text, n);
  f->text[at + n] = 0;
}

static _Noreturn void
fail(const al_spawn_t *sp, int err, const char *what, const char *name) {
  sp->fail->text[0] = 0;
  append(sp->fail, what);
  append(sp->fail, name);
  append(sp->fail, ": ");
  append(sp->fail, strerror(err));
  sp->fail->err = err;
  for (;;) syscall(SYS_exit_group, 127);
}

static void
try_exec(const al_spawn_t *sp, const char *file) {
  execve(file, sp->argv, sp->envp);
  if (errno != ENOEXEC) return;
  char *first = sp->argv[0]; /* a script without #!, as execvp(3) does it */
  sp->argv[-1] = (char *) (uintptr_t) "/bin/sh";
  sp->argv[0] = (char *) (uintptr_t) file;
  execve("/bin/sh", sp->argv - 1, sp->envp);
  sp->argv[0] = first;
}

static int
search_exec(const al_spawn_t *sp) {
  const char *name = sp->argv[0];
  size_t name_len = strlen(name);
  if (name_len == 0) return ENOENT;
  if (strchr(name, '/') != NULL) {
    try_exec(sp, name);
    return errno;
  }
  char file[PATH_TRY_MAX];
  int result = ENOENT;
  for (const char *p = sp->path;; p++) {
    size_t n = strcspn(p, ":");
    if (n + 1 + name_len < sizeof(file)) {
      memcpy(file, p, n);
      if (n > 0) file[n] = '/';
      memcpy(file + n + (n > 0), name, name_len + 1);
      try_exec(sp, file);
      if (errno == EACCES) result = EACCES;
      else if (errno != ENOENT && errno != ENOTDIR) return errno;
    }
    p += n;
    if (*p == 0) return result;
  }
}

static void
enter_cgroup(const al_spawn_t *sp) {
  int fd = openat(sp->cgroup->dir, "cgroup.procs", O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, "0", 1) != 1) fail(sp, errno, "cgroup", "");
  close(fd);
}

/* All descriptors of the agent are close-on-exec, and those it inherited were closed when it started. */
static int
child_main(void *arg) {
  const al_spawn_t *sp = arg;
  if (no_clone3 && sp->cgroup->dir >= 0) enter_cgroup(sp);
  setsid();
  for (int i = 0; i < AL_SUBS; i++)
    if (dup2(sp->fd[i], i) < 0) fail(sp, errno, "descriptors", "");
  if (sp->tty && ioctl(0, TIOCSCTTY, 0) != 0) fail(sp, errno, "terminal", "");
  if (syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &(uint64_t[2]) {files_limit.rlim_cur, files_limit.rlim_max}, NULL) != 0)
    fail(sp, errno, "limits", "");
  const al_user_t *u = sp->user;
  if (u != NULL) {
    if (syscall(SYS_setgroups, u->groups_len, u->groups) != 0 || syscall(SYS_setresgid, u->gid, u->gid, u->gid) != 0 ||
        syscall(SYS_setresuid, u->uid, u->uid, u->uid) != 0)
      fail(sp, errno, "user ", u->name);
  }
  if (chdir(sp->cwd) != 0) fail(sp, errno, "cwd ", sp->cwd);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  fail(sp, search_exec(sp), "exec ", sp->argv[0]);
}

/* clone3 with a stack of its own: the C library has no wrapper. The child never comes back. */
static long
clone3_call(struct clone3_args *args, int (*fn)(void *), void *arg) {
#if defined(__x86_64__)
  long r;
  register void *r8 __asm__("r8") = (void *) (uintptr_t) fn;
  register void *r9 __asm__("r9") = arg;
  __asm__ volatile(
    "syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\txor %%ebp, %%ebp\n\tmov %%r9, %%rdi\n\tcall *%%r8\n\thlt\n1:"
    : "=a"(r)
    : "a"((long) SYS_CLONE3), "D"(args), "S"(sizeof(*args)), "r"(r8), "r"(r9)
    : "rcx", "r11", "memory");
  return r;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = SYS_CLONE3;
  register long x0 __asm__("x0") = (long) (uintptr_t) args;
  register long x1 __asm__("x1") = (long) sizeof(*args);
  register void *x2 __asm__("x2") = (void *) (uintptr_t) fn;
  register void *x3 __asm__("x3") = arg;
  __asm__ volatile("svc #0\n\tcbnz x0, 1f\n\tmov x29, xzr\n\tmov x0, x3\n\tblr x2\n\tbrk #0\n1:"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3)
                   : "memory");
  return x0;
#else
  (void) args, (void) fn, (void) arg;
  return -ENOSYS;
#endif
}

pid_t
al_spawn_start(const al_spawn_t *sp) {
  sp->fail->err = 0;
  if (!no_clone3) {
    struct clone3_args args = {
      .flags = CLONE_VM | CLONE_VFORK | CLONE_CLEAR_SIGHAND_ | (sp->cgroup->dir >= 0 ? CLONE_INTO_CGROUP_ : 0),
      .exit_signal = SIGCHLD,
      .stack = (uint64_t) (uintptr_t) child_stack,
      .stack_size = sizeof(child_stack),
      .cgroup = sp->cgroup->dir >= 0 ? (uint64_t) sp->cgroup->dir : 0,
    };
    long r = clone3_call(&args, child_main, (void *) (uintptr_t) sp);
    if (r != -ENOSYS && r != -EINVAL && r != -E2BIG) return (pid_t) r;
    no_clone3 = true; /* Linux before 5.7, or an emulator */
  }
  /* Handlers stay set here, but they only look at the process id; exec resets them. */
  int r =
    clone(child_main, child_stack + sizeof(child_stack), CLONE_VM | CLONE_VFORK | SIGCHLD, (void *) (uintptr_t) sp);
  return r < 0 ? -errno : r;
}
