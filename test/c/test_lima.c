/* SPDX-License-Identifier: Apache-2.0 */
/* Lima driver: version, rendering, build, the effective configuration. */
#include "db.h"
#include "lima_fixture.h"

/* ---- open and version ---- */

static void
test_open_root_is_refused(void **state) {
  (void) state;
  al_lima_t l;
  al_err_t err = {0};
  al_lima_opts_t opts = {.limactl = in("bin/%s", "limactl"), .warden = in("bin/%s", "warden")};
  int rc = al_lima_open(&l, &loop, io, &home, &opts, &err);
  assert_int_equal(rc, geteuid() == 0 ? AL_ELIMA_ROOT : 0);
}

static void
test_open_missing_programs_are_named(void **state) {
  (void) state;
  al_lima_t l;
  al_err_t err = {0};
  al_lima_opts_t opts = {
    .limactl = in("%s", "nowhere/limactl"), .allow_root_for_tests = true, .warden = in("bin/%s", "warden")};
  assert_int_equal(al_lima_open(&l, &loop, io, &home, &opts, &err), AL_ELIMA_MISSING);
  opts.limactl = in("bin/%s", "limactl");
  opts.warden = NULL;
  assert_int_equal(al_lima_open(&l, &loop, io, &home, &opts, &err), AL_EINTERNAL);
  opts.warden = in("bin/%s", "warden");
  unlink(in("bin/%s", "qemu-img"));
  setenv("PATH", in("bin%s", ""), 1);
  assert_int_equal(al_lima_open(&l, &loop, io, &home, &opts, &err), AL_ELIMA_FAILED); /* no ssh there */
  program("ssh", ":"), program("ssh-keygen", ":");
  assert_int_equal(al_lima_open(&l, &loop, io, &home, &opts, &err), AL_EQEMU_MISSING);
  assert_non_null(strstr(err.msg, "qemu-img"));
}

static void
ask_version(const char *says, bool allow, int code, const char *version) {
  answer_t a = {0};
  al_test_write(home.run, "fake.version", says);
  lima.version[0] = 0;
  al_lima_check_version(&lima, allow, on_answer, &a);
  assert_false(a.done);
  al_test_until(&loop, &a.done, 20000);
  assert_answer(&a, code, NULL);
  if (code == 0) assert_string_equal(lima.version, version);
  else assert_string_equal(lima.version, "");
}

static void
test_version_is_judged(void **state) {
  (void) state;
  ask_version("limactl version 2.2.0\n", false, 0, "2.2.0");
  ask_version("limactl version 2.2.1\n", false, 0, "2.2.1");
  ask_version("limactl version 10.0.0\n", false, 0, "10.0.0");
  ask_version("limactl version 2.3.0-beta.1\n", false, 0, "2.3.0-beta.1");
  ask_version("limactl version 2.2.0-16-gf3dc6ed.m\n", false, 0, "2.2.0-16-gf3dc6ed.m");
  ask_version("limactl version 2.2.0-rc.1\n", false, AL_ELIMA_TOO_OLD, NULL);
  ask_version("limactl version 2.1.4\n", false, AL_ELIMA_TOO_OLD, NULL);
  ask_version("limactl version 1.99.9\n", true, AL_ELIMA_TOO_OLD, NULL);
  ask_version("limactl version <unknown>\n", false, AL_ELIMA_UNKNOWN_VERSION, NULL);
  ask_version("limactl version <unknown>\n", true, 0, "<unknown>");
  ask_version("limactl version 2.2\n", false, AL_ELIMA_UNKNOWN_VERSION, NULL);
  ask_version("limactl version 2.2.0x\n", false, AL_ELIMA_UNKNOWN_VERSION, NULL);
  ask_version("limactl version 99999999999999999999.0.0\n", false, AL_ELIMA_UNKNOWN_VERSION, NULL);
  ask_version("something else 2.2.0\n", true, AL_ELIMA_UNKNOWN_VERSION, NULL);
  ask_version("", true, AL_ELIMA_UNKNOWN_VERSION, NULL);
}

static void
test_version_is_asked_once_per_file(void **state) {
  (void) state;
  answer_t a = {0}, b = {0}, c = {0};
  al_lima_check_version(&lima, false, on_answer, &a);
  al_test_until(&loop, &a.done, 20000);
  al_lima_check_version(&lima, false, on_answer, &b);
  assert_false(b.done);
  al_test_until(&loop, &b.done, 20000);
  char *calls = slurp(in("h/run/%s", "fake.calls"));
  assert_string_equal(calls, "--tty=false --version\n");
  al_free(calls);
  program("limactl", "echo limactl version 2.0.0");
  al_lima_check_version(&lima, false, on_answer, &c);
  al_test_until(&loop, &c.done, 20000);
  assert_answer(&c, AL_ELIMA_TOO_OLD, "2.0.0");
}

static void
test_version_hanging_limactl_is_killed(void **state) {
  (void) state;
  answer_t a = {0};
  script("fake_version() { exec sleep 60; }\n");
  uint64_t began = al_plat_mono_ms();
  al_lima_check_version(&lima, false, on_answer, &a);
  al_test_until(&loop, &a.done, 20000);
  assert_answer(&a, AL_ELIMA_FAILED, "did not end in time");
  assert_true(al_plat_mono_ms() - began < 12000);
}

static void
test_last_message_is_the_last_error(void **state) {
  (void) state;
  char out[64];
  const char *log =
    "{\"level\":\"info\",\"msg\":\"one\"}\n{\"level\":\"error\",\"msg\":\"bad\",\"error\":\"why\"}\n{\"level\":\"debug\",\"msg\":\"noise\"}\n";
  al__lima_last_message(log, strlen(log), out, sizeof out);
  assert_string_equal(out, "bad: why");
  log = "{\"level\":\"info\",\"msg\":\"one\"}\n{\"level\":\"debug\",\"msg\":\"noise\"}\n\n";
  al__lima_last_message(log, strlen(log), out, sizeof out);
  assert_string_equal(out, "one");
  log = "limactl: must not run\x1b[31m as the root user\n";
  al__lima_last_message(log, strlen(log), out, sizeof out);
  assert_string_equal(out, "limactl: must not run?[31m as the root user");
  al__lima_last_message("", 0, out, sizeof out);
  assert_string_equal(out, "");
}

/* ---- rendering ---- */

static void
assert_quoted(const char *from, const char *want) {
  al_buf_t b;
  int rc = 0;
  al_buf_init(&b, 0);
  al__lima_yaml_quote(&b, from, &rc);
  assert_int_equal(rc, 0);
  assert_string_equal((char *) b.data, want);
  al_buf_deinit(&b);
}

static void
test_yaml_quote_escapes(void **state) {
  (void) state;
  assert_quoted("", "\"\"");
  assert_quoted("a b: #{}[]'", "\"a b: #{}[]'\"");
  assert_quoted("\"\\", "\"\\\"\\\\\"");
  assert_quoted("x\ny\t\x7f", "\"x\\u000Ay\\u0009\\u007F\"");
  assert_quoted("\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80", "\"\\u00E9\\u2028\\U0001F600\"");
  al_buf_t b;
  int rc = 0;
  al_buf_init(&b, 0);
  al__lima_yaml_quote(&b, "a\xff", &rc);
  assert_int_equal(rc, -EILSEQ);
  al_buf_deinit(&b);
}

static void
test_yaml_is_the_secure_template(void **state) {
  (void) state;
  al_buf_t b;
  al_err_t err = {0};
  al_buf_init(&b, 0);
  snprintf(spec.image.cmdline, sizeof spec.image.cmdline, "a=\"b\"");
  assert_int_equal(al__lima_yaml(&lima, &spec, &b, &err), 0);
  const char *const lines[] = {"\nplain: true\n", "\nmounts: []\n", "\n    cmdline: \"a=\\\"b\\\"\"\n",
    "\ncpus: 3\nmemory: \"1536MiB\"\ndisk: \"20GiB\"\n", "forwardAgent: false", "\npropagateProxyEnv: false\n",
    "hostResolver: {enabled: false", "  permissions: \"600\"\n", "\nvmType: \"qemu\"\n"};
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
    if (!strstr((char *) b.data, lines[i])) fail_msg("no “%s” in\n%s", lines[i], (char *) b.data);
  }
  const char *const bad[] = {"/a/{{.Name}}", "/a,readonly=off", "/a\nb", "/a\xff"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    al_buf_deinit(&b);
    snprintf(spec.image.disk, sizeof spec.image.disk, "%s", bad[i]);
    assert_int_equal(al__lima_yaml(&lima, &spec, &b, &err), AL_EIMAGE_INVALID);
  }
  al_buf_deinit(&b);
}

static void
test_qemu_words_are_quoted(void **state) {
  (void) state;
  al_buf_t b;
  char want[512];
  al_buf_init(&b, 0);
  snprintf(lima.warden, sizeof lima.warden, "/a b/it's");
  snprintf(lima.qemu, sizeof lima.qemu, "/q");
  spec.network = AL_NETWORK_NONE;
  assert_int_equal(al__lima_qemu_words(&lima, &spec, &b), 0);
  snprintf(want, sizeof want,
    "'/a b/it'\\''s' '--agent-lane-policy' '1' '--qemu' '/q' '--network' 'none' '--accel' 'tcg' '--channel' 'shell' '--owner' '%ld:%llu' '--keeper' '77:99' '--log' '%s/warden.log' '--'",
    (long) getpid(), (unsigned long long) spec.owner.start, spec.dir);
  assert_string_equal((char *) b.data, want);
  al_buf_deinit(&b);
}

static void
test_env_is_built_from_nothing(void **state) {
  (void) state;
  setenv("AL_TEST_SECRET", "x", 1);
  char **with = al__lima_env(&lima, &spec), **without = al__lima_env(&lima, NULL);
  assert_non_null(with);
  int n = 0, m = 0;
  static const char *const names[] = {"PATH=", "HOME=", "LIMA_HOME=", "TMPDIR=", "LANG=C.UTF-8", "LIMA_TEMPLATES_PATH=",
    "QEMU_SYSTEM_"};
  for (; with[n]; n++) assert_int_equal(strncmp(with[n], names[n], strlen(names[n])), 0);
  for (; without[m]; m++) assert_string_equal(without[m], with[m]);
  assert_int_equal(n, 7);
  assert_int_equal(m, 6);
  al__lima_strv_free(with);
  al__lima_strv_free(without);
}

static void
test_prepare_makes_keys_once(void **state) {
  (void) state;
  answer_t a = {0}, b = {0}, c = {0};
  al_lima_prepare(&lima, on_answer, &a);
  al_lima_prepare(&lima, on_answer, &b); /* at the same time: one pair wins */
  assert_false(a.done || b.done);
  al_test_until(&loop, &a.done, 20000);
  al_test_until(&loop, &b.done, 20000);
  assert_answer(&a, 0, NULL);
  assert_answer(&b, 0, NULL);
  char *key = slurp(in("h/lima/_config/%s", "user.pub")), *yaml = slurp(in("h/lima/_config/%s", "networks.yaml"));
  assert_int_equal(strncmp(key, "ssh-ed25519 ", 12), 0);
  assert_string_equal(yaml, "networks: {}\n");
  unlink(in("h/run/%s", "fake.calls"));
  al_lima_prepare(&lima, on_answer, &c);
  al_test_until(&loop, &c.done, 20000);
  assert_answer(&c, 0, NULL);
  assert_false(exists(in("h/run/%s", "fake.calls")));
  al_free(yaml), yaml = slurp(in("h/lima/_config/%s", "user.pub"));
  assert_string_equal(yaml, key);
  al_free(key), al_free(yaml);
}

static void
refused_config(const char *text) {
  answer_t a = {0};
  al_lima_prepare(&lima, on_answer, &a);
  al_test_until(&loop, &a.done, 20000);
  assert_answer(&a, AL_ECONFIG_REFUSED, text);
}

static void
test_prepare_refuses_what_does_not_belong_there(void **state) {
  (void) state;
  (void) mkdir(in("h/lima/_config%s", ""), 0700);
  al_test_write(in("h/lima/_config%s", ""), "override.yaml", "mounts: []\n");
  refused_config("override.yaml");
  unlink(in("h/lima/_config/%s", "override.yaml"));
  assert_int_equal(symlink("/etc/passwd", in("h/lima/_config/%s", "networks.yaml")), 0);
  refused_config("networks.yaml");
  unlink(in("h/lima/_config/%s", "networks.yaml"));
  assert_int_equal(chmod(in("h/lima/_config%s", ""), 0777), 0);
  refused_config("only we can write");
}

/* ---- build ---- */

static void
test_build_makes_a_whole_directory(void **state) {
  (void) state;
  snprintf(lima.version, sizeof lima.version, "2.2.0");
  build();
  struct stat st;
  assert_int_equal(stat(spec.dir, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0700);
  static const char *const want[][2] = {{"kernel", "the kernel"}, {"initrd", "the initrd"}, {"disk", "overlay\n"},
    {"lima-version", "v2.2.0"}, {"kernel.cmdline", "root=/dev/vda quiet"}};
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
    char *text = slurp(in("h/lima/" NAME "/%s", want[i][0]));
    assert_string_equal(text, want[i][1]);
    al_free(text);
  }
  assert_int_equal(stat(in("h/lima/" NAME "/%s", "lima.yaml"), &st), 0);
  assert_int_equal(st.st_mode & 07777, 0600);
  char *record = slurp(in("h/lima/" NAME "/%s", "agent-lane.json")), want_record[200];
  assert_int_equal(stat(spec.dir, &st), 0);
  snprintf(want_record, sizeof want_record,
    "{\"name\":\"" NAME "\",\"row\":7,\"dev\":%ju,\"ino\":%ju,\"created\":", (uintmax_t) st.st_dev,
    (uintmax_t) st.st_ino);
  assert_int_equal(strncmp(record, want_record, strlen(want_record)), 0);
  al_free(record);
  assert_false(exists(in("h/lima/_tmp.%s", NAME)));
}

static void
build_fails(int code, const char *text) {
  answer_t a = {0};
  al_lima_build(&lima, &spec, on_answer, &a);
  assert_false(a.done);
  al_test_until(&loop, &a.done, 20000);
  assert_answer(&a, code, text);
  assert_false(exists(in("h/lima/_tmp.%s", NAME)));
}

static void
test_build_failure_leaves_nothing(void **state) {
  (void) state;
  assert_int_equal(mkdir(spec.dir, 0700), 0);
  build_fails(-EEXIST, "exists already");
  assert_int_equal(rmdir(spec.dir), 0);
  spec.disk_gib = 7;
  build_fails(AL_EBAD_OPTION, "smaller than the image");
  spec.disk_gib = 20;
  program("qemu-img", "echo no space left >&2; exit 3");
  build_fails(AL_ELIMA_FAILED, "no space left");
  unlink(spec.image.kernel);
  build_fails(-ENOENT, "kernel");
  assert_false(exists(spec.dir));
  snprintf(spec.name, sizeof spec.name, "..");
  build_fails(AL_EBAD_NAME, "..");
}

/* ---- effective configuration ---- */

/* What limactl 2.2.0 answers for a lane as we build it (keys and values copied from a real answer). */
static char *
real_answer(void) {
  const char *firmware = strcmp(lima.arch, "x86_64") == 0 ? "true" : "false";
  return al_asprintf(
    "{\"name\":\"%s\",\"hostname\":\"lima-%s\",\"status\":\"Stopped\",\"dir\":\"%s\",\"vmType\":\"qemu\",\"arch\":\"%s\",\"cpus\":3,\"memory\":1610612736,"
    "\"disk\":21474836480,\"sshConfigFile\":\"%s/ssh.config\",\"config\":{\"minimumLimaVersion\":\"2.2.0\",\"vmType\":\"qemu\",\"vmOpts\":{\"qemu\":{\"cpuType\":{\"%s\":\"max\"}}},"
    "\"os\":\"Linux\",\"arch\":\"%s\",\"images\":[{\"location\":\"%s\",\"arch\":\"%s\",\"kernel\":{\"location\":\"%s\",\"arch\":\"%s\",\"cmdline\":\"root=/dev/vda quiet\"},"
    "\"initrd\":{\"location\":\"%s\",\"arch\":\"%s\"}}],\"cpus\":3,\"memory\":\"1536MiB\",\"disk\":\"20GiB\",\"mountInotify\":false,\"ssh\":{\"localPort\":0,"
    "\"loadDotSSHPubKeys\":false,\"forwardAgent\":false,\"forwardX11\":false,\"forwardX11Trusted\":false,\"overVsock\":false},\"firmware\":{\"legacyBIOS\":%s},"
    "\"audio\":{\"device\":\"\",\"interface\":\"\"},\"video\":{\"display\":\"none\"},\"provision\":[{\"mode\":\"data\",\"script\":\"\",\"content\":\"%s\",\"overwrite\":true,"
    "\"owner\":\"root:root\",\"path\":\"/run/agent-lane/proof\",\"permissions\":\"600\"}],\"upgradePackages\":false,\"containerd\":{\"system\":false,\"user\":false,"
    "\"archives\":[{\"location\":\"x\",\"arch\":\"x86_64\"}]},\"guestInstallPrefix\":\"/usr/local\",\"hostResolver\":{\"enabled\":false,\"ipv6\":false},\"propagateProxyEnv\":false,"
    "\"caCerts\":{\"removeDefaults\":false},\"plain\":true,\"timezone\":\"\",\"nestedVirtualization\":false,\"user\":{\"name\":\"lane\",\"comment\":\"\",\"home\":\"/home/lane\","
    "\"shell\":\"/bin/bash\",\"uid\":1000,\"passwordlessSudo\":true},\"tpm\":false},\"sshAddress\":\"127.0.0.1\",\"protected\":false,\"limaVersion\":\"v2.2.0\"}",
    NAME, NAME, spec.dir, lima.arch, spec.dir, lima.arch, lima.arch, spec.image.disk, lima.arch, spec.image.kernel,
    lima.arch, spec.image.initrd, lima.arch, firmware, spec.proof);
}

/* The real answer with the first `from` replaced, compared. */
static int
compare_with(const char *from, const char *to, al_err_t *err) {
  char *real = real_answer(), *at = strstr(real, from);
  if (!at) fail_msg("no “%s” in the answer", from);
  char *text = al_asprintf("%.*s%s%s", (int) (at - real), real, to, at + strlen(from));
  al_val_t *v = NULL;
  if (al_json_parse(text, strlen(text), &v, NULL)) fail_msg("not JSON: %s", text);
  *err = (al_err_t) {0};
  int rc = al__lima_compare(&lima, &spec, v, err);
  al_val_free(v), al_free(text), al_free(real);
  return rc;
}

static void
test_compare_accepts_what_we_asked_for(void **state) {
  al_err_t err;
  (void) state;
  if (compare_with("\"tpm\":false", "\"tpm\":false", &err)) fail_msg("%s", err.msg);
  /* A key that says nothing passes, however deep. */
  if (compare_with("\"tpm\":false", "\"later\":{\"a\":[{\"b\":null,\"c\":0,\"d\":\"\"}],\"e\":{}}", &err))
    fail_msg("%s", err.msg);
}

/* The digest of the real answer with the first `from` replaced. */
static void
digest_with(const char *from, const char *to, char digest[AL_SHA256_HEX]) {
  char *real = real_answer(), *at = strstr(real, from);
  if (!at) fail_msg("no “%s” in the answer", from);
  char *text = al_asprintf("%.*s%s%s", (int) (at - real), real, to, at + strlen(from));
  al_val_t *v = NULL;
  if (al_json_parse(text, strlen(text), &v, NULL)) fail_msg("not JSON: %s", text);
  assert_int_equal(al__lima_config_digest(v, digest), 0);
  al_val_free(v), al_free(text), al_free(real);
}

/* It goes into the run manifest, which everybody may read: so the secret has no part in it, and all else has. */
static void
test_digest_is_of_all_but_the_secret(void **state) {
  char real[AL_SHA256_HEX], other[AL_SHA256_HEX];
  (void) state;
  digest_with("\"tpm\":false", "\"tpm\":false", real);
  digest_with(spec.proof, "another secret", other);
  assert_string_equal(real, other);
  digest_with("\"cpus\":3,\"memory\":\"1536MiB\"", "\"memory\":\"1536MiB\",\"cpus\":3", other);
  assert_string_equal(real, other); /* in any order */
  digest_with("/run/agent-lane/proof", "/run/agent-lane/other", other);
  assert_string_not_equal(real, other);
  digest_with("\"memory\":\"1536MiB\"", "\"memory\":\"1537MiB\"", other);
  assert_string_not_equal(real, other);
}

static void
test_compare_refuses_every_difference(void **state) {
  (void) state;
  static const struct {
    const char *from, *to, *named;
  } cases[] = {
    {"\"tpm\":false", "\"mounts\":[{\"location\":\"/home\"}]", "`mounts`"},
    {"\"tpm\":false", "\"portForwards\":[{\"guestPort\":80,\"hostPort\":80}]", "`portForwards`"},
    {"\"tpm\":false", "\"networks\":[{\"lima\":\"user-v2\"}]", "`networks`"},
    {"\"tpm\":false", "\"copyToHost\":[{\"guest\":\"/a\",\"host\":\"/b\"}]", "`copyToHost`"},
    {"\"tpm\":false", "\"additionalDisks\":[{\"name\":\"d\"}]", "`additionalDisks`"},
    {"\"tpm\":false", "\"env\":{\"TOKEN\":\"x\"}", "`env`"},
    {"\"tpm\":false", "\"probes\":[{\"script\":\"x\"}]", "`probes`"},
    {"\"tpm\":false", "\"dns\":[\"1.1.1.1\"]", "`dns`"},
    {"\"tpm\":false", "\"tpm\":true", "`tpm`"},
    {"\"tpm\":false", "\"later\":{\"a\":[{\"b\":1}]}", "`later`"},
    {"\"provision\":[", "\"provision\":[{\"mode\":\"system\",\"script\":\"curl\"},", "`provision`"},
    {"\"mode\":\"data\"", "\"mode\":\"system\"", "`provision[0].mode`"},
    {"\"script\":\"\"", "\"script\":\"curl\"", "`provision[0].script`"},
    {"/run/agent-lane/proof", "/etc/shadow", "`provision[0].path`"},
    {"\"permissions\":\"600\"", "\"permissions\":\"644\"", "`provision[0].permissions`"},
    {"\"plain\":true", "\"plain\":false", "`plain`"},
    {"\"plain\":true,", "", "`plain`"},
    {"\"forwardAgent\":false", "\"forwardAgent\":true", "`ssh.forwardAgent`"},
    {"\"forwardAgent\":false,", "", "`ssh.forwardAgent`"},
    {"\"loadDotSSHPubKeys\":false", "\"loadDotSSHPubKeys\":true", "`ssh.loadDotSSHPubKeys`"},
    {"\"localPort\":0", "\"localPort\":22", "`ssh.localPort`"},
    {"\"hostResolver\":{\"enabled\":false", "\"hostResolver\":{\"enabled\":true", "`hostResolver.enabled`"},
    {"\"ipv6\":false", "\"ipv6\":false,\"hosts\":{\"a\":\"b\"}", "`hostResolver.hosts`"},
    {"\"propagateProxyEnv\":false", "\"propagateProxyEnv\":true", "`propagateProxyEnv`"},
    {"\"containerd\":{\"system\":false", "\"containerd\":{\"system\":true", "`containerd.system`"},
    {"\"removeDefaults\":false", "\"removeDefaults\":false,\"files\":[\"/x\"]", "`caCerts.files`"},
    {"\"display\":\"none\"", "\"display\":\"vnc\"", "`video.display`"},
    {"\"cpus\":3,\"memory\":\"", "\"cpus\":4,\"memory\":\"", "`cpus`"},
    {"\"memory\":\"1536MiB\"", "\"memory\":\"1537MiB\"", "`memory`"},
    {"\"name\":\"lane\"", "\"name\":\"root\"", "`user.name`"},
    {"\"uid\":1000", "\"uid\":\"1000\"", "`user.uid`"},
    {"\"cmdline\":\"root=", "\"cmdline\":\"init=/bin/sh root=", "`images[0].kernel.cmdline`"},
    {"\"images\":[", "\"images\":[{},", "`images`"},
    {"\"cpuType\":{", "\"cpuType\":{\"other\":\"host\",", "`vmOpts.qemu.cpuType.other`"},
    {"\"status\":\"Stopped\"", "\"status\":\"Running\"", "`(instance).status`"},
    {"\"protected\":false", "\"protected\":true", "`(instance).protected`"},
    {"\"protected\":false", "\"errors\":[{\"x\":1}]", "`(instance).errors`"},
    {"\"name\":\"" NAME, "\"name\":\"other", "`(instance).name`"},
    {"\"config\":{", "\"config\":[],\"was\":{", "no effective configuration"},
  };
  snprintf(lima.version, sizeof lima.version, "2.2.0");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    al_err_t err;
    int rc = compare_with(cases[i].from, cases[i].to, &err);
    if (rc != AL_ECONFIG_REFUSED || !strstr(err.msg, cases[i].named))
      fail_msg("%s -> %s: %d “%s”", cases[i].from, cases[i].to, rc, err.msg);
    assert_null(strstr(err.msg, spec.proof));
  }
  al_err_t err;
  compare_with("\"plain\":true", "\"plain\":false", &err);
  assert_non_null(strstr(err.msg, "Lima 2.2.0"));
}

static void
verify(int code, const char *text) {
  answer_t a = {0};
  al_lima_verify(&lima, &spec, NULL, on_answer, &a);
  assert_false(a.done);
  al_test_until(&loop, &a.done, 20000);
  assert_answer(&a, code, text);
}

static void
test_verify_asks_lima(void **state) {
  (void) state;
  char *answer = real_answer();
  al_test_write(home.run, "fake.list", answer);
  verify(0, NULL);
  (void) mkdir(in("h/lima/_config%s", ""), 0700);
  al_test_write(in("h/lima/_config%s", ""), "default.yaml", "");
  verify(AL_ECONFIG_REFUSED, "default.yaml");
  unlink(in("h/lima/_config/%s", "default.yaml"));
  char *twice = al_asprintf("%s\n%s\n", answer, answer);
  al_test_write(home.run, "fake.list", twice);
  verify(AL_ECONFIG_REFUSED, "one record");
  al_test_write(home.run, "fake.list", "");
  verify(AL_ECONFIG_REFUSED, "one record");
  al_test_write(home.run, "fake.list", "{\"name\":");
  verify(AL_ECONFIG_REFUSED, "not JSON");
  script("fake_list() { fatal 'unmatched instances'; }\n");
  verify(AL_ELIMA_FAILED, "unmatched instances");
  script("fake_list() { head -c 2000000 /dev/zero; }\n");
  verify(AL_ELIMA_FAILED, "limactl list");
  al_free(answer), al_free(twice);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void) {
  const struct CMUnitTest tests[] = {
    T(test_open_root_is_refused),
    T(test_open_missing_programs_are_named),
    T(test_version_is_judged),
    T(test_version_is_asked_once_per_file),
    T(test_version_hanging_limactl_is_killed),
    T(test_last_message_is_the_last_error),
    T(test_yaml_quote_escapes),
    T(test_yaml_is_the_secure_template),
    T(test_qemu_words_are_quoted),
    T(test_env_is_built_from_nothing),
    T(test_prepare_makes_keys_once),
    T(test_prepare_refuses_what_does_not_belong_there),
    T(test_build_makes_a_whole_directory),
    T(test_build_failure_leaves_nothing),
    T(test_compare_accepts_what_we_asked_for), T(test_digest_is_of_all_but_the_secret),
    T(test_compare_refuses_every_difference),
    T(test_verify_asks_lima),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
