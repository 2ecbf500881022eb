# SPDX-License-Identifier: Apache-2.0
# The addon: the C core as a static library, and the Node-API module around it.
{
  "variables": {
    "napi_build_version": "9",
    "NAPI_VERSION": "9",
    "core_cflags": ["<!@(node binding/pkgconfig.cjs --cflags)"],
    "core_libs": ["<!@(node binding/pkgconfig.cjs --libs)"]
  },
  "targets": [
    {
      "target_name": "al_core",
      "type": "static_library",
      "sources": ["<!@(ls src/*.c | grep -v -E '/platform_(linux|darwin)')", "<!@(ls src/platform_$(uname -s | tr A-Z a-z)*.c)"],
      "include_dirs": ["src"],
      "cflags": ["<@(core_cflags)", "-fPIC", "-fvisibility=hidden", "-fstack-protector-strong", "-Wall", "-Wextra"],
      "cflags_c": ["-std=c11"],
      "defines": ["_GNU_SOURCE"],
      "conditions": [
        ["OS=='mac'", {
          "xcode_settings": {
            "GCC_C_LANGUAGE_STANDARD": "c11",
            "GCC_SYMBOLS_PRIVATE_EXTERN": "YES",
            "MACOSX_DEPLOYMENT_TARGET": "13.0",
            "OTHER_CFLAGS": ["<@(core_cflags)"]
          }
        }, {
          "cflags+": ["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
        }]
      ]
    },
    {
      "target_name": "agent_lane",
      "sources": ["binding/addon.cc", "binding/bridge.cc", "binding/values.cc"],
      "include_dirs": ["src"],
      "dependencies": ["al_core", "<!(node -p \"require('node-addon-api').targets\"):node_addon_api_maybe"],
      "defines": ["NAPI_VERSION=9", "NODE_ADDON_API_DISABLE_DEPRECATED", "NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS"],
      "cflags": ["-fvisibility=hidden", "-fstack-protector-strong", "-Wall", "-Wextra"],
      "cflags_cc": ["-std=c++17"],
      "libraries": ["<@(core_libs)"],
      "conditions": [
        ["OS=='mac'", {
          "xcode_settings": {
            "CLANG_CXX_LANGUAGE_STANDARD": "c++17",
            "GCC_SYMBOLS_PRIVATE_EXTERN": "YES",
            "MACOSX_DEPLOYMENT_TARGET": "13.0"
          }
        }, {
          # An engine that could not end in time goes on in its own thread; its code must outlive the environment that loaded it.
          "ldflags": ["-Wl,-z,nodelete", "-Wl,--exclude-libs,ALL"]
        }]
      ]
    }
  ]
}
