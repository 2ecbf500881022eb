// SPDX-License-Identifier: Apache-2.0
// For binding.gyp: compiler and linker flags of libarchive and SQLite from pkg-config, on macOS also of Homebrew's kegs.
const { execFileSync } = require("node:child_process");
const { existsSync } = require("node:fs");
const { join } = require("node:path");

const PACKAGES = ["libarchive", "sqlite3"];
const KEGS = ["libarchive", "sqlite"];

function environment() {
  const env = { ...process.env };
  if (process.platform !== "darwin") return env;
  const prefixes = [process.env.HOMEBREW_PREFIX, "/opt/homebrew", "/usr/local"].filter(Boolean);
  const dirs = prefixes
    .flatMap((prefix) => KEGS.map((keg) => join(prefix, "opt", keg, "lib", "pkgconfig")))
    .filter((dir) => existsSync(dir));
  env.PKG_CONFIG_PATH = [...new Set(dirs), env.PKG_CONFIG_PATH].filter(Boolean).join(":");
  return env;
}

const what = process.argv[2];
if (!["--cflags", "--libs"].includes(what)) {
  console.error("usage: pkgconfig.cjs --cflags|--libs");
  process.exit(2);
}
try {
  const out = execFileSync("pkg-config", [what, ...PACKAGES], { env: environment(), encoding: "utf8" });
  process.stdout.write(out.trim());
} catch (error) {
  console.error(
    `libarchive and SQLite were not found by pkg-config (${String(error.stderr ?? error.message).trim()}). ` +
      "Debian: apt-get install pkg-config libarchive-dev libsqlite3-dev. macOS: brew install pkgconf libarchive sqlite.",
  );
  process.exit(1);
}
