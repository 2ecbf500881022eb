# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# What the parts of the recipe share: words for people, retries, and the architecture's names. To be sourced by build.

say() { printf 'image: %5ss  %s\n' "$SECONDS" "$*"; }
die() { echo "image: $*" >&2; exit 1; }

# Mirrors and registries fail now and then; a third failure is an answer.
retry() {
  local what=$1 attempt; shift
  for attempt in 1 2 3; do
    "$@" && return
    [ $attempt = 3 ] || { say "$what failed (attempt $attempt of 3), trying again in $((attempt * 5)) s"; sleep $((attempt * 5)); }
  done
  die "$what failed three times. Check that this machine reaches its package mirror, then run this again; what was fetched is kept."
}

# Sets what the architecture is called by Debian, npm, Go and the C compiler, and how a program of it is linked statically.
choose_arch() {
  case $1 in
    x86_64) DEB_ARCH=amd64 GO_ARCH=amd64 TRIPLET=x86_64-linux-gnu STATIC_CC=musl-gcc CONSOLE_DEVICE=ttyS0 ;;
    aarch64) DEB_ARCH=arm64 GO_ARCH=arm64 TRIPLET=aarch64-linux-gnu STATIC_CC=aarch64-linux-gnu-gcc CONSOLE_DEVICE=ttyAMA0 ;;
    *) die "no recipe for architecture '$1'; there is: x86_64 aarch64" ;;
  esac
  [ "$1" != aarch64 ] || [ "$(uname -m)" != aarch64 ] || STATIC_CC=gcc
}

# A value of the lock file.
locked() { jq -r "$1" "$LOCK"; }

native() { [ "$(uname -m)" = "$ARCH" ]; }

# The packages' own scripts run while they are configured, so a machine of another kind needs qemu-user. Where the system
# has not told the kernel of it (no systemd, a lane), this does, until the build ends.
BINFMT=/proc/sys/fs/binfmt_misc REGISTERED=''
run_foreign() {
  native || [ -e "$BINFMT/qemu-$ARCH" ] && return
  [ -e $BINFMT/register ] || { modprobe binfmt_misc 2>/dev/null; mount -t binfmt_misc none $BINFMT; } || die "binfmt_misc cannot be mounted, so programs of $ARCH do not run here"
  [ ! -e "$BINFMT/qemu-$ARCH" ] || return 0
  local machine=b7
  [ "$ARCH" = aarch64 ] || machine=3e
  printf ':%s:M::\\x7f\\x45\\x4c\\x46\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\x%s\\x00:%s:%s:F' "qemu-$ARCH" $machine \
    '\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff' "$(command -v "qemu-$ARCH-static")" >$BINFMT/register ||
    die "the kernel takes no $ARCH programs"
  REGISTERED=$BINFMT/qemu-$ARCH
}
forget_foreign() { [ -z "$REGISTERED" ] || echo -1 >"$REGISTERED"; }
