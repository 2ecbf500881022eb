# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the nightly programs share: counting checks, and comparing two images byte for byte. To be sourced.
passed=0 failed=0
# check WHAT STATUS: 0 is good.
check() { if [ "$2" = 0 ]; then passed=$((passed + 1)); echo "ok   $1"; else failed=$((failed + 1)); echo "FAIL $1"; fi; }
# finish NAME: the last line, and whether all was good.
finish() { echo "$1: $passed passed, $failed failed, 0 skipped"; [ "$failed" = 0 ]; }

# same_files DIR OTHER: a check for every file of either; of one that is not the same, how many bytes differ and where.
same_files() {
  local name differ
  for name in $({ ls "$1"; ls "$2"; } | LC_ALL=C sort -u); do
    if cmp -s "$1/$name" "$2/$name"; then check "$name is the same" 0; continue; fi
    check "$name is the same" 1
    differ=$(cmp -l "$1/$name" "$2/$name" 2>&1 | awk 'NR <= 8 { first = first " " $1 } END { print NR ", the first at" first }')
    echo "     sizes $(stat -c %s "$1/$name" "$2/$name" 2>&1 | paste -sd' '); bytes that differ: $differ"
    [ -z "${KEEP_DIFFERENT:-}" ] || { cp "$1/$name" "$KEEP_DIFFERENT/$name.1"; cp "$2/$name" "$KEEP_DIFFERENT/$name.2"; }
  done
}
# id_of DIR NAME: what the store calls the image in DIR.
id_of() { echo "$2-$(sha256sum "$1/manifest.json" | cut -c1-12)"; }
