// SPDX-License-Identifier: Apache-2.0
// Faults that a hostile guest, or a random schedule, would find in the channel.
export default [
  { name: "a second EXIT is dropped", file: "src/chan_in.c", test: "c:test_chan",
    from: `violation(c, f, "a stream that has ended");`, to: `` },
  { name: "a reset stream is never forgotten", file: "src/chan_stream.c", test: "c:test_chan",
    from: `(s->reset_at && s->reset_at <= acked)`, to: `(s->reset_at && acked == 0)` },
  { name: "a reset stream is forgotten at once", file: "src/chan_stream.c", test: "c:test_chan_model",
    from: `&& c->state == AL_CHAN_READY) keep_crossed(s);`, to: `&& c->state == AL_CHAN_HELLO) keep_crossed(s);` },
  { name: "credit of nothing", file: "src/chan_in.c", test: "c:test_chan", from: `} else if (n == 0) {`, to: `} else if (n > AL_WINDOW_MAX) {` },
  { name: "the same ACK again", file: "src/chan_in.c", test: "c:test_chan", from: `n <= c->acked) {`, to: `n < c->acked) {` },
  { name: "empty DATA", file: "src/frame.h", test: "c:test_chan", from: `X(DATA, 20, 1, 65536)`, to: `X(DATA, 20, 0, 65536)` },
  { name: "a stranger is not quoted", file: "src/chan_in.c", test: "c:test_chan_hostile",
    from: `at ? "" : said(c, words));`, to: `at ? "" : (words[0] = 0, words));` },
  { name: "giant lines are copied", file: "src/exec_out.c", test: "c:test_chan_hostile",
    from: `if (len >= GIANT && line == o->split.part.data) return`, to: `if (len == SIZE_MAX) return` },
  { name: "a second END of the host", file: "src/agent/stream.c", test: "c:test_agent_refuse",
    from: `if (s->state != AL_SLOT_RUN || s->host_ended)`, to: `if (s->state != AL_SLOT_RUN)` },
  { name: "the agent counts its ACKs", file: "src/agent/io.c", test: "c:test_chan_model",
    from: `if (type != AL_F_ACK) out_total +=`, to: `out_total +=` },
  { name: "a byte of stdin is left where it was", file: "src/agent/stream.c", test: "c:test_agent_flow",
    from: `memmove(area, area + s->area_off, s->area_len);`, to: `memmove(area, area + s->area_off, s->area_len - (s->area_len > 1));` },
];
