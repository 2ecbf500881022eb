/* SPDX-License-Identifier: Apache-2.0 */
/* Renders a lane's lima.yaml and the QEMU command words: the secure plain template, every string quoted and escaped. */
#include "lima_int.h"

#include "utf8.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* One sequence of valid UTF-8; moves *p past it. */
static uint32_t
decode(const uint8_t **p) {
  uint32_t c = *(*p)++;
  int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
  if (more) c &= 0x3fu >> more;
  while (more-- > 0) c = c << 6 | (*(*p)++ & 0x3f);
  return c;
}

/* A YAML double-quoted scalar. Everything but printable ASCII is escaped, so that no YAML reader can see a line
 * break, a control character or a byte-order mark. Invalid UTF-8 cannot be written: *rc becomes -EILSEQ. Errors
 * stick in *rc. */
void
al__lima_yaml_quote(al_buf_t *out, const char *s, int *rc) {
  size_t n = strlen(s);
  if (*rc == 0 && !al_utf8_valid((const uint8_t *) s, n)) *rc = -EILSEQ;
  if (*rc == 0) *rc = al_buf_append(out, "\"", 1);
  for (const uint8_t *p = (const uint8_t *) s; *rc == 0 && *p;) {
    uint32_t c = decode(&p);
    if (c == '"' || c == '\\') *rc = al_buf_printf(out, "\\%c", (int) c);
    else if (c >= 0x20 && c < 0x7f) *rc = al_buf_printf(out, "%c", (int) c);
    else if (c <= 0xffff) *rc = al_buf_printf(out, "\\u%04" PRIX32, c);
    else *rc = al_buf_printf(out, "\\U%08" PRIX32, c);
  }
  if (*rc == 0) *rc = al_buf_append(out, "\"", 1);
}

static void
text(al_buf_t *out, const char *key, const char *value, int *rc) {
  if (*rc == 0) *rc = al_buf_printf(out, "%s: ", key);
  al__lima_yaml_quote(out, value, rc);
  if (*rc == 0) *rc = al_buf_append(out, "\n", 1);
}

static void
literal(al_buf_t *out, const char *lines, int *rc) {
  if (*rc == 0) *rc = al_buf_append(out, lines, strlen(lines));
}

static void
image(al_buf_t *out, const al_image_t *im, int *rc) {
  text(out, "images:\n- location", im->disk, rc);
  text(out, "  arch", im->arch, rc);
  literal(out, "  kernel:\n", rc);
  text(out, "    location", im->kernel, rc);
  text(out, "    arch", im->arch, rc);
  text(out, "    cmdline", im->cmdline, rc);
  literal(out, "  initrd:\n", rc);
  text(out, "    location", im->initrd, rc);
  text(out, "    arch", im->arch, rc);
}

static void
sizes(al_buf_t *out, const al_lane_spec_t *spec, int *rc) {
  if (*rc == 0)
    *rc = al_buf_printf(out, "cpus: %d\nmemory: \"%" PRId64 "MiB\"\ndisk: \"%" PRId64 "GiB\"\n", spec->cpus,
      spec->memory_mib, spec->disk_gib);
}

static void
user(al_buf_t *out, const char *login, int *rc) {
  char home[64];
  snprintf(home, sizeof home, "/home/%s", login);
  literal(out, "user:\n", rc);
  text(out, "  name", login, rc);
  literal(out, "  uid: 1000\n", rc);
  text(out, "  home", home, rc);
  literal(out, "  comment: \"\"\n  shell: \"/bin/bash\"\n  passwordlessSudo: true\n", rc);
}

static void
driver(al_buf_t *out, const al_lima_t *l, const al_lane_spec_t *spec, int *rc) {
  if (strcmp(l->vm_type, "vz") == 0) {
    literal(out, "vmOpts:\n  vz:\n    rosetta: {enabled: false, binfmt: false}\n    diskImageFormat: \"raw\"\n", rc);
    return;
  }
  /* Firmware is never run: the kernel is loaded directly. Legacy BIOS spares looking for UEFI images; QEMU knows it on
   * x86 only. */
  if (strcmp(l->arch, "x86_64") == 0) literal(out, "firmware: {legacyBIOS: true}\n", rc);
  if (spec->accel == AL_ACCEL_TCG && *rc == 0)
    *rc = al_buf_printf(out, "vmOpts:\n  qemu:\n    cpuType: {%s: \"max\"}\n", l->arch);
}

/* What a template language of Lima's or QEMU's option syntax would read as more than text. */
static int
plain_text(const char *what, const char *s, al_err_t *err) {
  if (strstr(s, "{{") || strchr(s, ',') || strchr(s, '\n')) {
    return al_err_set(
      err, AL_EIMAGE_INVALID, "the image's %s contains a comma, a line break or “{{”: “%.200s”", what, s);
  }
  return 0;
}

int
al__lima_yaml(const al_lima_t *l, const al_lane_spec_t *spec, al_buf_t *out, al_err_t *err) {
  const al_image_t *im = &spec->image;
  int rc = plain_text("disk path", im->disk, err);
  if (rc == 0) rc = plain_text("kernel path", im->kernel, err);
  if (rc == 0) rc = plain_text("initrd path", im->initrd, err);
  if (rc) return rc;
  if (strstr(im->cmdline, "{{") || strchr(im->cmdline, '\n')) {
    return al_err_set(err, AL_EIMAGE_INVALID, "the image's kernel command line contains a line break or “{{”");
  }
  literal(out,
    "# Written by Agent Lane for one lane; read back and compared before the start.\nminimumLimaVersion: \"2.2.0\"\n",
    &rc);
  text(out, "vmType", l->vm_type, &rc);
  literal(out, "os: \"Linux\"\n", &rc);
  text(out, "arch", l->arch, &rc);
  image(out, im, &rc);
  sizes(out, spec, &rc);
  literal(out,
    "plain: true\nmounts: []\ncontainerd: {system: false, user: false}\n"
    "portForwards:\n- {guestIP: \"0.0.0.0\", guestIPMustBeZero: false, guestPortRange: [1, 65535], proto: \"any\", ignore: true}\n"
    "ssh: {localPort: 0, loadDotSSHPubKeys: false, forwardAgent: false, forwardX11: false, forwardX11Trusted: false, overVsock: false}\n"
    "hostResolver: {enabled: false, ipv6: false}\npropagateProxyEnv: false\nupgradePackages: false\ntimezone: \"\"\n"
    "video: {display: \"none\"}\nnestedVirtualization: false\n",
    &rc);
  user(out, im->login_user, &rc);
  driver(out, l, spec, &rc);
  literal(out,
    "provision:\n- mode: \"data\"\n  path: \"/run/agent-lane/proof\"\n  owner: \"root:root\"\n  permissions: \"600\"\n  overwrite: true\n",
    &rc);
  text(out, "  content", spec->proof, &rc);
  if (rc == -EILSEQ) return al_err_set(err, AL_EIMAGE_INVALID, "a path or name of the image is not valid UTF-8");
  if (rc) return al_err_set(err, rc, "lima.yaml could not be rendered");
  return 0;
}

/* One word for a shell-like splitter: single quotes, a quote itself as '\''. */
static void
word(al_buf_t *out, const char *s, int *rc) {
  if (*rc == 0) *rc = al_buf_append(out, out->len ? " '" : "'", out->len ? 2 : 1);
  for (; *rc == 0 && *s; s++) *rc = *s == '\'' ? al_buf_append(out, "'\\''", 4) : al_buf_append(out, s, 1);
  if (*rc == 0) *rc = al_buf_append(out, "'", 1);
}

int
al__lima_qemu_words(const al_lima_t *l, const al_lane_spec_t *spec, al_buf_t *out) {
  static const char *const accels[] = {"tcg", "kvm", "hvf"};
  char owner[64], keeper[64], log[sizeof spec->dir + 16];
  snprintf(owner, sizeof owner, "%ld:%" PRIu64, (long) spec->owner.pid, spec->owner.start);
  snprintf(keeper, sizeof keeper, "%ld:%" PRIu64, (long) spec->keeper.pid, spec->keeper.start);
  snprintf(log, sizeof log, "%s/warden.log", spec->dir);
  const char *const words[] = {l->warden, "--agent-lane-policy", "1", "--qemu", l->qemu, "--network",
    spec->network == AL_NETWORK_NONE ? "none" : "open", "--accel", accels[spec->accel], "--channel",
    spec->port ? "port" : "shell", "--owner", owner, "--keeper", keeper, "--log", log, "--"};
  int rc = 0;
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) word(out, words[i], &rc);
  return rc;
}
