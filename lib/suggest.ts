// SPDX-License-Identifier: Apache-2.0
// What a mistyped or borrowed option name was probably meant to be.

/** Edit distance, for names of a few dozen characters. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next[j] = Math.min(
        (row[j] ?? 0) + 1,
        (next[j - 1] ?? 0) + 1,
        (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1),
      );
    row = next;
  }
  return row[b.length] ?? 0;
}

// Names that people bring along from other tools.
const SYNONYMS: Readonly<Record<string, string>> = {
  memory: "memoryGiB",
  mem: "memoryGiB",
  ram: "memoryGiB",
  disk: "diskGiB",
  cpu: "cpus",
  cores: "cpus",
  vcpus: "cpus",
  timeout: "timeoutMinutes",
  starttimeout: "startTimeoutSeconds",
  limactl: "limactlPath",
  sudo: "guestSudo",
  environment: "env",
  workdir: "worktreePath",
  cwd: "worktreePath",
  exclude: "ignore",
  excludes: "ignore",
  maxsize: "maxBytes",
};

/** The one of `names` that was probably meant, or undefined. */
export function nearest<T extends string>(name: string, names: readonly T[]): T | undefined {
  const lower = name.slice(0, 64).toLowerCase();
  const known = Object.hasOwn(SYNONYMS, lower) ? names.find((n) => n === SYNONYMS[lower]) : undefined;
  if (known !== undefined) return known;
  let best: T | undefined;
  let bestDistance = Math.max(2, Math.floor(lower.length / 3)) + 1;
  for (const candidate of names) {
    const d = distance(lower, candidate.toLowerCase());
    if (d < bestDistance) [best, bestDistance] = [candidate, d];
  }
  // `worktree` for worktreePath: the beginning of exactly one name.
  const begun = names.filter((n) => lower.length >= 3 && n.toLowerCase().startsWith(lower));
  return best ?? (begun.length === 1 ? begun[0] : undefined);
}
