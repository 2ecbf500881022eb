// SPDX-License-Identifier: Apache-2.0
// Faults in the addon.
export default [
  { name: "an environment's end is not noticed", file: "binding/bridge.cc", test: "ts:worker", only: "while running a command",
    from: `napi_add_env_cleanup_hook(env, CleanUp, core);`, to: `` },
  { name: "an idle engine holds the process", file: "binding/bridge.cc", test: "ts:native", from: `if (idle) core->waker.Unref(env);`, to: `` },
  { name: "a pending call does not hold the process", file: "binding/bridge.cc", test: "ts:native",
    from: `if (core_->open++ == 0) core_->waker.Ref(env);`, to: `core_->open++;` },
  { name: "events are lost when one was waiting", file: "binding/bridge.cc", test: "ts:native", from: `else tail->next = e;`, to: `else head = e;` },
  { name: "NUL in a text", file: "binding/values.cc", test: "ts:native", from: `if (s.find('\\0') != std::string::npos) return Refuse(`,
    to: `if (s.empty()) return Refuse(` },
  { name: "values of any depth", file: "binding/values.cc", test: "ts:native", from: `if (depth > kMaxDepth) return`, to: `if (depth > 10 * kMaxDepth) return` },
];
