// SPDX-License-Identifier: Apache-2.0
// One engine: requests go in through post(), events come back through one thread-safe function, many in one call.
//
// Theory of operation. The engine thread puts every event into a queue under a mutex and wakes JavaScript once for each
// turn of its loop, so one call carries whatever has gathered. The queue is bounded by the core's credits: LINES and
// BYTES stop when JavaScript does not give them back with taken(), those of one stream are one event however small they
// came, and of each copy's PROGRESS only the newest is kept. The thread-safe function holds the event loop open exactly
// while requests are unanswered. The environment's clean-up hook is added after the thread-safe function's own and
// therefore runs before it: when that function dies, the engine thread has already ended.
#include "bridge.h"

#include "values.h"
#include <cmath>
#include <mutex>
#include <string>

namespace al {
namespace {

constexpr unsigned kCleanupMs = 2000;

struct Core;
void
Deliver(Napi::Env env, Napi::Function callback, Core *core, void *);
using Waker = Napi::TypedThreadSafeFunction<Core, void, Deliver>;

struct Core {
  al_engine_t *engine = nullptr; // JavaScript thread only; null once closed
  Waker waker;
  unsigned open = 0; // unanswered requests; JavaScript thread only
  std::mutex mutex;
  al_event_t *head = nullptr, *tail = nullptr; // under mutex
  bool news = false;                           // under mutex: the queue has what JavaScript was not woken for

  ~Core() {
    FreeAll(Take());
  }

  void
  Push(al_event_t *e) {
    e->next = nullptr;
    std::lock_guard<std::mutex> lock(mutex);
    if (al_event_join(head, e)) return;
    if (head == nullptr) head = e;
    else tail->next = e;
    tail = e;
    news = true;
  }

  // Once for all that came in one turn of the engine. A refusal means that the environment is going away; the events
  // are then freed with the queue.
  void
  Wake() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!news || head == nullptr) return;
      news = false;
    }
    waker.NonBlockingCall();
  }

  al_event_t *
  Take() {
    std::lock_guard<std::mutex> lock(mutex);
    al_event_t *list = head;
    head = tail = nullptr;
    news = false;
    return list;
  }

  static void
  FreeAll(al_event_t *list) {
    while (list != nullptr) {
      al_event_t *next = list->next;
      al_event_free(list);
      list = next;
    }
  }
};

const char *
TypeName(al_event_type_t type) {
  switch (type) {
  case AL_EVENT_DONE: return "done";
  case AL_EVENT_ERROR: return "error";
  case AL_EVENT_LINES: return "lines";
  case AL_EVENT_BYTES: return "bytes";
  case AL_EVENT_DRAIN: return "drain";
  case AL_EVENT_PROGRESS: return "progress";
  case AL_EVENT_LANE: return "lane";
  }
  return "unknown";
}

Napi::Value
EventToJs(Napi::Env env, al_event_t *e) {
  Napi::Object o = Napi::Object::New(env);
  (void) o.Set("type", Napi::String::New(env, TypeName(e->type)));
  (void) o.Set("id", Napi::Number::New(env, e->id));
  if (e->type == AL_EVENT_BYTES || e->type == AL_EVENT_LINES) (void) o.Set("sub", Napi::Number::New(env, e->sub));
  if (e->type == AL_EVENT_ERROR) (void) o.Set("error", ErrToJs(env, e->err));
  if (e->value == nullptr) return o;
  al_val_t *value = e->value;
  e->value = nullptr;
  Napi::Value js = ToJsTake(env, value);
  if (js.IsEmpty()) return Napi::Value();
  (void) o.Set("value", js);
  return o;
}

// JavaScript thread, from the thread-safe function. Without an environment everything is being torn down: `core` may be
// gone.
void
Deliver(Napi::Env env, Napi::Function callback, Core *core, void *) {
  if (env == nullptr) return;
  al_event_t *list = core->Take();
  if (list == nullptr) return;
  Napi::HandleScope scope(env);
  Napi::Array batch = Napi::Array::New(env);
  uint32_t n = 0;
  unsigned answered = 0;
  for (al_event_t *e = list; e != nullptr; e = e->next) {
    if (e->type == AL_EVENT_DONE || e->type == AL_EVENT_ERROR) answered++;
    Napi::Value js = EventToJs(env, e);
    if (!js.IsEmpty()) (void) batch.Set(n++, js);
  }
  Core::FreeAll(list);
  bool idle = answered > 0 && answered >= core->open;
  core->open = idle ? 0 : core->open - answered;
  if (idle) core->waker.Unref(env);
  if (env.IsExceptionPending()) return; // out of memory in V8: it becomes an uncaught exception
  (void) callback.Call({batch});
}

void
OnEvent(void *data, al_event_t *event) {
  static_cast<Core *>(data)->Push(event);
}

void
OnTurn(void *data) {
  static_cast<Core *>(data)->Wake();
}

int
CloseCore(Core *core, unsigned timeout_ms) {
  if (core->engine == nullptr) return 0;
  al_engine_t *engine = core->engine;
  core->engine = nullptr;
  int left = al_engine_close(engine, timeout_ms);
  // No event comes from here on. Released, not aborted: answers that wait in the queue still reach their promises.
  core->waker.Release();
  return left;
}

void
CleanUp(void *data) {
  CloseCore(static_cast<Core *>(data), kCleanupMs);
}

void
Throw(Napi::Env env, const char *message) {
  Napi::TypeError::New(env, message).ThrowAsJavaScriptException();
}

bool
ReadUint32(const Napi::CallbackInfo &info, size_t index, const char *name, uint32_t *out) {
  Napi::Value v = info[index];
  double d = v.IsNumber() ? v.As<Napi::Number>().DoubleValue() : -1;
  if (!(d >= 0 && d <= 4294967295.0 && d == std::floor(d))) {
    Napi::TypeError::New(info.Env(), std::string(name) + " must be an integer from 0 to 4294967295")
      .ThrowAsJavaScriptException();
    return false;
  }
  *out = static_cast<uint32_t>(d);
  return true;
}

class Engine : public Napi::ObjectWrap<Engine> {
public:
  explicit Engine(const Napi::CallbackInfo &info) : Napi::ObjectWrap<Engine>(info) {
    Napi::Env env = info.Env();
    std::string dir = info[0].As<Napi::String>().Utf8Value(); // both were checked by OpenEngine, the only way here
    Core *core = new Core();
    core->waker = Waker::New(env, info[1].As<Napi::Function>(), "agent-lane", 0, 1, core,
                             [](Napi::Env, void *, Core *c) { delete c; }, static_cast<void *>(nullptr));
    if (env.IsExceptionPending()) {
      delete core;
      return;
    }
    core->waker.Unref(env);
    al_engine_opts_t opts = {dir.c_str(), OnEvent, OnTurn, core};
    al_err_t err = {};
    if (al_engine_open(&opts, &core->engine, &err) != 0) {
      core->engine = nullptr;
      core->waker.Release(); // deletes core
      ThrowErr(env, err);
      return;
    }
    core_ = core;
    napi_add_env_cleanup_hook(env, CleanUp, core);
    Ref(); // until closed: a lost reference must not stop lanes from inside the garbage collector
  }

  Napi::Value
  Post(const Napi::CallbackInfo &info) {
    Napi::Env env = info.Env();
    uint32_t id = 0;
    if (!ReadUint32(info, 0, "id", &id)) return Napi::Value();
    if (!info[1].IsString()) return Throw(env, "op must be a string"), Napi::Value();
    if (!info[2].IsObject() || info[2].IsArray() || info[2].IsTypedArray())
      return Throw(env, "params must be an object"), Napi::Value();
    std::string op = info[1].As<Napi::String>().Utf8Value();
    al_val_t *params = FromJs(env, info[2], "params");
    if (params == nullptr) return Napi::Value();
    // Looked up last: a getter in params may have closed the engine.
    if (core_ == nullptr) {
      al_val_free(params);
      Napi::Error::New(env, "the engine is closed").ThrowAsJavaScriptException();
      return Napi::Value();
    }
    if (core_->open++ == 0) core_->waker.Ref(env);
    if (al_engine_post(core_->engine, id, op.c_str(), params) != 0) {
      if (--core_->open == 0) core_->waker.Unref(env);
      al_err_t err = {};
      al_err_set(&err, AL_ENO_MEMORY, "%s: out of memory", op.c_str());
      ThrowErr(env, err);
      return Napi::Value();
    }
    return env.Undefined();
  }

  Napi::Value
  Taken(const Napi::CallbackInfo &info) {
    uint32_t id = 0, sub = 0, n = 0;
    if (!ReadUint32(info, 0, "id", &id) || !ReadUint32(info, 1, "sub", &sub) || !ReadUint32(info, 2, "n", &n))
      return Napi::Value();
    if (core_ != nullptr) al_engine_taken(core_->engine, id, static_cast<int>(sub), n);
    return info.Env().Undefined();
  }

  Napi::Value
  Close(const Napi::CallbackInfo &info) {
    Napi::Env env = info.Env();
    uint32_t ms = 0;
    if (!ReadUint32(info, 0, "timeoutMs", &ms)) return Napi::Value();
    if (core_ == nullptr) return Napi::Number::New(env, 0);
    Core *core = core_;
    core_ = nullptr;
    napi_remove_env_cleanup_hook(env, CleanUp, core);
    int left = CloseCore(core, ms);
    Unref();
    return Napi::Number::New(env, left);
  }

private:
  Core *core_ = nullptr;
};

} // namespace

bool
DefineEngine(Napi::Env env, AddonData *data) {
  Napi::Function cls = Engine::DefineClass(env, "Engine",
                                           {Engine::InstanceMethod<&Engine::Post>("post"),
                                            Engine::InstanceMethod<&Engine::Taken>("taken"),
                                            Engine::InstanceMethod<&Engine::Close>("close")});
  if (cls.IsEmpty()) return false;
  data->engine_class = Napi::Persistent(cls);
  return true;
}

Napi::Value
OpenEngine(const Napi::CallbackInfo &info) {
  Napi::Env env = info.Env();
  if (!info[0].IsString()) return Throw(env, "packageDir must be a string"), Napi::Value();
  std::string dir = info[0].As<Napi::String>().Utf8Value();
  if (dir.empty() || dir.find('\0') != std::string::npos) return Throw(env, "packageDir must be a path"), Napi::Value();
  if (!info[1].IsFunction()) return Throw(env, "onEvents must be a function"), Napi::Value();
  AddonData *data = env.GetInstanceData<AddonData>();
  Napi::Object engine;
  if (!data->engine_class.New({info[0], info[1]}).UnwrapTo(&engine)) return Napi::Value();
  return engine;
}

} // namespace al
