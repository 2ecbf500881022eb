// SPDX-License-Identifier: Apache-2.0
// What one check is.
import type { Verdict } from "./answers.js";
import type { Scene } from "./scene.js";

export interface Check {
  readonly id: string;
  /** The point of the boundary that it is about, in the words of docs/CONTAINMENT.md. */
  readonly point: string;
  readonly tried: string;
  /** What holds it. A function where that depends on the lane's network. */
  readonly by: string | ((network: "open" | "none") => string);
  /** It needs the lane beside the one that attacks: both then start at once. */
  readonly beside?: true;
  /** Attacks, and judges by what the host saw. What it throws is "not run". */
  readonly run: (scene: Scene) => Promise<Verdict>;
}
