// SPDX-License-Identifier: Apache-2.0
// Faults in how commands are ended, limited, fed and timed.
export default [
  // In the guest.
  { name: "stopped processes never see SIGTERM", file: "src/agent/cancel.c", test: "c:test_agent_cancel",
    from: `  al_cancel_signal(s, SIGCONT, true);`, to: `  (void) SIGCONT;` },
  { name: "EXIT before the tree is gone", file: "src/agent/cancel.c", test: "c:test_agent_cancel",
    from: `return s->kill_ns == 0 || s->given_up || !has_tree(s);`, to: `return s->kill_ns == 0 || s->given_up || s->reaped;` },
  { name: "a later cancel delays the kill", file: "src/agent/cancel.c", test: "c:test_agent_cancel",
    from: `if (due < s->kill_ns) s->kill_ns = due;`, to: `s->kill_ns = due + 20000000000ull;` },
  { name: "SIGTERM for the main process only", file: "src/agent/cancel.c", test: "c:test_agent_cancel",
    from: `al_cancel_signal(s, SIGTERM, true);`, to: `kill(s->pid, SIGTERM);` },
  { name: "a cancelled command waits for credit", file: "src/agent/pump.c", test: "c:test_agent_cancel",
    from: `if (s->fd[sub] < 0 || s->cancelled) continue;`, to: `if (s->fd[sub] < 0) continue;` },
  { name: "daemons live on when told not to", file: "src/agent/cancel.c", test: "c:test_agent_cancel",
    from: `if (s->end_tree) al_cancel_begin`, to: `if (s->end_tree && s->cancelled) al_cancel_begin` },
  { name: "limits that nobody enforces", file: "src/agent/limits.c", test: "c:test_agent_cancel",
    from: `return errno == ENOENT ? -EOPNOTSUPP : -errno;`, to: `return errno == ENOENT ? 0 : -errno;` },
  { name: "every hold of pipes is the default", file: "src/agent/request.c", test: "c:test_agent_cancel",
    from: `r->hold_ms = al_get32(value);`, to: `r->hold_ms = AL_GRACE_DEFAULT_MS;` },
  { name: "bytes of a part are forgotten", file: "src/agent/io.c", test: "c:test_agent_flow",
    from: `coming.left = len, coming.flags`, to: `coming.left = len - (in_len == AL_FRAME_HEADER), coming.flags` },
  { name: "in bulk a host that stops is never told", file: "src/agent/calm.c", test: "c:test_agent_flow",
    from: `return is_due && was_much;`, to: `return state == CALM;` },
  { name: "in bulk the window is larger than said", file: "src/agent/stream.c", test: "c:test_agent_flow",
    from: `s->eaten += AL_WINDOW_BULK - AL_WINDOW_DEFAULT;`, to: `s->eaten += AL_WINDOW_BULK;` },
  { name: "who reads nothing is not seen while credit is waited for", file: "src/chan_out.c", test: "c:test_chan_hostile",
    from: `bool unread = c->sent - c->acked >= AL_ACK_EVERY;`, to: `bool unread = false;` },
  { name: "crumbs are sent", file: "src/chan_out.c", test: "c:test_chan_flow",
    from: `if (want < left && want < AL_CRUMB) return false;`, to: `` },
  { name: "the channel is left alone too long", file: "src/agent/calm.c", test: "c:test_agent_flow",
    from: `uint64_t ns = is_due ? moment_ns : 0;`, to: `uint64_t ns = is_due ? 30000000000u : 0;` },
  // On the host.
  { name: "own standstill is the guest's silence", file: "src/chan.c", test: "c:test_chan_time",
    from: `if (late > c->opts.ping_ms / TICKS) {`, to: `if (late > c->opts.ping_ms * 1000) {` },
  { name: "the clock ticks only when a deadline is due", file: "src/chan.c", test: "c:test_chan_time",
    from: `if (due > tick) due = tick;`, to: `(void) tick;` },
  { name: "the guest's clock is set again and again", file: "src/chan.c", test: "c:test_chan_time",
    from: `  c->clock_base = base;`, to: `` },
  { name: "oom is not told", file: "src/chan_in.c", test: "c:test_chan_time",
    from: `x->oom = f->flags & AL_EXIT_OOM;`, to: `x->oom = f->flags > AL_EXIT_OOM;` },
  { name: "no patience with a cancelled command ends", file: "src/exec.c", test: "c:test_exec_cancel",
    from: `uv_timer_start(&e->timer, on_patience,`, to: `if (grace == 1) uv_timer_start(&e->timer, on_patience,` },
  { name: "an error without the output", file: "src/exec_out.c", test: "c:test_exec_cancel",
    from: `if (o->keep == AL_KEEP_WHOLE && o->whole.len > 0)`, to: `if (o->keep == AL_KEEP_TAIL && o->whole.len > 0)` },
  { name: "a cancelled command keeps its share of memory", file: "src/exec.c", test: "c:test_exec_cancel",
    from: `  for (int i = 0; i < 2; i++) al__out_only_tail(&e->out[i]);
  al__out_within_budget(e);`, to: `  for (int i = 0; i < 2; i++) al__out_only_tail(&e->out[i]);` },
  // How stdin is sent, and how much of everything may be on its way.
  { name: "what is sent may change under the write", file: "src/queue.c", test: "c:test_queue",
    from: `  if (--b->holders > 0) return;
  al_free(b->own);`, to: `  if (b->own) memset(b->own, 0, 1);
  if (--b->holders > 0) return;
  al_free(b->own);` },
  { name: "a queue gives its second piece first", file: "src/queue.c", test: "c:test_queue",
    from: `  if (q->last) q->last->next = b;`, to: `  if (q->last && b->len % 2) {
    b->next = q->first, q->first = b, q->len += b->len;
    return;
  }
  if (q->last) q->last->next = b;` },
  { name: "a cancelled command's stdin ends in the middle", file: "src/chan_stream.c", test: "c:test_chan_flow",
    from: `  al__stream_deaf(s);
  if (!s->cancel_due`, to: `  al_queue_deinit(&s->q);
  if (!s->cancel_due` },
  { name: "every window is large", file: "src/chan_stream.c", test: "c:test_chan_flow",
    from: `if (sub->grown || s->c->grown >= AL_GROWN_MAX) return;`, to: `if (sub->grown) return;` },
  { name: "a large window stays with its stream", file: "src/chan_stream.c", test: "c:test_chan_flow",
    from: `c->grown -= s->sub[sub].grown;`, to: `c->grown -= s->sub[sub].grown && c->grown > 16;` },
  { name: "a slow channel is filled like a fast one", file: "src/pacing.c", test: "c:test_pacing",
    from: `if (ns > p->slow_ns) p->most =`, to: `if (ns > p->slow_ns && p->most > AL_PACING_MAX) p->most =` },
  { name: "a sender that is one of many is taken for alone", file: "src/pacing.c", test: "c:test_chan_flow",
    from: `if (p->sender == sender) return;`, to: `if (p->sender != 0) return;` },
  { name: "a sender that is alone is not known for one", file: "src/pacing.c", test: "c:test_chan_flow",
    from: `alone && p->most < p->alone`, to: `alone && p->most > p->alone` },
  { name: "a fast channel is filled like a slow one", file: "src/pacing.c", test: "c:test_pacing",
    from: `else if (ns < p->slow_ns / 2)`, to: `else if (ns == 0)` },
  { name: "the last of a fast channel is never acknowledged", file: "src/chan_out.c", test: "c:test_chan_flow",
    from: `uv_timer_start(&c->ack, on_ack_wait, AL_ACK_WAIT_MS, 0);`, to: `uv_timer_start(&c->ack, on_ack_wait, 1u << 30, 0);` },
  { name: "credit waits for an acknowledgement that never comes", file: "src/chan_out.c", test: "c:test_chan_flow",
    from: `return with_ack || (sub->due >= AL_CREDIT_EVERY && sub->window <= AL_ACK_LATEST);`, to: `return with_ack;` },
  { name: "a calm output is never looked at again", file: "src/agent/main.c", test: "c:test_agent_flow",
    from: `if (s->calm_ns[sub] <= now || s->reaped) s->calm_ns[sub] = 0;`, to: `if (s->reaped) s->calm_ns[sub] = 0;` },
  { name: "the last lines are taken and nobody says so", file: "src/engine.c", test: "ts:exec", only: "are exact",
    from: `if (a) a->hurry = true;`, to: `` },
  // In the TypeScript face.
  { name: "stdin that fails is taken for its end", file: "lib/stdin.ts", test: "ts:exec", only: "that fails ends the command",
    from: `else if (this.#failed !== undefined) throw this.#failed.error;`, to: `else if (this.#failed !== undefined) return;` },
  { name: "stdin is read ahead without bound", file: "lib/stdin.ts", test: "ts:exec", only: "no faster than the command",
    from: `if (queued === 0 && data.length > 0) this.#stopped = true;`, to: `` },
  { name: "run although the signal said no", file: "lib/running.ts", test: "ts:exec", only: "caller's signal",
    from: `if (signal?.aborted === true) throw`, to: `if (signal?.aborted === true && this.id > 0) throw` },
];
