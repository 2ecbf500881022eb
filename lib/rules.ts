// SPDX-License-Identifier: Apache-2.0
// What the value of an option may be: rules that check it and say what they allow.
import { posix } from "node:path";
import { badOption, LaneError } from "./errors.js";
import { publicKey } from "./minisign.js";
import { nearest } from "./suggest.js";

export interface Rule {
  /** What is allowed, for the table of options. */
  readonly bounds: string;
  /** A value of this kind as the table shows it. */
  show(value: unknown): string;
  /** Throws BAD_OPTION, which names `where`. */
  check(where: string, value: unknown): void;
}

const TEXT_MAX = 4096;

/** "a string", "an array", "the number 3", for messages; never the value of a text, which may be a secret. */
export function kindOf(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  if (Array.isArray(value)) return "an array";
  if (typeof value === "number" || typeof value === "boolean") return `the ${typeof value} ${String(value)}`;
  return typeof value === "object" ? "an object" : `a ${typeof value}`;
}

/** Throws UNKNOWN_OPTION, with the near one, for a name that `whose` (such as "option of exec()") does not have. */
export function refuseUnknown(whose: string, given: object, known: readonly string[]): void {
  const name = Object.keys(given).find((key) => !known.includes(key));
  if (name === undefined) return;
  const near = nearest(name, known);
  const said = `there is no ${whose} ${JSON.stringify(name.slice(0, 80))}`;
  throw new LaneError({
    code: "UNKNOWN_OPTION",
    message: near === undefined ? said : `${said}; did you mean ${near}?`,
    cure:
      near === undefined ? `Remove it. The options are: ${known.join(", ")}.` : `Use ${near}, or remove the option.`,
  });
}

/** The options of one call: an object that has no unknown names. */
export function checkNames(
  call: string,
  options: unknown,
  known: readonly string[],
  what = `the options of ${call}`,
): asserts options is object {
  if (typeof options !== "object" || options === null || Array.isArray(options))
    throw badOption(`${what} must be an object, not ${kindOf(options)}`);
  refuseUnknown(`option of ${call}`, options, known);
}

/** The options, each read once: a getter must say the same to the check and to what is done. */
export function readOnce<T extends object>(options: T, names: readonly (keyof T & string)[]): T {
  return Object.fromEntries(names.map((name) => [name, options[name]])) as T;
}

/** A rule with one question. */
function simple(
  bounds: string,
  wanted: string,
  holds: (value: unknown) => boolean,
  more: { show?: Rule["show"]; shown?: (value: unknown) => string } = {},
): Rule {
  return {
    bounds,
    show: more.show ?? String,
    check(where, value) {
      if (!holds(value)) throw badOption(`${where} must be ${wanted}, not ${(more.shown ?? kindOf)(value)}`);
    },
  };
}

const within = (value: unknown, min: number, max: number): boolean =>
  typeof value === "number" && value >= min && value <= max;

export const number = (min: number, max: number): Rule =>
  simple(`${min}–${max} (number)`, `a number from ${min} to ${max}`, (v) => within(v, min, max));

export const integer = (min: number, max: number): Rule =>
  simple(`${min}–${max}`, `an integer from ${min} to ${max}`, (v) => within(v, min, max) && Number.isInteger(v));

/** "1 B", "256 MiB", "4 GiB": the largest unit that divides it. */
function sizeText(n: number): string {
  const power = [4, 3, 2, 1].find((p) => n % 1024 ** p === 0) ?? 0;
  return `${n / 1024 ** power} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

const queueTime = integer(1, 86400);

/** The option of those calls that wait for a place by themselves. */
export function checkQueueTime(value: unknown): void {
  if (value !== undefined) queueTime.check("option queueTimeoutSeconds", value);
}

export const bytes = (min: number, max: number): Rule => ({
  ...integer(min, max),
  bounds: `${sizeText(min)}–${sizeText(max)}`,
  show: (value) => sizeText(value as number),
});

export function oneOf(...values: readonly string[]): Rule {
  const quoted = values.map((v) => `"${v}"`);
  return simple(
    quoted.map((v) => `\`${v}\``).join(" or "),
    quoted.join(" or "),
    (v) => typeof v === "string" && values.includes(v),
    {
      show: (v) => `\`"${String(v)}"\``,
      shown: (v) => (typeof v === "string" ? JSON.stringify(v.slice(0, 80)) : kindOf(v)),
    },
  );
}

export const bool = simple("true or false", "true or false", (v) => typeof v === "boolean");
export const func = simple("function", "a function", (v) => typeof v === "function");

const HOST_CONTROL = /[\0\r\n]/;
const GUEST_CONTROL = /[\0-\x1f\x7f]/;

/** A text of bounded length without `control`; `more` names what else is wrong with it. */
function text(bounds: string, wanted: string, control: RegExp, more?: (value: string) => string | undefined): Rule {
  const wrong = (value: unknown): string | undefined => {
    if (typeof value !== "string") return kindOf(value);
    if (value === "") return "an empty text";
    if (value.length > TEXT_MAX) return `one of ${value.length} characters; at most ${TEXT_MAX} are allowed`;
    if (control.test(value)) return "a text with control characters";
    return more?.(value);
  };
  return {
    bounds,
    show: (value) => `\`${String(value)}\``,
    check(where, value) {
      const what = wrong(value);
      if (what !== undefined) throw badOption(`${where} must be ${wanted}, not ${what}`);
    },
  };
}

const relative = (path: string): string | undefined =>
  path.startsWith("/") ? undefined : `the relative path "${path.slice(0, 80)}"`;

export const nameOrPath = text("name, id or absolute path", "a name or an absolute path", HOST_CONTROL);
export const hostPath = text("absolute path", "an absolute path", HOST_CONTROL, relative);
export const guestPath = text(
  "absolute, normalised",
  "an absolute, normalised path below / in the guest",
  GUEST_CONTROL,
  (path) => {
    if (relative(path) !== undefined) return relative(path);
    if (path === "/") return "/ itself";
    const normal = posix.normalize(path).replace(/(?<=.)\/$/, "");
    return normal === path ? undefined : `"${path.slice(0, 80)}" (use "${normal.slice(0, 80)}")`;
  },
);

const ENV_NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;
const ENV_NAME_WORDS = "a variable's name (letters, digits and _, not starting with a digit)";

/**
 * Throws BAD_OPTION unless every name is a shell identifier and every value a text without NUL. Values are never shown.
 */
export function checkEnv(env: unknown, where = "option env"): asserts env is Record<string, string> {
  // A Map or Headers has names and texts, but not as properties: all of them would be lost.
  if (typeof env !== "object" || env === null || Symbol.iterator in env)
    throw badOption(`${where} must be an object of names and texts, not ${kindOf(env)}`);
  for (const [name, value] of Object.entries(env)) {
    if (!ENV_NAME.test(name))
      throw badOption(`${where}: ${JSON.stringify(name.slice(0, 80))} is not ${ENV_NAME_WORDS}`);
    if (typeof value !== "string") throw badOption(`${where}: ${name} must be a text, not ${kindOf(value)}`);
    if (value.includes("\0")) throw badOption(`${where}: ${name} contains a NUL character`);
  }
}

const KEYS_MAX = 16;

export const publicKeys: Rule = {
  bounds: `1–${KEYS_MAX} keys`,
  show: String,
  check(where, value) {
    if (!Array.isArray(value)) throw badOption(`${where} must be a list of public keys of minisign, not ${kindOf(value)}`);
    if (value.length < 1 || value.length > KEYS_MAX)
      throw badOption(`${where} must have 1 to ${KEYS_MAX} public keys of minisign, not ${value.length}`);
    // A loop by index: a hole in the list must not be skipped.
    for (let i = 0; i < value.length; i++) {
      const key: unknown = value[i];
      if (typeof key === "string" && publicKey(key) !== undefined) continue;
      const shown = typeof key === "string" ? JSON.stringify(key.slice(0, 80)) : kindOf(key);
      throw badOption(`${where}: ${shown} is no public key of minisign, which is the second line of minisign.pub`);
    }
  },
};

export const environment: Rule = {
  bounds: "names and texts",
  show: String,
  check(where, value) {
    checkEnv(value, where);
  },
};
