// SPDX-License-Identifier: Apache-2.0
// Turns the raw log of a scenario into one that can be compared: paths, object names, times and temporary names get
// fixed names.

const byLength = (a, b) => b.text.length - a.text.length;

/**
 * Object names become <sha1>, <sha2> … in the order they are first seen, so equal ones stay equal and different ones
 * differ.
 */
function shaNamer() {
  const names = new Map();
  const full = (sha) => {
    if (!names.has(sha)) names.set(sha, `<sha${names.size + 1}>`);
    return names.get(sha);
  };
  const abbreviated = (text) => {
    for (const [sha, name] of names) if (sha.startsWith(text)) return name.replace(">", "~>");
    return text;
  };
  return (text) => text.replace(/\b[0-9a-f]{40}\b/g, full).replace(/\b[0-9a-f]{7,12}\b/g, abbreviated);
}

function textNormaliser(scrubs) {
  const fixed = scrubs
    .flatMap(({ text, name }) => [
      { text, name },
      { text: text.replaceAll("/", "-"), name: `${name}-dashed` },
    ])
    .sort(byLength);
  const sha = shaNamer();
  return (text) => {
    let t = text;
    for (const { text: from, name } of fixed) t = t.replaceAll(from, name);
    t = t
      .replace(/[^\s"'(]*\/sandcastle-bundle-[A-Za-z0-9]{6}/g, "$HOSTTMP/sandcastle-bundle-X")
      .replace(
        /[^\s"'(]*\/sandcastle-(patches-)?[A-Za-z0-9]{6}(?![A-Za-z0-9-])/g,
        (_, p) => `$TMP/sandcastle-${p ?? ""}X`,
      )
      .replace(/\b\d{8}-\d{6}(-\d+)?(-[0-9a-f]{4,})?\b/g, "<stamp>");
    return sha(t);
  };
}

/**
 * After `git clone` of a bundle HEAD is on whichever of the branches at that commit git finds first, which depends on
 * the random part of Sandcastle's branch names. So a checkout of such a branch may find it checked out already; both
 * end on the branch, and say so differently.
 */
function checkoutOfStampedBranch(call) {
  if (
    call.call !== "exec" ||
    !/^git checkout "sandcastle\/<stamp>"$/.test(call.command ?? "") ||
    call.outcome?.exitCode !== 0
  )
    return call;
  return { ...call, outcome: { ...call.outcome, stdout: "<on the branch>", stderr: "<on the branch>" } };
}

const deep = (value, text) => {
  if (typeof value === "string") return text(value);
  if (Array.isArray(value)) return value.map((v) => deep(v, text));
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, deep(v, text)]));
  return value;
};

/** raw: entries of the Recorder. Gives {calls: [...], notes: {...}}. */
export function normalise(raw, extraScrubs = []) {
  const scrubs = [...raw.filter((e) => e.kind === "scrub"), ...extraScrubs];
  const text = textNormaliser(scrubs);
  const ends = new Map(raw.filter((e) => e.kind === "end").map((e) => [e.n, e.outcome]));
  const calls = [], notes = [];
  for (const { kind, n, ...rest } of raw) {
    if (kind === "call")
      calls.push(checkoutOfStampedBranch(deep({ n, ...rest, outcome: ends.has(n) ? ends.get(n) : "pending" }, text)));
    if (kind === "note") notes.push(deep({ [rest.label]: rest.value }, text));
  }
  return { calls, notes };
}
