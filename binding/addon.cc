// SPDX-License-Identifier: Apache-2.0
// The addon's entry: one instance per JavaScript environment (main thread, each worker), so it may be loaded any number
// of times.
#include "bridge.h"

#include <dlfcn.h>
#include <napi.h>

namespace {

// An engine that was closed with lanes left finishes on its own thread. Node unloads the addon when the last worker
// that used it ends, which would take the code away from under that thread; so the library stays mapped.
void
StayLoaded() {
  static const char here = 0;
  Dl_info info;
  if (dladdr(&here, &info) != 0 && info.dli_fname != nullptr) (void) dlopen(info.dli_fname, RTLD_NOW | RTLD_NODELETE);
}

Napi::Object
Init(Napi::Env env, Napi::Object exports) {
  StayLoaded();
  al::AddonData *data = new al::AddonData();
  env.SetInstanceData(data); // deleted with the environment
  if (al::DefineEngine(env, data)) (void) exports.Set("open", Napi::Function::New(env, al::OpenEngine, "open"));
  return exports;
}

} // namespace

NODE_API_MODULE(agent_lane, Init)
