// SPDX-License-Identifier: Apache-2.0
// A process that prepares the image of a project: options as JSON; prints each step, then the result.
import { prepareImage } from "@agent-lane/provider-lima";

const onEvent = (event) => event.type === "preparing" && console.log(`${event.step}: ${event.message}`);
console.log(JSON.stringify(await prepareImage({ ...JSON.parse(process.argv[2]), onEvent })));
