/* SPDX-License-Identifier: Apache-2.0 */
/* Lima driver: what is different with vz, macOS's VMs, against a scripted limactl on any system. Nothing here was
 * recorded on a Mac: answers and events are derived from the source of Lima 2.2.0 (pkg/driver/vz, pkg/limayaml,
 * pkg/hostagent), where that file is named. */
#include "lima_fixture.h"
#include "lima_look.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static int
setup_vz(void **state) {
  int rc = setup(state);
  snprintf(lima.vm_type, sizeof lima.vm_type, "vz");
  snprintf(lima.version, sizeof lima.version, "2.2.0");
  snprintf(spec.image.disk_format, sizeof spec.image.disk_format, "raw");
  spec.accel = AL_ACCEL_HVF;
  program("qemu-img", "echo qemu-img must not be needed >&2; exit 1");
  return rc;
}

/* ---- build: EnsureDisk (driverutil/disk.go) takes a `disk` that is there as it is, getGenericMachineIdentifier
 * (vz/vm_darwin.go) fills an empty vz-identifier, linuxBootLoader there reads kernel, kernel.cmdline and initrd ---- */

static void
test_vz_build_makes_a_raw_disk(void **state) {
  (void) state;
  build();
  static const char *const want[][2] = {{"kernel", "the kernel"}, {"initrd", "the initrd"}, {"lima-version", "v2.2.0"},
    {"kernel.cmdline", "root=/dev/vda quiet"}, {"vz-identifier", ""}};
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
    char *text = slurp(in("h/lima/" NAME "/%s", want[i][0]));
    assert_string_equal(text, want[i][1]);
    al_free(text);
  }
  struct stat st;
  assert_int_equal(stat(in("h/lima/" NAME "/%s", "disk"), &st), 0);
  assert_int_equal(st.st_size, 20ll << 30);
  assert_true(st.st_blocks < 64); /* the rest of it is a hole */
  AL_AUTO_FD int fd = open(in("h/lima/" NAME "/%s", "disk"), O_RDONLY);
  char begin[9] = "";
  assert_int_equal(read(fd, begin, 8), 8);
  assert_string_equal(begin, "the disk");
  char *yaml = slurp(in("h/lima/" NAME "/%s", "lima.yaml"));
  assert_non_null(strstr(yaml, "\nvmType: \"vz\"\n"));
  assert_non_null(strstr(yaml, "vmOpts:\n  vz:\n    rosetta: {enabled: false, binfmt: false}\n    diskImageFormat: \"raw\"\n"));
  assert_non_null(strstr(yaml, "overVsock: false"));
  assert_null(strstr(yaml, "qemu"));
  assert_null(strstr(yaml, "legacyBIOS"));
  al_free(yaml);
  destroyed();
}

/* ---- effective configuration: fillConfig (vz/vz_driver_darwin.go) sets mountType, ssh.overVsock and vmOpts.vz, and
 * the record has the fields of limatype.Instance ---- */

static char *
derived_answer(void) {
  return al_asprintf(
    "{\"name\":\"%s\",\"hostname\":\"lima-%s\",\"status\":\"Stopped\",\"dir\":\"%s\",\"vmType\":\"vz\",\"arch\":\"%s\",\"cpus\":3,\"memory\":1610612736,"
    "\"disk\":21474836480,\"sshConfigFile\":\"%s/ssh.config\",\"config\":{\"minimumLimaVersion\":\"2.2.0\",\"vmType\":\"vz\",\"vmOpts\":{\"vz\":{\"rosetta\":{\"enabled\":false,"
    "\"binfmt\":false},\"diskImageFormat\":\"raw\"}},\"os\":\"Linux\",\"arch\":\"%s\",\"images\":[{\"location\":\"%s\",\"arch\":\"%s\",\"kernel\":{\"location\":\"%s\",\"arch\":\"%s\","
    "\"cmdline\":\"root=/dev/vda quiet\"},\"initrd\":{\"location\":\"%s\",\"arch\":\"%s\"}}],\"cpus\":3,\"memory\":\"1536MiB\",\"disk\":\"20GiB\",\"mountType\":\"virtiofs\","
    "\"mountInotify\":false,\"ssh\":{\"localPort\":0,\"loadDotSSHPubKeys\":false,\"forwardAgent\":false,\"forwardX11\":false,\"forwardX11Trusted\":false,\"overVsock\":false},"
    "\"firmware\":{\"legacyBIOS\":false},\"audio\":{\"device\":\"\",\"interface\":\"\"},\"video\":{\"display\":\"none\",\"vnc\":{}},\"provision\":[{\"mode\":\"data\",\"script\":\"\","
    "\"content\":\"%s\",\"overwrite\":true,\"owner\":\"root:root\",\"path\":\"/run/agent-lane/proof\",\"permissions\":\"600\"}],\"upgradePackages\":false,"
    "\"containerd\":{\"system\":false,\"user\":false},\"guestInstallPrefix\":\"/usr/local\",\"hostResolver\":{\"enabled\":false,\"ipv6\":false},\"propagateProxyEnv\":false,"
    "\"caCerts\":{\"removeDefaults\":false},\"rosetta\":{},\"plain\":true,\"timezone\":\"\",\"nestedVirtualization\":false,\"user\":{\"name\":\"lane\",\"comment\":\"\","
    "\"home\":\"/home/lane\",\"shell\":\"/bin/bash\",\"uid\":1000,\"passwordlessSudo\":true},\"tpm\":false},\"sshAddress\":\"127.0.0.1\",\"protected\":false,"
    "\"limaVersion\":\"v2.2.0\"}",
    NAME, NAME, spec.dir, lima.arch, spec.dir, lima.arch, spec.image.disk, lima.arch, spec.image.kernel, lima.arch,
    spec.image.initrd, lima.arch, spec.proof);
}

static void
test_vz_configuration_is_compared(void **state) {
  (void) state;
  static const struct {
    const char *from, *to, *named;
  } cases[] = {
    {"\"tpm\":false", "\"tpm\":false", NULL},
    {"\"rosetta\":{\"enabled\":false", "\"rosetta\":{\"enabled\":true", "`vmOpts.vz.rosetta.enabled`"},
    {"\"diskImageFormat\":\"raw\"", "\"diskImageFormat\":\"asif\"", "`vmOpts.vz.diskImageFormat`"},
    {"\"diskImageFormat\":\"raw\"", "\"diskImageFormat\":\"raw\",\"sharing\":true", "`vmOpts.vz.sharing`"},
    {"\"rosetta\":{}", "\"rosetta\":{\"enabled\":true}", "`rosetta`"},
    {"\"overVsock\":false", "\"overVsock\":true", "`ssh.overVsock`"},
    {"\"tpm\":false", "\"networks\":[{\"vzNAT\":true}]", "`networks`"},
    {"\"tpm\":false", "\"mounts\":[{\"location\":\"/Users\"}]", "`mounts`"},
    {"\"nestedVirtualization\":false", "\"nestedVirtualization\":true", "`nestedVirtualization`"},
    {"\"vmType\":\"vz\",\"arch\"", "\"vmType\":\"qemu\",\"arch\"", "`(instance).vmType`"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    AL_AUTO_FREE char *answer = derived_answer();
    char *at = strstr(answer, cases[i].from);
    assert_non_null(at);
    AL_AUTO_FREE char *text =
      al_asprintf("%.*s%s%s", (int) (at - answer), answer, cases[i].to, at + strlen(cases[i].from));
    al_val_t *v = NULL;
    al_err_t err = {0};
    if (al_json_parse(text, strlen(text), &v, NULL)) fail_msg("not JSON: %s", text);
    int rc = al__lima_compare(&lima, &spec, v, &err);
    al_val_free(v);
    if (!cases[i].named && rc) fail_msg("%s", err.msg);
    if (cases[i].named && (rc != AL_ECONFIG_REFUSED || !strstr(err.msg, cases[i].named)))
      fail_msg("%s: %d “%s”", cases[i].to, rc, err.msg);
  }
}

/* ---- boot: startVM (vz/vm_darwin.go) has gvisor-tap-vsock in the host agent's own process, so that is who listens on
 * the ssh port; vz.pid holds the host agent's pid. The port is told before anybody listens there ---- */

#define AGENT(how) \
  "fake_start() { rm -f $TMPDIR/port; PATH=$PATH:/usr/local/bin setsid python3 \"$(cat $TMPDIR/here)/test/fixtures/fake-qemu.py\" " \
  "$TMPDIR/port SSH-2.0-OpenSSH 0 " how " </dev/null >/dev/null 2>&1 &\n until [ -s $TMPDIR/port ]; do sleep 0.02; done; " \
  "cp $LIMA_HOME/$1/ha.pid $LIMA_HOME/$1/vz.pid; event $1 \"{\\\"sshLocalPort\\\":$(cat $TMPDIR/port)}\"; sleep 60; }\n"

typedef struct booted_s {
  answer_t a;
  bool closed;
} booted_t;

static void
on_booted(al_boot_t *b, void *data, int status, const al_err_t *err, uint16_t port) {
  (void) b, (void) port;
  on_answer(&((booted_t *) data)->a, status, err);
}

static void
on_closed(void *data) {
  ((booted_t *) data)->closed = true;
}

static void
boot(const char *how, int code, const char *text) {
  booted_t got = {.closed = false};
  al_boot_t *b;
  script(how);
  build();
  assert_int_equal(al_lima_boot(&lima, &spec, 15000, on_booted, &got, &b), 0);
  al_test_until(&loop, &got.a.done, 20000);
  assert_answer(&got.a, code, text);
  al_lima_boot_close(b, on_closed, &got);
  al_test_until(&loop, &got.closed, 5000);
}

static void
test_vz_boot_port_is_the_host_agents(void **state) {
  char here[1024];
  (void) state;
  assert_non_null(getcwd(here, sizeof here));
  al_test_write(home.run, "here", here);
  boot(AGENT("--pidfile $LIMA_HOME/$1/ha.pid hostagent"), 0, NULL);
  assert_int_equal(al_lima_vm_runs(&home, NAME), 1);
  destroyed(); /* vz.pid names the host agent, and is no stale one */
  assert_int_equal(lane_processes(), 0);
}

static void
test_vz_boot_port_of_another_is_refused(void **state) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t n = sizeof at;
  char how[200];
  (void) state;
  AL_AUTO_FD int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(s >= 0 && bind(s, (struct sockaddr *) &at, sizeof at) == 0 && listen(s, 8) == 0 &&
    getsockname(s, (struct sockaddr *) &at, &n) == 0);
  snprintf(how, sizeof how, "fake_start() { event $1 '{\"sshLocalPort\":%u}'; sleep 60; }\n", ntohs(at.sin_port));
  boot(how, AL_EPEER_UNPROVEN, "not by the lane's host agent");
  destroyed();
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup_vz, teardown)

int
main(void) {
  const struct CMUnitTest tests[] = {
    T(test_vz_build_makes_a_raw_disk),
    T(test_vz_configuration_is_compared),
    T(test_vz_boot_port_is_the_host_agents),
    T(test_vz_boot_port_of_another_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
