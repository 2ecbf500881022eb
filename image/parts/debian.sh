# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2016,SC2034
# The guest's Debian: the locked packages, and nothing else, unpacked and configured in ROOT. To be sourced by build.

# An archive of exactly the locked files is what mmdebstrap installs from, so no other version can get in. Where what it made of
# them is cached, only the sources are needed.
fetch_packages() {
  REPO=$WORK/archive
  BASE_TAR=$CACHE/base-$(jq -c --arg flavour "$FLAVOUR" '[.suite, .arch, (.debs[] | select(.in | index($flavour)) | .sha256)]' "$LOCK" |
    cat - <(echo "$EPOCH") "$HERE/parts/debian.sh" | sha256sum | cut -c1-16).tar
  [ -z "$FRESH" ] || rm -f "$BASE_TAR"
  mkdir "$REPO"
  say "packages of the lock file"
  local code=0 only=()
  [ ! -s "$BASE_TAR" ] || only=(--only-sources)
  "$HERE/fetch-inputs" "$LOCK" "$FLAVOUR" "$CACHE" "$REPO" "${only[@]}" || code=$?
  # Status 3 is INPUT_GONE, and its words have been said.
  [ $code = 0 ] || exit $code
  if [ ! -s "$BASE_TAR" ]; then
    say "Debian $(locked .suite) for $ARCH: $(grep -c ^Package: "$REPO/Packages") packages, log in $CACHE/mmdebstrap.log"
    bootstrap || die "the packages could not be installed; the whole log is $CACHE/mmdebstrap.log"
  fi
}

# The guest's own programs get this environment and no other one: a variable of the machine's must not change a byte. (With
# PYTHONDONTWRITEBYTECODE Python's modules are compiled otherwise than without it, for one.)
guest_env() {
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 TZ=UTC SOURCE_DATE_EPOCH="$EPOCH" \
    PYTHONDONTWRITEBYTECODE=1 "$@"
}
in_root() { guest_env chroot "$ROOT" "$@"; }

bootstrap() {
  local names; names=$(sed -n 's/^Package: //p' "$REPO/Packages" | paste -sd,)
  rm -f "$BASE_TAR.tmp"
  # The archive is ours and was checked file by file, so it carries no signature. The kernel's package makes no initrd of
  # Debian's: the image has one of its own. What is mounted meanwhile is seen by mmdebstrap alone, and is gone with it however it ends:
  # a mount that a killed build has left would keep every later one from removing the rest.
  chmod 755 "$WORK"
  guest_env TMPDIR="$WORK" INITRD=No unshare --mount --propagation private mmdebstrap --mode=root --variant=minbase --format=tar --architectures="$DEB_ARCH" --include="$names" \
    --aptopt='APT::Install-Recommends "false"' --aptopt='APT::Sandbox::User "root"' --aptopt='Acquire::Languages "none"' --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' "$(locked .suite)" "$BASE_TAR.tmp" "deb [trusted=yes] copy:$REPO ./" \
    >"$CACHE/mmdebstrap.log" 2>&1 || { tail -n 5 "$CACHE/mmdebstrap.log" >&2; return 1; }
  mv "$BASE_TAR.tmp" "$BASE_TAR"
}

unpack_packages() {
  say "root file system"
  tar -C "$ROOT" --numeric-owner --xattrs -xf "$BASE_TAR" --exclude='./dev/*'
  KVER=$(cd "$ROOT/lib/modules" && printf '%s\n' * | LC_ALL=C sort -V | tail -n 1)
  local same
  same=$(in_root dpkg-query -W -f '${Package} ${Version}\n' | LC_ALL=C sort |
    diff - <(jq -r --arg flavour "$FLAVOUR" '.debs[] | select(.in | index($flavour)) | .name + " " + .version' "$LOCK" | LC_ALL=C sort) || true)
  [ -z "$same" ] || die "the installed packages are not those of the lock file: $(head -n 5 <<<"$same")"
}

# The guest's own package sources are Debian's public ones, not those of the machine that built the image.
write_sources() {
  local suite; suite=$(locked .suite)
  rm -rf "${ROOT:?}"/etc/apt/sources.list "$ROOT"/etc/apt/sources.list.d/*
  cat >"$ROOT/etc/apt/sources.list.d/debian.sources" <<END
Types: deb
URIs: http://deb.debian.org/debian
Suites: $suite $suite-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: $suite-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
}
