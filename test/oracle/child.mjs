// SPDX-License-Identifier: Apache-2.0
// Runs one scenario in a process of its own: child.mjs PROVIDER SCENARIO LOG. Started by run-oracle.mjs, which sets
// HOME and TMPDIR to scratch folders.
import { localProvider } from "./lib/local.mjs";
import { makeKit } from "./lib/kit.mjs";
import { Recorder } from "./lib/recorder.mjs";
import { scenarios } from "./scenarios/index.mjs";

const [provider, name, file] = process.argv.slice(2);
const recorder = new Recorder(file);
process.on("unhandledRejection", (error) => recorder.note("unhandledRejection", String(error)));
process.on("exit", (code) => recorder.note("exit event", code));

const { productProvider } = provider === "local" ? {} : await import("./lib/place.mjs");
const makeInner = productProvider ? await productProvider(provider, (lane) => recorder.lane(lane)) : localProvider;
await scenarios[name].run(
  makeKit(recorder, makeInner, { ownFaults: provider !== "local" || Boolean(process.env.ORACLE_FAULTLESS) }),
);
recorder.note("scenario done", true);
