// SPDX-License-Identifier: Apache-2.0
// The containment proof itself: that its checks see what they look for, and that nothing passes by not running.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, describe, expect, it, vi } from "vitest";
import { broken, cannotBe, fails, held, notRun, open, summarise, unless } from "../../lib/verify/answers.js";
import { CanaryFile, plantPost, plantSocket, token } from "../../lib/verify/canary.js";
import { foreign } from "../../lib/verify/checks/files.js";
import { openings, qemuOpenings } from "../../lib/verify/checks/limits.js";
import { judge, type Seen } from "../../lib/verify/checks/network.js";
import { refused } from "../../lib/verify/checks/copies.js";
import { parseAnswer } from "../../lib/verify/guest.js";
import { argvOf, openFiles, processOf, runs, SocketWatch } from "../../lib/verify/host.js";
import { choose, CHECKS } from "../../lib/verify/run.js";
import { LaneError } from "../../lib/errors.js";
import { keepable, page, results } from "../../scripts/lib/containment.mjs";
import { stages } from "./support/stages.js";

vi.setConfig({ testTimeout: 200_000 });
const dir = mkdtempSync(join(tmpdir(), "al-verify-test-"));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

describe("a run's result", () => {
  it("fails for what is broken or was not run, but for what a machine cannot have", () => {
    expect([held(""), open(""), broken(""), notRun(""), cannotBe("")].map(fails)).toEqual([false, false, true, true, false]);
    expect(summarise([held(""), open(""), cannotBe("")])).toEqual({ ok: true, held: 1, open: 1, broken: 0, notRun: 1, excused: 1 });
    expect(summarise([held(""), notRun("")]).ok).toBe(false);
    expect(summarise([held(""), broken("")]).ok).toBe(false);
    expect(summarise([]).ok).toBe(false);
  });

  it("names everything that is wrong", () => {
    expect(unless([[false, "a"], [false, "b"]], "fine").answer).toBe("held");
    expect(unless([[true, "a"], [false, "b"], [true, "c"]], "fine")).toMatchObject({ answer: "broken", seen: "a; c" });
  });

  it("is about checks that say what they are", () => {
    expect(new Set(CHECKS.map((c) => c.id)).size).toBe(CHECKS.length);
    expect(CHECKS.filter((c) => c.tried.length < 20 || c.point === "")).toEqual([]);
    expect(choose(["reaper", "host-mount"]).map((c) => c.id)).toEqual(["host-mount", "reaper"]);
    expect(() => choose(["no-such"])).toThrow(/there is no check "no-such"/);
  });

  it("covers each of the twelve points, and each weakened build has its check", async () => {
    const points = ["no host mount", "no host home", "ssh keys or agent", "host Docker socket", "other lanes", "other worktrees", "exact-target close", "idempotent close", "cleanup on failure", "reaper", "effective configuration", "resource limits"];
    expect(points.filter((p) => !CHECKS.some((c) => c.point === p))).toEqual([]);
    const { default: list } = (await import("../../scripts/mutants.d/containment.mjs" as string)) as { default: { test: string }[] };
    expect(list.length).toBeGreaterThanOrEqual(8);
    expect(list.map((m) => m.test.replace("vm:", "")).filter((id) => !CHECKS.some((c) => c.id === id))).toEqual([]);
  });
});

describe("an answer of the guest", () => {
  const shape = { a: "texts", n: "number" } as const;
  const good = JSON.stringify({ nonce: "x", value: { a: ["1"], n: 2 } }) + "\n";
  it("is taken when it is exactly what was asked for", () => {
    expect(parseAnswer(good, "x", shape)).toEqual({ ok: true, value: { a: ["1"], n: 2 } });
  });
  it.each([
    ["nothing", ""],
    ["a second line", good + good],
    ["no end of line", good.trimEnd()],
    ["no JSON", "held\n"],
    ["another nonce", good.replace('"x"', '"y"')],
    ["no object", "[]\n"],
    ["more beside the value", good.replace('"value"', '"more":1,"value"')],
    ["a member too many", good.replace('"n":2', '"n":2,"m":3')],
    ["a member too few", good.replace(',"n":2', "")],
    ["a wrong kind", good.replace('"n":2', '"n":"2"')],
    ["a wrong kind inside", good.replace('["1"]', "[1]")],
    ["a number that is none", good.replace('"n":2', '"n":1e999')],
    ["too much", good.replace('"1"', `"${"1".repeat(2 ** 20)}"`)],
  ])("is none: %s", (_, text) => {
    expect(parseAnswer(text, "x", shape).ok).toBe(false);
  });
  it("says that the attack refused to run", () => {
    expect(parseAnswer('{"nonce":"x","value":{"refused":"this is no lane"}}\n', "x", shape)).toMatchObject({ ok: false, why: "the attack did not run: this is no lane" });
  });
});

describe("a network check", () => {
  const seen: Seen = { targets: 1, hits: 0, sockets: [], guest: { "0 tcp": "ECONNREFUSED" }, sing: true };
  it("judges by what the host saw", () => {
    expect(judge(seen, "none", false).answer).toBe("held");
    expect(judge({ ...seen, hits: 1 }, "none", false).answer).toBe("broken");
    expect(judge({ ...seen, sockets: ["udp"] }, "none", false).answer).toBe("broken");
    expect(judge({ ...seen, sockets: ["udp"] }, "none", true).answer).toBe("broken");
    expect(judge({ ...seen, hits: 1 }, "open", false).answer).toBe("open");
    // What the guest says of itself moves nothing.
    expect(judge({ ...seen, guest: { "0 tcp": "connected" } }, "none", false).answer).toBe("held");
  });
  it("does not pass by not running", () => {
    expect(judge({ ...seen, sing: false }, "none", false).answer).toBe("not run");
    expect(judge({ ...seen, guest: {} }, "none", false).answer).toBe("not run");
    expect(fails(judge(seen, "open", false))).toBe(true); // an attack that reaches nothing where all is open proves nothing
    expect(judge({ ...seen, sockets: undefined }, "none", true)).toMatchObject({ answer: "not run", excused: expect.any(String) });
    expect(judge({ ...seen, sockets: undefined }, "none", false).answer).toBe("held"); // the canary is enough
  });
});

describe("what is looked for in configurations", () => {
  const config = {
    plain: true, mounts: [], portForwards: [{ ignore: true }], networks: [], propagateProxyEnv: false, hostResolver: { enabled: false }, containerd: { system: false, user: false },
    ssh: { forwardAgent: false, forwardX11: false, forwardX11Trusted: false, loadDotSSHPubKeys: false }, provision: [{ mode: "data" }],
  };
  it("is not there in a lane's", () => {
    expect(openings({ config })).toEqual([]);
  });
  it.each([
    ["mounts", { mounts: [{ location: "~" }] }, /mounts/],
    ["Lima's services", { plain: false }, /services/],
    ["a forward", { portForwards: [{ ignore: true }, { guestPort: 80 }] }, /forwards ports/],
    ["the agent", { ssh: { ...config.ssh, forwardAgent: true } }, /ssh/],
    ["keys", { ssh: { ...config.ssh, loadDotSSHPubKeys: true } }, /keys/],
    ["networks", { networks: [{ lima: "shared" }] }, /networks/],
    ["disks", { additionalDisks: [{ name: "x" }] }, /disks/],
    ["variables", { propagateProxyEnv: true }, /variables/],
    ["names", { hostResolver: { enabled: true } }, /resolves/],
    ["scripts", { provision: [{ mode: "data" }, { mode: "system", script: "x" }] }, /scripts/],
    ["containerd", { containerd: { system: true, user: false } }, /containerd/],
    ["a missing key", { ssh: {} }, /ssh/],
  ])("is seen: %s", (_, more, what) => {
    expect(openings({ config: { ...config, ...more } }).join()).toMatch(what);
  });
  it("is not passed over when there is no configuration", () => {
    expect(openings({})).not.toEqual([]);
  });

  const argv = ["qemu", "-netdev", "user,id=net0,net=192.168.5.0/24,hostfwd=tcp:127.0.0.1:40001-:22,restrict=on,ipv6=off", "-sandbox", "on,obsolete=deny"];
  const changed = (from: string, to: string) => argv.map((w) => w.replace(from, to));
  it("is seen in QEMU's arguments", () => {
    expect(qemuOpenings(argv, "none")).toEqual([]);
    expect(qemuOpenings(changed(",restrict=on,ipv6=off", ""), "open")).toEqual([]);
    for (const [words, what] of [
      [changed(",restrict=on", ""), /restricted/],
      [changed(",ipv6=off", ""), /IPv6/],
      [changed("127.0.0.1", "0.0.0.0"), /forwards/],
      [changed("id=net0", "id=net0,hostfwd=tcp::1-:2"), /forwards/],
      [changed("id=net0", "id=net0,smb=/home"), /services/],
      [[...argv, "-nic", "user"], /another network/],
      [changed("on,obsolete", "off,obsolete"), /filtered/],
      [[], /another network/],
    ] as const)
      expect(qemuOpenings(words, "none").join()).toMatch(what);
  });

  it("is seen among QEMU's open files", () => {
    const file = (path: string, kind: "file" | "directory" | "device" = "file", writable = false) => ({ path, kind, writable });
    const all = (...files: ReturnType<typeof file>[]) => foreign(files, "/h/lima/a", "/h/images").map((f) => f.path);
    expect(all(file("/h/lima/a/disk", "file", true), file("/h/images/x/disk.qcow2"), file("/usr/share/qemu/bios.bin"), file("/dev/kvm", "device", true))).toEqual([]);
    expect(all(file("/home", "directory"), file("/h/images/x/disk.qcow2", "file", true), file("/h/lima/ab/disk"), file("/dev/sda", "device"), file("/etc/passwd"))).toHaveLength(5);
  });
});

describe("canaries", () => {
  it("hear who comes, and prove it", async () => {
    const post = (await plantPost("a post", "127.0.0.1"))!;
    expect([await post.tcp.sings(), await post.udp.sings()]).toEqual([true, true]);
    expect(post.tcp.hits).toEqual([]);
    const word = token();
    connect(post.port, "127.0.0.1").on("error", () => undefined).end(word);
    await vi.waitFor(() => expect(post.tcp.hits.map((h) => h.said)).toEqual([word]), { timeout: 20_000 });
    post.tcp.close();
    post.udp.close();
    await vi.waitFor(async () => expect(await post.tcp.sings()).toBe(false), { timeout: 20_000 });
    expect(await plantPost("nowhere", "192.0.2.77")).toBeUndefined();
  });

  it("are no sockets that cannot be made", async () => {
    const there = await plantSocket("a socket", join(dir, "s"));
    expect(await there?.sings()).toBe(true);
    there?.close();
    expect(await plantSocket("a socket", join(dir, "no", "such", "s"))).toBeUndefined();
  });

  it("see when their file is touched", () => {
    const file = new CanaryFile(join(dir, "canary"), token());
    expect(file.untouched).toBe(true);
    writeFileSync(file.path, `${file.word}\n`);
    expect(file.untouched).toBe(false);
  });

  it("are not the only witnesses: a process's sockets, files and words are seen", async () => {
    if (process.platform !== "linux") return;
    const post = (await plantPost("a post", "127.0.0.1"))!;
    const watch = new SocketWatch(process.pid, post.port);
    const s = connect(post.port, "127.0.0.1").on("error", () => undefined);
    await sleep(300);
    s.destroy();
    post.tcp.close();
    post.udp.close();
    expect(await watch.end()).toContain("tcp");
    expect(openFiles(process.pid)?.length).toBeGreaterThan(0);
    expect(argvOf(process.pid).length).toBeGreaterThan(0);
    expect(openFiles(2 ** 22 + 5)).toBeUndefined();
    expect(await new SocketWatch(2 ** 22 + 5, 0).end()).toBeUndefined();
    expect(runs(processOf(process.pid))).toBe(true);
    expect(runs({ pid: process.pid, start: "1" })).toBe(false);
  });
});

it("a copy that should be refused counts only with its own code", async () => {
  const failing = (code: "IS_LINK" | "LANE_CLOSED") => async () => Promise.reject(new LaneError({ code, message: "m", cure: "c" }));
  expect((await refused([["a", ["IS_LINK"], failing("IS_LINK")]])).wrong).toEqual([]);
  expect((await refused([["a", ["IS_LINK"], failing("LANE_CLOSED")]])).wrong).toEqual(["a ended with LANE_CLOSED, not IS_LINK"]);
  expect((await refused([["a", ["IS_LINK"], async () => undefined]])).wrong).toEqual(["a was copied"]);
});

describe("docs/CONTAINMENT.md", () => {
  it("is made of runs in which every check has an answer", () => {
    const all = results();
    for (const network of ["none", "open"]) expect(all.get(network)?.findings.map((f: { id: string }) => f.id)).toEqual(CHECKS.map((c) => c.id));
    expect(readFileSync(join(import.meta.dirname, "../../docs/CONTAINMENT.md"), "utf8")).toBe(page(all));
    expect(() => keepable({ version: 1, chosen: ["reaper"], findings: [] })).toThrow(/whole run/);
    expect(() => keepable({ version: 1, chosen: "all", summary: summarise([held(""), notRun("")]), findings: [] })).toThrow(/failed/);
    expect(() => keepable({ weakened: [{ name: "a", caught: true }, { name: "b", caught: false }] })).toThrow(/not caught b$/);
  });
});

const stage = stages();
describe("on a scripted limactl, whose guest is this machine", () => {
  const cli = (s: ReturnType<typeof stage>, args: string[]) => s.run(`
    import { spawnSync } from "node:child_process";
    const CLI = new URL("cli/main.js", PACKAGE).pathname;
    const r = spawnSync(process.execPath, [CLI, "verify", "--json", "--home", OPTIONS.home, "--limactl", OPTIONS.limactlPath, "--image", OPTIONS.image, "--accelerator", "tcg", ...${JSON.stringify(args)}], { encoding: "utf8", timeout: 150_000, env: { ...process.env, HOME: WT } });
    report("status", r.status);
    report("out", r.stdout);
    report("err", r.stderr);
  `, {}, 180_000);
  const answers = (out: string) => Object.fromEntries((JSON.parse(out) as { findings: { id: string; answer: string; seen: string }[] }).findings.map((f) => [f.id, `${f.answer}: ${f.seen}`]));

  it("the ends hold, and what needs a guest is not run, which fails", async () => {
    const s = stage();
    s.addCommand();
    const r = await cli(s, ["--only", "exact-close", "idempotent-close", "failed-create", "reaper", "places", "host-home"]);
    expect(r.err).toBe("");
    const got = answers(r.said["out"]);
    for (const id of ["exact-close", "idempotent-close", "failed-create", "reaper", "places"]) expect(`${id} ${got[id] ?? ""}`).toMatch(new RegExp(`^${id} held`));
    expect(got["host-home"]).toMatch(/^not run: the attack did not run: this is no lane/);
    expect(r.said["status"]).toBe(1);
    expect(s.left()).toEqual([]);
  });
});
