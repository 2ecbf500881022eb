// SPDX-License-Identifier: Apache-2.0
// Compares a run on the plain provider with one on the product and says whether every difference is an expected one.
import { isDeepStrictEqual } from "node:util";
import { everywhere, expected, rules } from "../expected.mjs";

/** Lists {path, plain, product} wherever the two values differ. */
function differences(plain, product, path) {
  if (isDeepStrictEqual(plain, product)) return [];
  const nested = (v) => v !== null && typeof v === "object";
  if (!nested(plain) || !nested(product) || Array.isArray(plain) !== Array.isArray(product))
    return [{ path, plain, product }];
  // A result on one side and a rejection on the other is one difference, not one for each of their fields.
  if ("rejected" in plain !== "rejected" in product) return [{ path, plain, product }];
  const keys = new Set([...Object.keys(plain), ...Object.keys(product)]);
  return [...keys].flatMap((key) => differences(plain[key], product[key], `${path}.${key}`));
}

const fits = (wanted, value) =>
  wanted instanceof RegExp ? typeof value === "string" && wanted.test(value)
  : typeof wanted === "function" ? wanted(value)
  : isDeepStrictEqual(wanted, value);

/**
 * The plain provider's error stands where ours does, in its own words: ours names its code, and which code is part of
 * the expectation.
 */
function sameErrorOtherWords({ path, plain, product }, codes) {
  if (path.endsWith(".code")) return codes.includes(product);
  if (path.endsWith(".rejected.name")) return codes.length > 0 && plain === "Error" && product === "LaneError";
  if (
    typeof plain !== "string" ||
    typeof product !== "string" ||
    !/\.(rejected|message|unhandledRejection)$/.test(path)
  )
    return false;
  return codes.some((code) => product.includes(`[${code}]`) || product.includes(`[${code}, step `));
}

/**
 * Gives {verdict: "equal" | "safer" | "n-a" | "UNEXPLAINED", explained: [{path, why}], unexplained: [...], unmet:
 * [...]}.
 */
export function judge(name, plain, product) {
  const entry = expected[name];
  if (!entry)
    return { verdict: "UNEXPLAINED", explained: [], unexplained: [], unmet: [`${name} has no expected result`] };
  const all = ["calls", "notes", "end", "left"].flatMap((part) => differences(plain[part], product[part], part));
  const callOf = (path) => plain.calls[Number(/^calls\.(\d+)/.exec(path)?.[1])];
  const met = new Set();
  const explained = [], unexplained = [];
  for (const d of all) {
    const general = everywhere.find((r) => r.matches(d, callOf(d.path), product.provider));
    const own = general
      ? -1
      : (entry.differences ?? []).findIndex(
          (r) => r.at.test(d.path) && fits(r.plain, d.plain) && fits(r.product, d.product),
        );
    if (own >= 0) met.add(own);
    if (general) explained.push({ ...d, why: general.why });
    else if (own >= 0) explained.push({ ...d, why: rules[entry.rule] ?? entry.reason });
    else if (sameErrorOtherWords(d, entry.codes ?? [])) explained.push({ ...d, why: "the same failure, in our words" });
    else unexplained.push(d);
  }
  // What makes a scenario safer must be seen: a run without it is a run in which nothing was shown.
  const unmet = (entry.differences ?? []).flatMap((r, i) =>
    met.has(i) || r.may ? [] : [`expected and not seen: ${r.at}`],
  );
  if (plain.calls.length + plain.notes.length === 0) unmet.push("the plain provider's log is empty");
  for (const must of entry.musts ?? []) if (!must.holds(product)) unmet.push(must.what);
  return { verdict: unexplained.length + unmet.length ? "UNEXPLAINED" : entry.kind, explained, unexplained, unmet };
}
