// SPDX-License-Identifier: Apache-2.0
// The stages of one test file: made when asked for, removed when the file is done.
import { afterAll } from "vitest";
import { Stage } from "./stage.js";

export { canMount } from "./stage.js";

/** Call it once, outside of tests; what it returns makes a stage with a scenario of the scripted limactl. */
export function stages(): (scenario?: object, disk?: string) => Stage {
  const made: Stage[] = [];
  afterAll(() => made.forEach((s) => s.remove()));
  return (scenario = {}, disk) => {
    const s = new Stage(disk);
    made.push(s);
    s.scenario(scenario);
    return s;
  };
}
