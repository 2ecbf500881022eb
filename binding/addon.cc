// SPDX-License-Identifier: Apache-2.0
// The addon's entry: one instance per JavaScript environment (main thread, each worker), so it may be loaded any number
// of times.
#include "al.h"
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

// rawOutput(fd): whether it could be done; a terminal that is gone is no error.
Napi::Value
RawOutput(const Napi::CallbackInfo &info) {
  Napi::Env env = info.Env();
  if (info.Length() != 1 || !info[0].IsNumber()) {
    Napi::TypeError::New(env, "fd must be a number").ThrowAsJavaScriptException();
    return env.Undefined();
  }
  return Napi::Boolean::New(env, al_tty_raw_output(info[0].As<Napi::Number>().Int32Value()) == 0);
}

// leave(timeoutMs): for the end of the process. False when an engine had not stopped by then.
Napi::Value
Leave(const Napi::CallbackInfo &info) {
  Napi::Env env = info.Env();
  if (info.Length() != 1 || !info[0].IsNumber()) {
    Napi::TypeError::New(env, "timeoutMs must be a number").ThrowAsJavaScriptException();
    return env.Undefined();
  }
  return Napi::Boolean::New(env, al_engines_leave(info[0].As<Napi::Number>().Uint32Value()) == 0);
}

Napi::Object
Init(Napi::Env env, Napi::Object exports) {
  StayLoaded();
  al::AddonData *data = new al::AddonData();
  env.SetInstanceData(data); // deleted with the environment
  if (al::DefineEngine(env, data)) (void) exports.Set("open", Napi::Function::New(env, al::OpenEngine, "open"));
  (void) exports.Set("rawOutput", Napi::Function::New(env, RawOutput, "rawOutput"));
  (void) exports.Set("leave", Napi::Function::New(env, Leave, "leave"));
  return exports;
}

} // namespace

NODE_API_MODULE(agent_lane, Init)
