// SPDX-License-Identifier: Apache-2.0
// A logging and fault-injecting proxy around any isolated provider: both providers are compared through it, so the
// format is the same by construction.
import { stat } from "node:fs/promises";
import { dirname } from "node:path";
import { createIsolatedSandboxProvider } from "@ai-hero/sandcastle";
import { failure, result, short } from "./recorder.mjs";

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

const describeOptions = (options) => {
  if (options === undefined) return null;
  const shown = {};
  for (const key of Object.keys(options)) {
    const value = options[key];
    if (value === undefined) shown[key] = "<undefined>";
    else if (typeof value === "function") shown[key] = "<fn>";
    else if (key === "stdin") shown[key] = { bytes: Buffer.byteLength(value), text: short(value).slice(0, 200) };
    else shown[key] = value;
  }
  return shown;
};

/**
 * Every call with its outcome into the recorder; what the scenario's hooks throw or return goes to Sandcastle in the
 * guest's place.
 */
async function call(recorder, lane, name, details, work) {
  const end = recorder.begin(name, details, lane);
  try {
    const [outcome, value] = await work();
    end(outcome);
    return value;
  } catch (error) {
    end(failure(error));
    throw error;
  }
}

/** Sandcastle knows nothing of these two: they prepare and question the guest outside the log. */
export const guestTools = (handle) => ({
  exec: (command, options) => handle.exec(command, { cwd: "/", ...options }),
  /** Puts a program first on the guest's PATH. */
  async install(name, text) {
    // The local guest has a bin folder of its own on PATH and no root; a lane has root and the usual PATH.
    const where = `d="$HOME/.local/bin"; case ":$PATH:" in *":$d:"*) ;; *) d=/usr/local/bin ;; esac`;
    const command = `${where}; mkdir -p "$d" && cat > "$d/${name}" && chmod 755 "$d/${name}"`;
    const r = await handle.exec(command, { cwd: "/", sudo: true, stdin: text });
    if (r.exitCode !== 0) throw new Error(`cannot install ${name} in the guest: ${r.stderr}`);
  },
});

function loggedExec(handle, recorder, lane, options, counter) {
  return async (command, execOptions) => {
    const k = ++counter.execs;
    return call(
      recorder,
      lane,
      "exec",
      { command: short(command), options: describeOptions(execOptions) },
      async () => {
        const injected = await options.hooks?.exec?.(command, execOptions, { lane, k, guest: guestTools(handle) });
        if (injected) return [{ ...result(injected), injected: true }, injected];
        let lines = 0;
        const held = [];
        let passed = execOptions;
        if (execOptions?.onLine) {
          const onLine = (line) => {
            lines++;
            if (options.bufferLines) held.push(line);
            else execOptions.onLine(line);
          };
          passed = { ...execOptions, onLine };
        }
        const r = await handle.exec(command, passed);
        for (const line of held) execOptions.onLine(line);
        const given = options.hooks?.mapResult?.(command, r, execOptions) ?? r;
        return [execOptions?.onLine ? { ...result(given), lines } : result(given), given];
      },
    );
  };
}

function loggedCopies(handle, recorder, lane, options) {
  const tools = guestTools(handle);
  const copyIn = async (hostPath, sandboxPath) => {
    const source = await stat(hostPath);
    const probe = await tools.exec(
      `test -e ${quote(dirname(sandboxPath))}; echo $?; test -e ${quote(sandboxPath)}; echo $?`,
    );
    const [parent, exists] = probe.stdout.split("\n").map((code) => code === "0");
    const details = {
      hostPath,
      sandboxPath,
      source: source.isDirectory() ? "dir" : "file",
      guestParentExists: parent,
      guestPathExists: exists,
    };
    return call(recorder, lane, "copyIn", details, async () => {
      await options.hooks?.copyIn?.(hostPath, sandboxPath, tools);
      await handle.copyIn(hostPath, sandboxPath);
      return ["done"];
    });
  };
  const copyFileOut = async (sandboxPath, hostPath) => {
    const there = (path) => stat(path).then(() => true, () => false);
    const details = {
      sandboxPath,
      hostPath,
      hostParentExists: await there(dirname(hostPath)),
      hostPathExists: await there(hostPath),
    };
    return call(recorder, lane, "copyFileOut", details, async () => {
      await options.hooks?.copyFileOut?.(sandboxPath, hostPath, tools);
      await handle.copyFileOut(sandboxPath, hostPath);
      return ["done"];
    });
  };
  return { copyIn, copyFileOut };
}

/**
 * asked: env, guestEnv, prepare(guest), hooks {create, exec, copyIn, copyFileOut, close, mapResult}, bufferLines,
 * interactive (whether the handle has interactiveExec), product (options of lima()). `own` takes the place of hooks and
 * bufferLines when `ownFaults` is set: hooks that act on the guest, `faults` of limactl, or nothing.
 */
export function logged(makeInner, recorder, asked = {}, ownFaults = false) {
  let lanes = 0;
  const options = ownFaults && asked.own ? { ...asked, hooks: undefined, bufferLines: undefined, ...asked.own } : asked;
  const inner = makeInner({
    env: options.env,
    guestEnv: options.guestEnv,
    faults: options.faults,
    product: options.product,
  });
  return createIsolatedSandboxProvider({
    name: options.name ?? "oracle",
    env: inner.env,
    create: async (createOptions) => {
      const lane = ++lanes;
      return call(recorder, lane, "create", { keys: Object.keys(createOptions), env: createOptions.env }, async () => {
        await options.hooks?.create?.(lane);
        const handle = await inner.create(createOptions);
        recorder.scrub(handle.worktreePath, "$WT");
        recorder.scrub(dirname(handle.worktreePath), `$GUEST`);
        recorder.handle = handle;
        await options.prepare?.(guestTools(handle));
        const face = {
          worktreePath: handle.worktreePath,
          exec: loggedExec(handle, recorder, lane, options, { execs: 0 }),
          ...loggedCopies(handle, recorder, lane, options),
          close: () =>
            call(recorder, lane, "close", { inFlight: recorder.inFlight("close") }, async () => {
              // The hook may fail or hang in close's place; the guest is ended all the same, or the scenario would leak
              // it.
              const hook = (async () => options.hooks?.close?.(lane))();
              await Promise.all([hook, handle.close()]);
              return ["done"];
            }),
        };
        if (options.interactive)
          face.interactiveExec = (args, o) =>
            call(
              recorder,
              lane,
              "interactiveExec",
              { args, cwd: o.cwd, optionKeys: Object.keys(o), isTTY: o.stdin.isTTY ?? null },
              async () => {
                const r = await handle.interactiveExec(args, o);
                return [r, r];
              },
            );
        return [{ worktreePath: handle.worktreePath }, face];
      });
    },
  });
}
