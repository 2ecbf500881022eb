# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2016
# The guest's own files, users and shell in ROOT. To be sourced by build.

# The guest's /bin/sh is Debian's dash, linked statically; Debian's own binary stays beside it.
install_shell() {
  local built
  built=$CACHE/dash-$DEB_ARCH-$({ locked .sources; cat "$HERE/build-shell"; } | sha256sum | cut -c1-12)
  if [ -n "$FRESH" ] || [ ! -s "$built" ]; then
    say "the shell, linked statically"
    "$HERE/build-shell" "$REPO/sources" "$WORK/dash" "$STATIC_CC" "$TRIPLET" "$CACHE/shell.log"
    mv -f "$WORK/dash" "$built"
  fi
  in_root dpkg-divert --quiet --local --rename --divert /usr/bin/dash.dynamic --add /usr/bin/dash 2>/dev/null ||
    in_root dpkg-divert --quiet --local --rename --divert /bin/dash.dynamic --add /bin/dash
  install -m 755 "$built" "$ROOT/bin/dash"
  [ "$(in_root /bin/sh -c 'echo $((6*7))')" = 42 ] || die "the guest's shell does not run"
}

install_files() {
  local file mode
  # The modes are the recipe's, whatever umask it was checked out with.
  while read -r file; do
    if [ -x "$HERE/rootfs/$file" ]; then mode=755; else mode=644; fi
    install -D -m $mode "$HERE/rootfs/$file" "$ROOT/$file"
  done < <(cd "$HERE/rootfs" && find . -type f | LC_ALL=C sort)
  install -m 755 "$HERE/lane-init" "$ROOT/sbin/lane-init"
  ln -s /bin/busybox "$ROOT/usr/lib/agent-lane/sh"
  # Nothing of the machine that built the image stays in it: mmdebstrap copies two of these, with their modes.
  rm -f "$ROOT/etc/hosts" "$ROOT/etc/hostname" "$ROOT/etc/resolv.conf"
  printf '127.0.0.1 localhost\n::1 localhost ip6-localhost\n' >"$ROOT/etc/hosts"
  echo lima-lane >"$ROOT/etc/hostname"
  : >"$ROOT/etc/machine-id"
  : >"$ROOT/etc/resolv.conf"
  rm -f "$ROOT"/etc/ssh/ssh_host_* "$ROOT/etc/apt/apt.conf.d/99mmdebstrap" "$ROOT/etc/motd"
  write_sources
}

install_users() {
  # The login user runs one shell per ssh session: the static busybox starts in a seventh of bash's time when emulated.
  in_root useradd -m -k /nonexistent -u 1000 -s /usr/lib/agent-lane/sh -p '*' lane 2>/dev/null
  in_root useradd -m -u 1001 -s /bin/bash -p '*' agent
  rm -f "$ROOT"/home/lane/.[a-z]*
  chmod 700 "$ROOT/home/lane"
  echo 'lane ALL=(ALL) NOPASSWD:ALL' >"$ROOT/etc/sudoers.d/lane"
  chmod 440 "$ROOT/etc/sudoers.d/lane"
  in_root visudo -cq || die "the guest's sudoers are not valid"
}
