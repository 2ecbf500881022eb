/* SPDX-License-Identifier: Apache-2.0 */
/* A small image directory for tests: a qcow2 header with a hole behind it, three small files, and a manifest. */
#ifndef AL_IMAGE_MAKE_H
#define AL_IMAGE_MAKE_H

#include "al_test.h"
#include "image_int.h"

#define DISK_SIZE (3u << 20)
#define IMAGE_SIZE (DISK_SIZE + 6 + 6 + 2) /* of all files */
#define SOME_SHA256 "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

typedef struct parts_s {
  const char *from, *to; /* one replacement in the manifest's text */
} parts_t;

AL_TEST_FN void
hash_file(const char *path, char hex[65]) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_true(fd >= 0);
  assert_int_equal(al__image_hash(fd, -1, hex, NULL, NULL), 0);
  close(fd);
}

/* A qcow2 header of version 3 and a body with a long hole; `tweak` < 104 is a header byte that becomes 4. */
AL_TEST_FN void
make_disk(const char *path, int tweak) {
  static uint8_t disk[DISK_SIZE];
  memset(disk, 0, sizeof disk);
  memcpy(disk, "QFI\xfb\0\0\0\3", 8);
  disk[24 + 3] = 1; /* 1 << 32 bytes of virtual size, big-endian in 24..32 */
  disk[103] = 104;
  if (tweak >= 0) disk[tweak] = 4;
  memset(disk + DISK_SIZE - 5000, 0xaa, 4999);
  FILE *f = fopen(path, "we");
  assert_int_equal(fwrite(disk, 1, sizeof disk, f), sizeof disk);
  assert_int_equal(fclose(f), 0);
}

/* Writes the manifest of the directory `dir`, with one replacement. */
AL_TEST_FN void
make_manifest(const char *dir, const parts_t *change) {
  char disk[65], kernel[65], initrd[65], sbom[65], path[4200], text[8192], *at;
  snprintf(path, sizeof path, "%s/disk.qcow2", dir), hash_file(path, disk);
  snprintf(path, sizeof path, "%s/vmlinuz", dir), hash_file(path, kernel);
  snprintf(path, sizeof path, "%s/initrd.img", dir), hash_file(path, initrd);
  snprintf(path, sizeof path, "%s/sbom.spdx.json", dir), hash_file(path, sbom);
  snprintf(text, sizeof text,
    "{\"format\":\"agent-lane-image/1\",\"name\":\"base\",\"flavour\":\"base\",\"version\":\"1.0\",\"arch\":\"x86_64\","
    "\"created\":\"2026-01-02T03:04:05Z\",\"recipe_sha256\":\"" SOME_SHA256 "\",\"virtual_size\":4294967296,"
    "\"files\":[{\"name\":\"disk.qcow2\",\"size\":%u,\"sha256\":\"%s\",\"role\":\"disk\"},{\"name\":\"vmlinuz\",\"size\":6,\"sha256\":\"%s\",\"role\":\"kernel\"},"
    "{\"name\":\"initrd.img\",\"size\":6,\"sha256\":\"%s\",\"role\":\"initrd\"},"
    "{\"name\":\"sbom.spdx.json\",\"size\":2,\"sha256\":\"%s\",\"role\":\"sbom\"}],"
    "\"inputs\":[{\"kind\":\"deb\",\"name\":\"bash\",\"version\":\"5.2-1\",\"digest\":\"sha256:" SOME_SHA256 "\"}],"
    "\"boot\":{\"qemu\":{\"kernel\":\"vmlinuz\",\"initrd\":\"initrd.img\",\"cmdline\":\"console=ttyS0 quiet\",\"disk_format\":\"qcow2\"},"
    "\"vz\":{\"kernel\":\"vmlinuz\",\"initrd\":\"initrd.img\",\"cmdline\":\"console=hvc0\",\"disk_format\":\"raw\"}},"
    "\"probe_marker\":\"agent-lane-probe-ok\",\"users\":{\"login\":\"lane\",\"agent\":\"agent\"},\"features\":[\"shell-transport\"]}",
    DISK_SIZE, disk, kernel, initrd, sbom);
  if (change) {
    char tail[8192];
    at = strstr(text, change->from);
    if (!at) fail_msg("the manifest has no %s", change->from);
    snprintf(tail, sizeof tail, "%s", at + strlen(change->from));
    snprintf(at, sizeof text - (size_t) (at - text), "%s%s", change->to, tail);
  }
  al_test_write(dir, "manifest.json", text);
}

AL_TEST_FN void
make_image(const char *dir, const parts_t *change) {
  char path[4200];
  mkdir(dir, 0755);
  snprintf(path, sizeof path, "%s/disk.qcow2", dir);
  make_disk(path, -1);
  al_test_write(dir, "vmlinuz", "kernel");
  al_test_write(dir, "initrd.img", "initrd");
  al_test_write(dir, "sbom.spdx.json", "{}");
  make_manifest(dir, change);
}

#endif
