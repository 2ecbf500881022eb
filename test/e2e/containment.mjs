// SPDX-License-Identifier: Apache-2.0
// The containment proof, as people run it: both networks on real VMs, and no check may answer otherwise than docs/CONTAINMENT.md says.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, it } from "node:test";
import { agentLane, scratch } from "./lib/lanes.mjs";
import { nothingLeft } from "./lib/world.mjs";

// Beside this file when the proofs lie beside the installed package, else in the checkout.
const written = ["./containment-results.jsonl", "../../docs/containment-results.jsonl"].map((p) => new URL(p, import.meta.url));
function expected(network) {
  for (const url of written) {
    try {
      return readFileSync(url, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line)).find((r) => r.network === network);
    } catch {
      // the other place
    }
  }
  return undefined;
}

describe("agent-lane verify", { concurrency: false, timeout: 1_200_000 }, () => {
  for (const network of ["none", "open"])
    it(`answers for network "${network}" as docs/CONTAINMENT.md says`, async (t) => {
      const r = agentLane(["verify", "--network", network, "--json"], { timeout: 600_000, maxBuffer: 16 << 20 });
      const report = JSON.parse(r.out);
      const kept = process.env.E2E_KEEP_CONTAINMENT ?? scratch("containment");
      mkdirSync(kept, { recursive: true });
      writeFileSync(join(kept, `containment-${network}.json`), JSON.stringify(report));
      for (const f of report.findings) t.diagnostic(`${f.id}: ${f.answer}: ${f.seen} (${f.seconds} s)${(f.details ?? []).map((d) => `\n    ${d}`).join("")}`);
      const answers = (list) => Object.fromEntries(list.map((f) => [f.id, f.answer]));
      const before = expected(network);
      assert.ok(before, "docs/containment-results.jsonl has a run to compare with");
      assert.deepEqual(answers(report.findings), answers(before.findings));
      assert.equal(r.code, 0, "the run succeeds");
      await nothingLeft();
    });
});
