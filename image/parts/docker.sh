# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The flavour docker: the daemon's socket, its settings, and the plugins buildx and compose. To be sourced by build.

has_docker() { jq -e --arg flavour "$FLAVOUR" '.debs[] | select(.name == "docker.io") | .in | index($flavour)' "$LOCK" >/dev/null; }

install_docker() {
  has_docker || return 0
  say "docker: socket, buildx, compose"
  "$STATIC_CC" -std=c11 -Os -g0 -static -s -Wall -Wextra -Werror "-ffile-prefix-map=$HERE=." -Wl,--build-id=none -o "$WORK/docker-socket" "$HERE/docker/docker-socket.c" ||
    die "the program that holds the daemon's socket could not be built"
  install -D -m 755 "$WORK/docker-socket" "$ROOT/usr/lib/agent-lane/start.d/docker-socket"
  install -D -m 644 "$HERE/docker/daemon.json" "$ROOT/etc/docker/daemon.json"
  in_root usermod -a -G docker agent
  install_plugins
}

install_plugins() {
  local module version package binary sum built
  while IFS=$'\t' read -r module version package binary sum; do
    built=$CACHE/$binary-$version-$GO_ARCH-$(printf '%s' "$sum" "$(cat "$HERE/build-plugin" "$HERE/find-go")" | sha256sum | cut -c1-12)
    if [ ! -s "$built" ] || [ ! -s "$built.modules" ]; then
      say "$binary $version from its Go module (ten minutes on a small machine, then cached)"
      "$HERE/build-plugin" "$module" "$version" "$package" "$sum" "$GO_ARCH" "$built" || die "$binary could not be built"
    fi
    cp "$built.modules" "$WORK/modules/$binary.json"
    install -D -m 755 "$built" "$ROOT/usr/libexec/docker/cli-plugins/$binary"
  done < <(jq -r --arg flavour "$FLAVOUR" '.go[] | select(.in | index($flavour)) | [.module, .version, .package, .binary, .sum] | @tsv' "$LOCK")
}
