// SPDX-License-Identifier: Apache-2.0
// Conversion between the core's value tree and JavaScript values, and between its errors and JavaScript errors.
#ifndef AL_BINDING_VALUES_H
#define AL_BINDING_VALUES_H

#include "al.h"
#include <napi.h>

namespace al {

// Limits of what one request may carry; a value beyond them is a TypeError that names the argument.
constexpr unsigned kMaxDepth = 16;
constexpr size_t kMaxNodes = 100000;
constexpr size_t kMaxBytes = size_t{256} << 20;

// Bytes up to this size are copied into Node's heap (V8 then accounts for them); larger ones are handed over as they
// are.
constexpr size_t kCopyBelow = size_t{16} << 10;

// JavaScript → core. nullptr: an exception is pending (a TypeError naming the argument, or what a getter threw).
al_val_t *
FromJs(Napi::Env env, Napi::Value value, const char *name);

// Core → JavaScript. `v` stays the caller's, but large byte values are moved out of it. Empty value: an exception is
// pending.
Napi::Value
ToJs(Napi::Env env, al_val_t *v);

// Like ToJs for a value that is given away: the root itself may become the memory of an external buffer.
Napi::Value
ToJsTake(Napi::Env env, al_val_t *v);

// {code, number, message, step?, lane?, cure}
Napi::Value
ErrToJs(Napi::Env env, const al_err_t &err);

// Throws an Error carrying the same fields.
void
ThrowErr(Napi::Env env, const al_err_t &err);

} // namespace al

#endif
