// SPDX-License-Identifier: Apache-2.0
// A VM that the recipe runs in, as root: what a lane and a plain VM of a cloud image have in common.
import { cpus } from "node:os";

export const HELPER_DISK_GIB = 40;
export const HELPER_MINUTES = 480;
export const helperCpus = (): number => Math.max(1, Math.min(8, cpus().length));

export interface Helper {
  /** Where the recipe lies there, and where its result goes. */
  readonly recipe: string;
  readonly out: string;
  /** Puts a file or a folder of this machine there. */
  put(from: string, to: string): Promise<void>;
  /** Runs a command as root in the recipe's folder, and gives its exit code. */
  run(command: string, env: Readonly<Record<string, string>>, onLine: (line: string) => void): Promise<number>;
  /** Takes a file from there. */
  take(from: string, to: string): Promise<void>;
  close(): Promise<void>;
}

/** A word for a shell. */
export const quote = (word: string): string => `'${word.replaceAll("'", "'\\''")}'`;

/** Splits what comes in pieces into lines. */
export function lines(say: (line: string) => void): { feed: (piece: string) => void; end: () => void } {
  let rest = "";
  return {
    feed: (piece) => {
      const parts = (rest + piece).split("\n");
      rest = parts.pop() ?? "";
      parts.forEach(say);
    },
    end: () => {
      if (rest !== "") say(rest);
    },
  };
}
