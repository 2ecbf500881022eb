// SPDX-License-Identifier: Apache-2.0
// Runs one scenario in a process of its own: child.mjs PROVIDER SCENARIO LOG. Started by run-oracle.mjs, which sets HOME and TMPDIR to scratch folders.
import { localProvider } from "./lib/local.mjs";
import { makeKit } from "./lib/kit.mjs";
import { Recorder } from "./lib/recorder.mjs";
import { scenarios } from "./scenarios/index.mjs";

const [provider, name, file] = process.argv.slice(2);
const recorder = new Recorder(file);
process.on("unhandledRejection", (error) => recorder.note("unhandledRejection", String(error)));
process.on("exit", (code) => recorder.note("exit event", code));

/** The product, with small lanes; ORACLE_LIMA_OPTIONS (JSON) changes them. */
async function limaProvider() {
  const { lima } = await import("@agent-lane/provider-lima");
  const base = { cpus: 2, memoryGiB: 1.5, ...JSON.parse(process.env.ORACLE_LIMA_OPTIONS ?? "{}") };
  // The scenario's guestEnv stands for what an image sets; for a real lane it goes in with the run's environment.
  return ({ env, guestEnv }) => {
    const inner = lima({ ...base, env: { ...guestEnv, ...env } });
    return { ...inner, env: env ?? {}, create: (options) => inner.create({ ...options, env: { ...guestEnv, ...options.env } }) };
  };
}

const makeInner = provider === "lima" ? await limaProvider() : localProvider;
await scenarios[name].run(makeKit(recorder, makeInner));
recorder.note("scenario done", true);
