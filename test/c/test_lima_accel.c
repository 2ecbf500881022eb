/* SPDX-License-Identifier: Apache-2.0 */
/* Lima driver: KVM is taken only after the probe. */
#include "lima_fixture.h"

typedef struct accel_answer_s {
  bool done;
  al_accel_t accel;
  char notice[256];
} accel_answer_t;

static void
on_accel(void *data, al_accel_t accel, const char *notice) {
  accel_answer_t *a = data;
  a->done = true;
  a->accel = accel;
  snprintf(a->notice, sizeof a->notice, "%s", notice ? notice : "");
}

static accel_answer_t
choose(void) {
  accel_answer_t a = {.done = false};
  al_lima_choose_accel(&lima, &spec.image, on_accel, &a);
  assert_false(a.done);
  al_test_until(&loop, &a.done, 20000);
  return a;
}

static void
test_accel_kvm_only_after_the_probe(void **state) {
  (void) state;
  bool usable = access("/dev/kvm", R_OK | W_OK) == 0;
  char body[300];
  snprintf(body, sizeof body, "echo run >>%s; echo '[ 0.1] agentlane-probe-ok'; exec sleep 60", in("%s", "probes"));
  program(strcmp(lima.arch, "x86_64") == 0 ? "qemu-system-x86_64" : "qemu-system-aarch64", body);
  accel_answer_t a = choose(), b = choose();
  char *probes = slurp(in("%s", "probes"));
  assert_int_equal(a.accel, usable ? AL_ACCEL_KVM : AL_ACCEL_TCG);
  assert_int_equal(b.accel, a.accel);
  assert_int_equal(a.notice[0] == 0, usable);
  assert_string_equal(probes, usable ? "run\n" : ""); /* the second answer was kept */
  al_free(probes);
  snprintf(spec.image.kernel_sha256, sizeof spec.image.kernel_sha256, "other");
  program(
    strcmp(lima.arch, "x86_64") == 0 ? "qemu-system-x86_64" : "qemu-system-aarch64", "echo KVM internal error; exit 1");
  a = choose();
  assert_int_equal(a.accel, AL_ACCEL_TCG);
  assert_true(a.notice[0] != 0);
  snprintf(spec.image.arch, sizeof spec.image.arch, "riscv64");
  a = choose();
  assert_int_equal(a.accel, AL_ACCEL_TCG);
  assert_non_null(strstr(a.notice, "riscv64"));
  snprintf(lima.vm_type, sizeof lima.vm_type, "vz");
  assert_int_equal(choose().accel, AL_ACCEL_HVF);
}

int
main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_accel_kvm_only_after_the_probe, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
