// SPDX-License-Identifier: Apache-2.0
// Conversion of values and errors at the border to JavaScript: typed, bounded in depth, number and bytes.
#include "values.h"

#include <cmath>
#include <string>

namespace al {
namespace {

constexpr double kMaxSafe = 9007199254740991.0;

// One walk over a JavaScript value. `path` is filled from the inside out when something is refused.
struct Reader {
  Napi::Env env;
  size_t nodes = 0;
  size_t bytes = 0;
  std::string path;
  std::string reason;

  explicit Reader(Napi::Env e) : env(e) {}

  al_val_t *
  Refuse(const char *why) {
    reason = why;
    return nullptr;
  }

  al_val_t *
  Made(al_val_t *v) {
    return v != nullptr ? v : Refuse("does not fit into memory");
  }

  bool
  Charge(size_t n) {
    if (n > kMaxBytes - bytes) {
      Refuse("is larger than 256 MiB");
      return false;
    }
    bytes += n;
    return true;
  }

  al_val_t *
  Text(Napi::Value v) {
    size_t n = 0;
    if (napi_get_value_string_utf8(env, v, nullptr, 0, &n) != napi_ok) return Refuse("could not be read");
    if (!Charge(n)) return nullptr;
    std::string s(n + 1, '\0');
    if (napi_get_value_string_utf8(env, v, &s[0], n + 1, &n) != napi_ok) return Refuse("could not be read");
    s.resize(n);
    if (s.find('\0') != std::string::npos) return Refuse("contains a NUL character");
    return Made(al_val_textn(s.data(), n));
  }

  al_val_t *
  Number(Napi::Value v) {
    double d = 0;
    if (napi_get_value_double(env, v, &d) != napi_ok) return Refuse("could not be read");
    if (!std::isfinite(d)) return Refuse("must be a finite number");
    if (d == std::floor(d) && std::fabs(d) <= kMaxSafe) return Made(al_val_int(static_cast<int64_t>(d)));
    return Made(al_val_double(d));
  }

  al_val_t *
  Bytes(Napi::Value v) {
    Napi::TypedArray array = v.As<Napi::TypedArray>();
    if (array.TypedArrayType() != napi_uint8_array)
      return Refuse("must be a Uint8Array or Buffer, not another typed array");
    Napi::Uint8Array data = v.As<Napi::Uint8Array>();
    if (!Charge(data.ByteLength())) return nullptr;
    return Made(al_val_bytes(data.Data() != nullptr ? static_cast<const void *>(data.Data()) : "", data.ByteLength()));
  }

  al_val_t *
  List(Napi::Array array, unsigned depth) {
    al_val_t *list = al_val_list();
    if (list == nullptr) return Made(nullptr);
    for (uint32_t i = 0; i < array.Length(); i++) {
      Napi::Value item;
      al_val_t *v = array.Get(i).UnwrapTo(&item) ? Read(item, depth + 1) : nullptr;
      if (v == nullptr || al_val_add(list, v) != 0) {
        if (v != nullptr) Refuse("does not fit into memory");
        path = "[" + std::to_string(i) + "]" + path;
        al_val_free(list);
        return nullptr;
      }
    }
    return list;
  }

  al_val_t *
  Map(Napi::Object object, unsigned depth) {
    napi_value raw = nullptr;
    if (napi_get_all_property_names(env, object, napi_key_own_only,
                                    static_cast<napi_key_filter>(napi_key_enumerable | napi_key_skip_symbols),
                                    napi_key_numbers_to_strings, &raw) != napi_ok)
      return Refuse("could not be read");
    Napi::Array names(env, raw);
    al_val_t *map = al_val_map();
    if (map == nullptr) return Made(nullptr);
    for (uint32_t i = 0; i < names.Length(); i++) {
      Napi::Value key, item;
      if (!names.Get(i).UnwrapTo(&key) || !object.Get(key).UnwrapTo(&item)) {
        al_val_free(map);
        return nullptr; // what the getter threw is pending
      }
      if (item.IsUndefined()) continue;
      std::string name = key.As<Napi::String>().Utf8Value();
      al_val_t *v = nullptr;
      if (name.find('\0') != std::string::npos) Refuse("contains a NUL character in its name");
      else if (Charge(name.size())) v = Read(item, depth + 1);
      if (v == nullptr || al_val_set(map, name.c_str(), v) != 0) {
        if (v != nullptr) Refuse("does not fit into memory");
        path = "." + name.substr(0, 64) + path;
        al_val_free(map);
        return nullptr;
      }
    }
    return map;
  }

  al_val_t *
  Read(Napi::Value v, unsigned depth) {
    if (depth > kMaxDepth) return Refuse("is nested too deeply (at most 16 levels)");
    if (++nodes > kMaxNodes) return Refuse("has too many entries (at most 100000)");
    switch (v.Type()) {
    case napi_undefined:
    case napi_null: return Made(al_val_null());
    case napi_boolean: return Made(al_val_bool(v.As<Napi::Boolean>().Value()));
    case napi_number: return Number(v);
    case napi_string: return Text(v);
    case napi_object:
      if (v.IsTypedArray()) return Bytes(v);
      if (v.IsArray()) return List(v.As<Napi::Array>(), depth);
      if (v.IsArrayBuffer() || v.IsDataView() || v.IsPromise() || v.IsDate())
        return Refuse("must be plain data: a Buffer, array, object, text, number or boolean");
      return Map(v.As<Napi::Object>(), depth);
    default: return Refuse("must be plain data, not a function, symbol or bigint");
    }
  }
};

void
FreeValue(Napi::Env, uint8_t *, al_val_t *v) {
  al_val_free(v);
}

Napi::Value
External(Napi::Env env, al_val_t *v) {
  return Napi::Buffer<uint8_t>::NewOrCopy(env, reinterpret_cast<uint8_t *>(v->text), v->len, FreeValue, v);
}

Napi::Value
Copy(Napi::Env env, const al_val_t *v) {
  return Napi::Buffer<uint8_t>::Copy(env, reinterpret_cast<const uint8_t *>(v->text != nullptr ? v->text : ""), v->len);
}

// The entry at `slot` of a list or map; large bytes leave the tree, a null takes their place.
Napi::Value
Entry(Napi::Env env, al_val_t **slot) {
  al_val_t *v = *slot;
  if (v != nullptr && v->kind == AL_BYTES && v->len > kCopyBelow) {
    al_val_t *null = al_val_null();
    if (null != nullptr) {
      *slot = null;
      return External(env, v);
    }
  }
  return ToJs(env, v);
}

void
Describe(Napi::Env env, Napi::Object o, const al_err_t &err) {
  (void) o.Set("code", Napi::String::New(env, al_err_name(err.code)));
  (void) o.Set("number", Napi::Number::New(env, err.code));
  if (err.step[0] != '\0') (void) o.Set("step", Napi::String::New(env, err.step));
  if (err.lane[0] != '\0') (void) o.Set("lane", Napi::String::New(env, err.lane));
  const char *cure = al_err_cure_text(&err);
  (void) o.Set("cure", Napi::String::New(env, cure != nullptr ? cure : ""));
}

} // namespace

al_val_t *
FromJs(Napi::Env env, Napi::Value value, const char *name) {
  Reader reader(env);
  al_val_t *v = reader.Read(value, 0);
  if (v == nullptr && !env.IsExceptionPending())
    Napi::TypeError::New(env, name + reader.path + " " + reader.reason).ThrowAsJavaScriptException();
  return v;
}

Napi::Value
ToJs(Napi::Env env, al_val_t *v) {
  if (v == nullptr) return env.Null();
  switch (v->kind) {
  case AL_NULL: return env.Null();
  case AL_BOOL: return Napi::Boolean::New(env, v->b);
  case AL_INT: return Napi::Number::New(env, static_cast<double>(v->i));
  case AL_DOUBLE: return Napi::Number::New(env, v->d);
  case AL_TEXT: return Napi::String::New(env, v->text != nullptr ? v->text : "", v->len);
  case AL_BYTES: return Copy(env, v);
  case AL_LIST: {
    Napi::Array list = Napi::Array::New(env, v->len);
    for (size_t i = 0; i < v->len; i++) {
      Napi::Value item = Entry(env, &v->items[i]);
      if (item.IsEmpty() || list.Set(static_cast<uint32_t>(i), item).IsNothing()) return Napi::Value();
    }
    return list;
  }
  case AL_MAP: {
    Napi::Object map = Napi::Object::New(env);
    for (size_t i = 0; i < v->len; i++) {
      Napi::Value item = Entry(env, &v->items[i]);
      // Defined, not assigned: a key such as __proto__ must stay plain data.
      if (item.IsEmpty() ||
        map.DefineProperty(Napi::PropertyDescriptor::Value(v->keys[i], item, napi_default_jsproperty)).IsNothing())
        return Napi::Value();
    }
    return map;
  }
  }
  return env.Null();
}

Napi::Value
ToJsTake(Napi::Env env, al_val_t *v) {
  if (v != nullptr && v->kind == AL_BYTES && v->len > kCopyBelow) return External(env, v);
  Napi::Value js = ToJs(env, v);
  al_val_free(v);
  return js;
}

Napi::Value
ErrToJs(Napi::Env env, const al_err_t &err) {
  Napi::Object o = Napi::Object::New(env);
  (void) o.Set("message", Napi::String::New(env, err.msg));
  Describe(env, o, err);
  return o;
}

void
ThrowErr(Napi::Env env, const al_err_t &err) {
  Napi::Error error = Napi::Error::New(env, err.msg);
  Describe(env, error.Value(), err);
  error.ThrowAsJavaScriptException();
}

} // namespace al
