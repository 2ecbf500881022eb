# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Kernel, initrd and disk out of ROOT, byte for byte the same each time. To be sourced by build.

# Prints the module files that $@ need, in the order to load them, without repetition.
module_order() {
  local module
  for module in "$@"; do in_root modprobe -S "$KVER" --show-depends "$module"; done |
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

# The volume's drivers come before the network's: its devices are looked for meanwhile.
make_modules() {
  local lib=$ROOT/usr/lib/agent-lane
  EARLY=$(module_order virtio_pci virtio_blk)
  CONSOLE=$(module_order virtio_pci virtio_console)
  module_order virtio_scsi sr_mod isofs virtio_net | grep -vxF "$EARLY" >"$lib/modules"
  module_order virtio_console | grep -vxF "$EARLY" >"$lib/modules.port"
  module_order virtio_rng | grep -vxF "$EARLY" >"$lib/modules.rng"
  grep -vxF "$(cat "$lib/modules")" "$lib/modules.port" >"$lib/modules.late" || true
}

# arm64's kernel is an Image, which QEMU and vz take as it is; x86's is unpacked for them.
make_kernel() {
  say "kernel $KVER and initrd"
  if [ "$ARCH" = x86_64 ]; then
    cp "$ROOT/boot/vmlinuz-$KVER" "$NEW/vmlinuz"
    "$HERE/bzimage-payload" "$NEW/vmlinuz" "$NEW/vmlinux"
  elif gzip -t "$ROOT/boot/vmlinuz-$KVER" 2>/dev/null; then gzip -dc "$ROOT/boot/vmlinuz-$KVER" >"$NEW/vmlinux"
  else cp "$ROOT/boot/vmlinuz-$KVER" "$NEW/vmlinux"; fi
}

make_initrd() {
  local dir=$WORK/initrd path
  mkdir -p "$dir"/{bin,dev,proc,sys,mod,new}
  cp "$ROOT/bin/busybox" "$dir/bin/"
  install -m 755 "$HERE/initrd-init" "$dir/init"
  for path in $EARLY $CONSOLE; do cp "$ROOT$path" "$dir/mod/"; done
  for path in $EARLY; do echo "${path##*/}"; done >"$dir/mod/list"
  for path in $CONSOLE; do echo "${path##*/}"; done >"$dir/mod/console"
  find "$dir" -exec touch -h -d "@$EPOCH" {} +
  (cd "$dir" && find . -print0 | LC_ALL=C sort -z | cpio --null -o -H newc --quiet --reproducible --owner=0:0) | zstd -q -19 >"$NEW/initrd.img"
}

# What a build leaves of its own moment: logs, caches, copies of before, random numbers.
clean_root() {
  rm -rf "${ROOT:?}"/{var/lib/apt/lists,var/cache/apt,boot,tmp,var/tmp,run}/* "$ROOT"/var/cache/ldconfig/* "$ROOT"/var/lib/initramfs-tools/*
  find "$ROOT/var/log" -type f -delete
  rm -f "$ROOT"/var/cache/debconf/*-old "$ROOT"/var/lib/dpkg/*-old "$ROOT"/etc/{passwd,group,shadow,gshadow,subuid,subgid}- \
    "$ROOT"/var/lib/systemd/random-seed "$ROOT"/etc/.pwd.lock "$ROOT"/var/lib/dpkg/lock* "$ROOT"/var/lib/apt/daily_lock "$ROOT"/var/lib/dpkg/triggers/Lock
  # Nothing is younger than the lock file's day, the time that every new file of the build gets.
  find "$ROOT" -newermt "@$EPOCH" -exec touch -h -d "@$EPOCH" {} +
}

# A UUID out of the recipe: the same inputs give the same file system.
recipe_uuid() { printf '%s %s' "$1" "$RECIPE" | sha256sum | sed -E 's/^(.{8})(.{4}).(.{3}).(.{3})(.{12}).*/\1-\2-4\3-8\4-\5/'; }

make_disk() {
  say "disk"
  truncate -s "$VIRTUAL_SIZE" "$WORK/disk.raw"
  # A lane's disk is never used a second time: no journal. The cheap group checksum lets the file system grow without
  # writing the new inode tables; the checksum of every block would only cost time in an emulated guest.
  E2FSPROGS_FAKE_TIME=$EPOCH mke2fs -q -t ext4 -L lane-root -m 0 -O ^has_journal,^metadata_csum,uninit_bg -U "$(recipe_uuid disk)" \
    -E "lazy_itable_init=1,nodiscard,root_owner=0:0,hash_seed=$(recipe_uuid seed)" -d "$ROOT" "$WORK/disk.raw"
  "$HERE/settle-times" "$WORK/disk.raw" "$EPOCH"
  # Holes wherever there are zeros, so that the conversion meets the same pieces whatever the host's file system.
  fallocate --dig-holes "$WORK/disk.raw" 2>/dev/null || true
  qemu-img convert -f raw -O qcow2 "$WORK/disk.raw" "$NEW/disk.qcow2"
}
