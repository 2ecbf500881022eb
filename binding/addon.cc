// SPDX-License-Identifier: Apache-2.0
// The addon's entry: one instance per JavaScript environment (main thread, each worker), so it may be loaded any number of times.
#include "engine.h"

#include <napi.h>

namespace {

Napi::Object
Init(Napi::Env env, Napi::Object exports) {
  al::AddonData *data = new al::AddonData();
  env.SetInstanceData(data); // deleted with the environment
  if (al::DefineEngine(env, data)) (void) exports.Set("open", Napi::Function::New(env, al::OpenEngine, "open"));
  return exports;
}

} // namespace

NODE_API_MODULE(agent_lane, Init)
