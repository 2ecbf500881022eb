// SPDX-License-Identifier: Apache-2.0
// Faults in terminals, in spawn, lines and createLane, and in attaching.
export default [
  // The agent's side of a terminal.
  { name: "no controlling terminal", file: "src/agent/spawn.c", test: "c:test_agent_pty",
    from: `if (sp->tty && ioctl(0, TIOCSCTTY, 0) != 0)`, to: `if (sp->tty && sp->fd[0] < 0)` },
  { name: "the terminal ends with the first close", file: "src/agent/pty.c", test: "c:test_agent_pty",
    from: `  al_pty_resize(s, s->rows, s->cols);
  return 0;`, to: `  al_pty_resize(s, s->rows, s->cols);
  s->tty = fcntl(master, F_DUPFD_CLOEXEC, 0);
  return 0;` },
  { name: "a resize is not passed on", file: "src/agent/pty.c", test: "c:test_agent_pty",
    from: `if (s->tty >= 0) (void) ioctl(s->tty, TIOCSWINSZ, &w);`, to: `if (s->tty >= 0 && rows == 0) (void) ioctl(s->tty, TIOCSWINSZ, &w);` },
  { name: "an unfinished line swallows the end", file: "src/agent/pty.c", test: "c:test_agent_pty", from: `return fresh ? 1 : 2;`, to: `return 1;` },
  { name: "the slave is never let go", file: "src/agent/pty.c", test: "c:test_agent_pty",
    from: `if (s->tty >= 0) close(s->tty);`, to: `if (s->tty >= 0 && s->state == AL_SLOT_FREE) close(s->tty);` },
  // The caller's.
  { name: "the terminal is not given back", file: "lib/interactive.ts", test: "ts:terminal", only: "the program's end",
    from: `terminal?.release();`, to: `` },
  { name: "a signal leaves it raw", file: "lib/terminal.ts", test: "ts:terminal", only: "SIGHUP|SIGQUIT",
    from: `  if (othersListen(signal)) return;
  restoreTerminals();
  unlisten();`, to: `  if (othersListen(signal)) return;
  unlisten();` },
  { name: "stopped while raw", file: "lib/terminal.ts", test: "ts:terminal", only: "SIGTSTP",
    from: `  if (othersListen("SIGTSTP")) return;
  restoreTerminals();`, to: `  if (othersListen("SIGTSTP")) return;` },
  { name: "not raw again after a stop", file: "lib/terminal.ts", test: "ts:terminal", only: "SIGTSTP",
    from: `    this.setRaw(false);
    this.setRaw(true);
    this.measure();`, to: `    this.measure();` },
  { name: "newlines are made twice", file: "src/tty.c", test: "ts:terminal", only: "has its size", from: `t.c_oflag &= ~(tcflag_t) OPOST;`, to: `` },
  { name: "the window is not followed", file: "lib/terminal.ts", test: "ts:terminal", only: "has its size", from: `    this.#onSize(size);`,
    to: `    if (size.rows === 0) this.#onSize(size);` },
  // Without Sandcastle.
  { name: "output is given back unread", file: "lib/process.ts", test: "ts:spawn", only: "stops a writer",
    from: `if (this.destroyed || this.push(data)) this.#give();`, to: `this.push(data);
    this.#give();` },
  { name: "a cut output looks whole", file: "lib/process.ts", test: "ts:spawn", only: "with disposal",
    from: `output.destroy(error);`, to: `output.push(null);` },
  { name: "a loop that is left leaves its command", file: "lib/iterate.ts", test: "ts:spawn", only: "when the loop is left",
    from: `      cancel("the loop over its lines was left");
      await settled;`, to: `      void settled;` },
  { name: "a failed status is no error", file: "lib/iterate.ts", test: "ts:spawn", only: "then the status",
    from: `if (check && state.end.exitCode !== 0)`, to: `if (check && state.end.exitCode < 0)` },
  { name: "lines are taken before the loop has them", file: "lib/iterate.ts", test: "ts:spawn", only: "when the loop is left",
    from: `{ onLines: (data) => batches.add(data),`, to: `{ onLines: (data) => (batches.add(data), engine.taken(id, 1, data.length)),` },
  { name: "the start counts from the queue", file: "src/lane_admit.c", test: "ts:spawn", only: "waits for a place",
    from: `    uv_timer_stop(&lane->start_timer); /* the wait has an end of its own */
`, to: `` },
  // Attaching.
  { name: "the attached end ends the owner's", file: "src/agent/attach.c", test: "c:test_agent_attach",
    from: `    else let_go(e[i].data.fd);`, to: `    else al_stop_eof(0);` },
  { name: "attached for ever", file: "src/agent/attach.c", test: "c:test_agent_attach",
    from: `  if (al_agent.attached) al_stop_eof(0); /* the owner's agent has ended */`, to: `  if (al_agent.attached) {
    close(link_fd);
    link_fd = -1;
    return;
  }` },
  { name: "places without end", file: "src/agent/attach.c", test: "c:test_agent_attach",
    from: `g.place >= AL_ATTACH_MAX; ask(`, to: `g.place > AL_ATTACH_MAX; ask(` },
  { name: "an attached host configures", file: "src/agent/config.c", test: "c:test_agent_attach",
    from: `if (al_agent.attached) al_stop_reject(`, to: `if (al_agent.attached && f->len > 0) al_stop_reject(` },
  { name: "leaving closes the lane", file: "src/lane_life.c", test: "ts:shell", only: "runs a command on pipes",
    from: `  if (lane->attached) {
    al_attach_end(lane, why);
    return;
  }`, to: `` },
  { name: "a directory of another row", file: "src/lima_attach.c", test: "c:test_lima_attach", from: ` && seal.row == row `, to: ` ` },
  { name: "a copied directory", file: "src/seal.c", test: "c:test_lima_attach",
    from: ` || r.ino != (uintmax_t) st.st_ino`, to: `` },
  { name: "attach to what is not ready", file: "src/lane_attach.c", test: "ts:shell", only: "says why",
    from: `if (!row) return al_err_set(err, AL_ENO_SUCH_LANE,`, to: `if (!row) return al_err_set(err, AL_EINTERNAL,` },
];
