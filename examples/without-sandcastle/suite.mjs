// SPDX-License-Identifier: Apache-2.0
// A test suite in a lane, without Sandcastle: copy the tree in, follow its output, talk to a service, take the report
// home.
import { rm } from "node:fs/promises";
import { resolve } from "node:path";
import { createLane } from "@agent-lane/provider-lima";

// LANES: from here
const lane = await createLane({ cpus: 2, memoryGiB: 2, network: "none", queueTimeoutSeconds: 600 });
try {
  await lane.copyIn("./suite", lane.worktreePath, { ignore: ["*.log"] });

  // One command, its whole output.
  const { stdout, exitCode } = await lane.exec("uname -s; ls");
  console.log(exitCode, stdout.trim().split("\n").join(" "));

  // A command beside the others, with Node's streams. Disposing of it ends everything it started.
  const service = lane.spawn(["sh", "service.sh"]);
  service.stdin.write("ping\n");
  for await (const data of service.stdout) {
    console.log("service:", data.toString().trim());
    break;
  }
  await service[Symbol.asyncDispose]();

  // Line by line, as fast as the loop goes. Leaving the loop ends the command; a status other than 0 throws.
  try {
    for await (const line of lane.lines("sh run-tests.sh")) console.log("suite:", line);
  } catch (error) {
    console.log(error.code, error.exitCode, error.stderr.trim());
  }

  // Home with it: a file takes the place of an older one, a directory wants a place where nothing is.
  await lane.copyFileOut(`${lane.worktreePath}/report.txt`, resolve("out/report.txt"));
  await rm("out/results", { recursive: true, force: true });
  const { files, bytes } = await lane.copyOut(`${lane.worktreePath}/results`, resolve("out/results"));
  console.log("results:", files, "files of", bytes, "bytes");
} finally {
  await lane.close();
}
// LANES: to here
