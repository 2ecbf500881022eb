/* SPDX-License-Identifier: Apache-2.0 */
/* limactl, QEMU, qemu-img and ssh-keygen as one small program: the test itself under another name, so that a whole lane
 * costs milliseconds. The guest is the real lane agent with --local. */
#ifndef AL_STAND_IN_H
#define AL_STAND_IN_H

#include "al_test.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define STAND_IN_LIFE_S 120 /* what a test forgets does not stay for ever */

/* The n-th value of `key:` in our lima.yaml, as it stands there: numbers, and strings with quotes and escapes that JSON
 * knows, too. */
AL_TEST_FN const char *
stand_in_value(const char *yaml, const char *key, int n) {
  static char out[16][4096];
  static int turn;
  char want[64], *to = out[turn = (turn + 1) % 16];

  snprintf(want, sizeof want, "%s: ", key);
  for (const char *p = yaml; (p = strstr(p, want)); p++) {
    bool begins = p == yaml || p[-1] == '\n' || p[-1] == ' ' || p[-1] == '{';
    if (!begins || n-- > 0) continue;
    p += strlen(want);
    size_t len = 0;
    if (*p == '"') {
      for (len = 1; p[len] && p[len] != '"'; len++) len += p[len] == '\\';
      len++;
    } else {
      len = strcspn(p, ",}\n");
    }
    snprintf(to, sizeof out[0], "%.*s", (int) len, p);
    return to;
  }
  return "\"\"";
}

AL_TEST_FN char *
stand_in_yaml(const char *name) {
  static char text[65536];
  char path[1024];

  snprintf(path, sizeof path, "%s/%s/lima.yaml", getenv("LIMA_HOME"), name);
  FILE *f = fopen(path, "re");
  if (!f) return NULL;
  text[fread(text, 1, sizeof text - 1, f)] = 0;
  fclose(f);
  return text;
}

AL_TEST_FN int
stand_in_fatal(const char *msg) {
  fprintf(stderr, "{\"level\":\"fatal\",\"msg\":\"%s\",\"time\":\"2026-01-01T00:00:00Z\"}\n", msg);
  return 1;
}

/* The effective configuration that Lima 2.2 makes of our file. */
AL_TEST_FN int
stand_in_list(const char *name) {
  const char *y = stand_in_yaml(name);

  if (!y) return stand_in_fatal("unmatched instances");
#define V(key) stand_in_value(y, key, 0)
#define N(key, n) stand_in_value(y, key, n)
  const char *arch = V("arch");
  bool arm = strcmp(arch, "\"aarch64\"") == 0;
  printf("{\"name\":\"%s\",\"dir\":\"%s/%s\",\"vmType\":\"qemu\",\"arch\":%s,\"status\":\"Stopped\",\"config\":{", name,
    getenv("LIMA_HOME"), name, arch);
  printf("\"vmType\":\"qemu\",\"os\":\"Linux\",\"arch\":%s,\"minimumLimaVersion\":\"2.2.0\",\"images\":[{", arch);
  printf("\"location\":%s,\"arch\":%s,\"kernel\":{\"location\":%s,\"arch\":%s,\"cmdline\":%s},", V("location"), arch,
    N("location", 1), arch, V("cmdline"));
  printf("\"initrd\":{\"location\":%s,\"arch\":%s}}],", N("location", 2), arch);
  printf("\"cpus\":%s,\"memory\":%s,\"disk\":%s,\"plain\":true,", V("cpus"), V("memory"), V("disk"));
  printf("\"provision\":[{\"mode\":\"data\",\"path\":\"/run/agent-lane/proof\",\"owner\":\"root:root\","
    "\"permissions\":\"600\",\"overwrite\":true,\"content\":%s}],", V("content"));
  printf("\"ssh\":{\"localPort\":0,\"loadDotSSHPubKeys\":false,\"forwardAgent\":false,\"forwardX11\":false,"
    "\"forwardX11Trusted\":false,\"overVsock\":false},");
  printf("\"user\":{\"name\":%s,\"comment\":\"\",\"home\":%s,\"shell\":\"/bin/bash\",\"uid\":1000,"
    "\"passwordlessSudo\":true},", V("name"), V("home"));
  printf("\"containerd\":{\"system\":false,\"user\":false},\"hostResolver\":{\"enabled\":false,\"ipv6\":false},"
    "\"video\":{\"display\":\"none\"},\"propagateProxyEnv\":false,\"upgradePackages\":false,\"timezone\":\"\","
    "\"nestedVirtualization\":false,\"caCerts\":{\"removeDefaults\":false},\"firmware\":{\"legacyBIOS\":%s},"
    "\"vmOpts\":{\"qemu\":{\"cpuType\":{%s:\"max\"}}},\"mounts\":[],\"networks\":[]}}\n", arm ? "false" : "true", arch);
#undef V
#undef N
  return fflush(stdout);
}

/* Starts QEMU, tells its port as the host agent would, and ends. */
AL_TEST_FN int
stand_in_start(const char *self, const char *name) {
  char dir[1024], qemu[1024], pidfile[1100], log[1100];
  int fds[2];
  unsigned port = 0;

  snprintf(dir, sizeof dir, "%s/%s", getenv("LIMA_HOME"), name);
  snprintf(pidfile, sizeof pidfile, "%s/qemu.pid", dir);
  snprintf(log, sizeof log, "%s/ha.stdout.log", dir);
  snprintf(qemu, sizeof qemu, "%.*s/qemu-system-x86_64", (int) (strrchr(self, '/') - self), self);
  if (!stand_in_yaml(name) || pipe(fds)) return stand_in_fatal("no such instance");
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    char fd[16];
    setsid();
    close(fds[0]);
    snprintf(fd, sizeof fd, "%d", fds[1]);
    for (int i = 0; i < 3; i++) dup2(open("/dev/null", O_RDWR), i);
    execl(qemu, qemu, "-pidfile", pidfile, fd, (char *) NULL);
    _exit(127);
  }
  close(fds[1]);
  if (pid < 0 || read(fds[0], &port, sizeof port) != sizeof port)
    return stand_in_fatal("QEMU did not start: No space left on device"); /* it writes nothing but its pid */
  FILE *f = fopen(log, "we");
  if (!f) return stand_in_fatal(strerror(errno));
  fprintf(f, "{\"time\":\"2026-01-01T00:00:00Z\",\"status\":{\"sshLocalPort\":%u}}\n", port);
  return fclose(f) ? stand_in_fatal(strerror(errno)) : 0;
}

/* QEMUs whose command line begins with `want`, this one included. One that is only asked for its version is none. */
AL_TEST_FN int
stand_in_count(const char *want) {
  int n = 0;
  size_t len = strlen(want);
  DIR *d = opendir("/proc");
  for (struct dirent *e; d && (e = readdir(d));) {
    char path[300], text[1024] = "";
    if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
    snprintf(path, sizeof path, "/proc/%s/cmdline", e->d_name);
    FILE *f = fopen(path, "re");
    size_t got = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    if (got <= len || memcmp(text, want, len)) continue;
    const char *first = text + strlen(text) + 1;
    n += first < text + got && strcmp(first, "-pidfile") == 0;
  }
  if (d) closedir(d);
  return n;
}

/* Where <home>/run/census is, each start of a QEMU writes there how many there are then. */
AL_TEST_FN void
stand_in_census(const char *self, const char *pidfile) {
  char path[1100], line[16];
  const char *end = pidfile + strlen(pidfile);
  for (int i = 0; i < 3; i++)
    while (end > pidfile && *--end != '/') {}
  snprintf(path, sizeof path, "%.*s/run/census", (int) (end - pidfile), pidfile);
  int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return;
  int n = snprintf(line, sizeof line, "%d\n", stand_in_count(self));
  if (write(fd, line, (size_t) n) != n) abort();
  close(fd);
}

/* A port with a banner, as QEMU has for a guest's sshd. The port goes to the descriptor of argv[3]. */
AL_TEST_FN int
stand_in_qemu(char **argv) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof at;
  int fd = atoi(argv[3]), s = socket(AF_INET, SOCK_STREAM, 0);

  alarm(STAND_IN_LIFE_S);
  stand_in_census(argv[0], argv[2]);
  if (bind(s, (struct sockaddr *) &at, len) || listen(s, 8) || getsockname(s, (struct sockaddr *) &at, &len)) return 1;
  FILE *f = fopen(argv[2], "we");
  if (!f || fprintf(f, "%d\n", (int) getpid()) < 0 || fclose(f)) return 1;
  unsigned port = ntohs(at.sin_port);
  if (write(fd, &port, sizeof port) != sizeof port) return 1;
  close(fd);
  for (;;) {
    int c = accept(s, NULL, NULL);
    if (c >= 0 && write(c, "SSH-2.0-stand-in\r\n", 18) != 18) close(c);
  }
}

/* Takes the agent from stdin as the guest's bootstrap does, and becomes it. */
AL_TEST_FN int
stand_in_shell(const char *name, const char *script) {
  char path[1100], token[64] = "", fd_path[32];
  static char buf[65536];
  const char *yaml = stand_in_yaml(name), *size = strstr(script, "head -c "), *mark = strstr(script, "\\nagent-lane-");

  if (!yaml || !size || !mark) return stand_in_fatal("no such instance");
  size_t left = strtoul(size + 8, NULL, 10);
  snprintf(token, sizeof token, "%.*s", (int) strcspn(mark + 2, "\\"), mark + 2);
  int fd = memfd_create("agent", 0);
  while (left > 0) {
    ssize_t n = read(0, buf, left < sizeof buf ? left : sizeof buf);
    if (n <= 0 || write(fd, buf, (size_t) n) != n) return 1;
    left -= (size_t) n;
  }
  snprintf(path, sizeof path, "%s/%s/proof", getenv("LIMA_HOME"), name);
  const char *proof = stand_in_value(yaml, "content", 0);
  FILE *f = fopen(path, "we");
  if (!f || fprintf(f, "%.64s", proof + 1) < 0 || fclose(f)) return stand_in_fatal(strerror(errno));
  printf("\n%s\n", token);
  fflush(stdout);
  snprintf(fd_path, sizeof fd_path, "/proc/self/fd/%d", fd);
  execl(fd_path, "agent", "--local", "--secret", path, (char *) NULL);
  return 127;
}

AL_TEST_FN int
stand_in_limactl(int argc, char **argv) {
  int i = 1;

  while (i < argc && argv[i][0] == '-' && strcmp(argv[i], "--version")) i += strcmp(argv[i], "--log-format") ? 1 : 2;
  const char *cmd = i < argc ? argv[i] : "", *last = argv[argc - 1];
  if (strcmp(cmd, "--version") == 0) return puts("limactl version 2.2.0") < 0;
  if (strcmp(cmd, "list") == 0) return stand_in_list(last);
  if (strcmp(cmd, "start") == 0) return stand_in_start(argv[0], last);
  if (strcmp(cmd, "delete") == 0) return 0; /* the driver removes what it leaves */
  if (strcmp(cmd, "shell") == 0) return stand_in_shell(argv[i + 3], last);
  if (strcmp(cmd, "network")) return stand_in_fatal("unknown command");
  char path[1024];
  snprintf(path, sizeof path, "%s/_config/networks.yaml", getenv("LIMA_HOME"));
  FILE *f = fopen(path, "we");
  return !f || fputs("networks: {}\n", f) < 0 || fclose(f) ? stand_in_fatal(strerror(errno)) : 0;
}

AL_TEST_FN int
stand_in_file(const char *path, const char *text) {
  FILE *f = fopen(path, "we");
  if (f && fputs(text, f) >= 0 && fclose(f) == 0) return 0;
  fprintf(stderr, "%s: %s\n", path, strerror(errno));
  return 1;
}

/* First thing in main: true when this process is one of the stand-ins; then *code is what main returns. */
AL_TEST_FN bool
stand_in(int argc, char **argv, int *code) {
  const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
  char pub[1100];

  if (strcmp(name, "limactl") == 0) {
    *code = stand_in_limactl(argc, argv);
  } else if (argc > 1 && strcmp(argv[1], "--version") == 0) {
    *code = puts("QEMU emulator version 7.2.0, qemu-img version 7.2.0") < 0;
  } else if (strcmp(name, "qemu-img") == 0 && argc > 9) {
    *code = stand_in_file(argv[9], "overlay");
  } else if (strncmp(name, "qemu-system-", 12) == 0 && argc == 4) {
    *code = stand_in_qemu(argv);
  } else if (strcmp(name, "ssh-keygen") == 0) {
    snprintf(pub, sizeof pub, "%s.pub", argv[argc - 1]);
    *code = stand_in_file(pub, "public") || stand_in_file(argv[argc - 1], "private");
  } else {
    *code = 1;
    return strncmp(name, "test_", 5) != 0; /* never the tests themselves again, from inside a test */
  }
  return true;
}

#endif
