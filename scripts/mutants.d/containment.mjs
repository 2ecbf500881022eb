// SPDX-License-Identifier: Apache-2.0
// Builds whose boundary is weakened on purpose. The check of `agent-lane verify` that is named must say so on a real VM: scripts/weakened.
// `and`: more places, where one alone is held by the next line of defence. `answer`: what the check says, "broken" if nothing else.
export default [
  { name: "a warden that shares a directory of the host's", file: "src/warden/rules.c", test: "vm:host-mount",
    from: `      al_warden_add(vm, "-no-reboot") != 0)`,
    to: `      al_warden_add(vm, "-no-reboot") != 0 || al_warden_add(vm, "-virtfs") != 0 ||
      al_warden_add(vm, "local,path=/home,mount_tag=host,security_model=none") != 0)` },
  { name: "a lane that takes the user's directory along", file: "lib/open.ts", test: "vm:host-home",
    from: `    if (ended !== undefined) lane.ended(ended);`,
    to: `    if (ended !== undefined) lane.ended(ended);
    const ignore = ["/*", "!/.al-verify-*", "*.sock"];
    await lane.copyIn((await import("node:os")).homedir(), "/home/agent/host", { ignore });` },
  { name: "a warden without restrict", file: "src/warden/rules.c", test: "vm:loopback-gateway",
    from: `policy->network_open ? "%s" : "%s,restrict=on,ipv6=off"`, to: `policy->network_open ? "%s" : "%s,ipv6=off"` },
  { name: "a warden that restricts nothing", file: "src/warden/rules.c", test: "vm:dns",
    from: `case NETDEV: return al_warden_add(vm, policy->network_open ? "%s"`, to: `case NETDEV: return al_warden_add(vm, !policy->network_open ? "%s"` },
  { name: "a port more that is forwarded", file: "src/warden/rules.c", test: "vm:inbound",
    from: `"%s" : "%s,restrict=on,ipv6=off", value);`, to: `"%s,hostfwd=tcp::47123-:80" : "%s,restrict=on,ipv6=off,hostfwd=tcp::47123-:80", value);` },
  { name: "a warden that lets QEMU start programs", file: "src/warden/watch_linux.c", test: "vm:configuration",
    from: `  if (al_warden_add(vm, "-sandbox") != 0) return -1;
  return al_warden_add(vm, "on,`, to: `  if (al_warden_add(vm, "-sandbox") != 0) return -1;
  return al_warden_add(vm, "off,` },
  { name: "a lane with twice the memory", file: "src/lima_yaml.c", test: "vm:limits",
    from: `      spec->memory_mib, spec->disk_gib);`, to: `      2 * spec->memory_mib, spec->disk_gib);`,
    and: [{ file: "src/lima_verify.c", from: `snprintf(memory, sizeof memory, "%" PRId64 "MiB", spec->memory_mib);`,
      to: `snprintf(memory, sizeof memory, "%" PRId64 "MiB", 2 * spec->memory_mib);` }] },
  { name: "places without an end", file: "src/registry_admit.c", test: "vm:places",
    from: `a->call.outcome = a->queue->position > 1 || open >= a->max;`, to: `a->call.outcome = a->queue->position > 1 || open >= 100 * a->max;` },
  { name: "an agent that follows links", file: "src/agent/read.c", test: "vm:copy-guest-link",
    from: `.resolve = NO_SYMLINKS};`, to: `.resolve = 0 & NO_SYMLINKS};` },
  { name: "a copy that follows the host's links", file: "src/xfer_place.c", test: "vm:copy-host-link",
    from: `  const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  int fd = openat(p->dir, name, flags);`, to: `  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  int fd = openat(p->dir, name, flags);` },
  { name: "a copy in that follows the worktree's links", file: "src/xfer_tar.c", test: "vm:other-worktree",
    from: `if (!is_file && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)`,
    to: `if (!is_file && fstatat(dir, name, &st, 0) < 0)`,
    and: [{ file: "src/xfer_tar.c", from: `openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK`,
      to: `openat(dir, name, O_RDONLY | O_NONBLOCK` },
      { file: "src/xfer_tar.c", from: `openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)`,
        to: `openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)` }] },
  { name: "a copied directory whose files may be programs", file: "src/xfer_tree.c", test: "vm:copy-tree",
    from: `(t->executables ? 0777 : 0666)`, to: `(t->executables ? 0666 : 0777)` },
  { name: "a lane with the home's own key", file: "lib/open.ts", test: "vm:ssh-keys",
    from: `    handle = new WeakRef(lane);`,
    to: `    handle = new WeakRef(lane);
    await lane.copyIn(\`\${String(native["home"])}/lima/_config/user\`, "/home/agent/.ssh/id_ed25519");` },
  { name: "ssh with the user's agent, handed on to the guest", file: "src/lima_yaml.c", test: "vm:ssh-agent",
    from: `forwardAgent: false,`, to: `forwardAgent: true,`,
    and: [{ file: "src/lima_verify.c", from: `put(m, off[i], al_val_bool(false), rc);`,
      to: `put(m, off[i], al_val_bool(strcmp(off[i], "forwardAgent") == 0), rc);` },
      { file: "src/lima.c", from: `  v[n++] = al_strdup("LANG=C.UTF-8");`,
        to: `  v[n++] = al_strdup("LANG=C.UTF-8");
  v[n++] = al_asprintf("SSH_AUTH_SOCK=%s", getenv("SSH_AUTH_SOCK") ? getenv("SSH_AUTH_SOCK") : "");` }] },
  { name: "a lane with the host's environment", file: "lib/open.ts", test: "vm:host-environment",
    from: `        env: { ...ownEnv, ...env },
        syncIn`, to: `        env: { ...(process.env as Record<string, string>), ...ownEnv, ...env },
        syncIn` },
  { name: "secrets in the lane's directory", file: "lib/open.ts", test: "vm:lane-secret",
    from: `    const native = await request.done;`,
    to: `    const native = await request.done;
    (await import("node:fs")).writeFileSync(\`\${String(native["dir"])}/run.json\`, JSON.stringify(env));` },
  { name: "an end of every lane's QEMU", file: "src/lima_procs.c", test: "vm:exact-close",
    from: `is(before, before_len, "-pidfile") && is(arg, n, qemu_pid);`, to: `is(before, before_len, "-pidfile") && has(arg, n, "/qemu.pid");` },
  { name: "a close that may come once", file: "lib/lane.ts", test: "vm:idempotent-close",
    from: `    this.#closing ??= this.#close();`, to: `    if (this.#closing !== undefined) return Promise.reject(new Error("closed"));
    this.#closing = this.#close();` },
  { name: "a failed start that leaves its lane", file: "src/lane.c", test: "vm:failed-create",
    from: `  TO(state, FAIL, CLOSING, DESTROY), TO(state, CLOSE`, to: `  TO(state, FAIL, CLOSED, FINISH), TO(state, CLOSE` },
  { name: "a reaper that takes a copied record", file: "src/seal.c", test: "vm:reaper",
    from: `  if (r.dev != (uintmax_t) st.st_dev || r.ino != (uintmax_t) st.st_ino) return 0;`, to: `  if (r.dev == 0 || r.ino == 0) return 0;` },
  { name: "a canary that nobody planted", file: "lib/verify/canary.ts", test: "vm:docker-socket", answer: "not run",
    from: `  return canary !== undefined && (await canary.sings()) ? canary : undefined;`, to: `  canary?.close();
  return canary !== undefined && canary.hits.length > 0 ? canary : undefined;` },
];
