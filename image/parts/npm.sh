# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Node, npm and the coding agents, from the locked packages of the npm registry. To be sourced by build.
# Packages are fetched by npm's ordinary client and unpacked here: no install script ever runs.

# $1 name, $2 version, $3 integrity → the tarball's path in NPM_TARBALL.
fetch_npm() {
  NPM_TARBALL=$CACHE/$(tr '/' '-' <<<"${1#@}")-$2.tgz
  [ -s "$NPM_TARBALL" ] || { say "npm: $1@$2"; retry "npm pack $1@$2" npm_pack "$1" "$2"; }
  local got; got=sha512-$(openssl dgst -sha512 -binary "$NPM_TARBALL" | base64 -w0)
  [ "$got" = "$3" ] || { rm -f "$NPM_TARBALL"; die "$1@$2 is not the package of this recipe: $got instead of $3"; }
}
npm_pack() {
  local dir rc; dir=$(mktemp -d "$CACHE/pack.XXXXXX")
  (cd "$dir" && npm pack --silent --ignore-scripts "$1@$2" >/dev/null) && mv "$dir"/*.tgz "$NPM_TARBALL"
  rc=$?
  rm -rf "$dir"
  return $rc
}

# Every npm package of the flavour, each by a function of its own.
install_npm_packages() {
  local name version integrity program
  while IFS=$'\t' read -r program name version integrity; do
    fetch_npm "$name" "$version" "$integrity"
    "install_$program" "$version"
  done < <(jq -r --arg flavour "$FLAVOUR" '.npm[] | select(.in | index($flavour)) | [.program, .name, .version, .integrity] | @tsv' "$LOCK")
}

install_node() {
  tar -xzOf "$NPM_TARBALL" package/bin/node >"$ROOT/usr/local/bin/node"
  chmod 755 "$ROOT/usr/local/bin/node"
  [ "$(in_root node --version)" = "v$1" ] || die "Node does not run in the guest's file system"
}

install_npm() {
  local usr=$ROOT/usr/local
  mkdir -p "$usr/lib/node_modules/npm"
  tar -xzf "$NPM_TARBALL" --no-same-owner -C "$usr/lib/node_modules/npm" --strip-components=1
  ln -s ../lib/node_modules/npm/bin/npm-cli.js "$usr/bin/npm"
  ln -s ../lib/node_modules/npm/bin/npx-cli.js "$usr/bin/npx"
  chmod 755 "$usr/lib/node_modules/npm/bin/npm-cli.js" "$usr/lib/node_modules/npm/bin/npx-cli.js"
  [ "$(in_root npm --version)" = "$1" ] || die "npm does not run in the guest's file system"
}

# A coding agent's platform package holds a native program of the agent's name; the package is kept whole, since the
# program may look beside itself.
install_agent() {
  local dir=$ROOT/usr/local/lib/agents/$1 program
  mkdir -p "$dir"
  tar -xzf "$NPM_TARBALL" --no-same-owner --no-same-permissions -C "$dir" --strip-components=1
  program=$(cd "$dir" && find . -type f -name "$1" -size +1M | LC_ALL=C sort | head -n 1)
  [ -n "$program" ] && [ "$(head -c 4 "$dir/$program" | tail -c 3)" = ELF ] || die "$NPM_TARBALL has no native program $1"
  # npm's tarballs do not say reliably which files are programs.
  find "$dir" -type f -exec sh -c 'for file; do case $(head -c 4 "$file" | tr -d "\000") in ?ELF | "#!"*) chmod 755 "$file" ;; *) chmod 644 "$file" ;; esac; done' sh {} +
  ln -s "../lib/agents/$1/${program#./}" "$ROOT/usr/local/bin/$1"
}
install_claude() { install_agent claude; }
install_codex() { install_agent codex; }
install_opencode() { install_agent opencode; }
