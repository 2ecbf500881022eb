// SPDX-License-Identifier: Apache-2.0
// The JavaScript object around one core engine: post, taken, close; events come back in batches.
#ifndef AL_BINDING_BRIDGE_H
#define AL_BINDING_BRIDGE_H

#include "al.h"
#include <napi.h>

namespace al {

// Per JavaScript environment; nothing in the addon is global.
struct AddonData {
  Napi::FunctionReference engine_class;
};

// Defines the class and keeps its constructor in `data`.
bool
DefineEngine(Napi::Env env, AddonData *data);

// open(packageDir, onEvents) → Engine
Napi::Value
OpenEngine(const Napi::CallbackInfo &info);

} // namespace al

#endif
