# SPDX-License-Identifier: Apache-2.0
# What the library and the programs are made of, on the system OTHER than which they are built for (darwin or linux).
CORE_SRC := $(filter-out $(wildcard src/platform_$(OTHER)*.c),$(wildcard src/*.c))
AGENT_SRC := $(wildcard src/agent/*.c) src/frame.c src/pacing.c src/sha256.c src/tmp_name.c
KEEPER_SRC := $(filter-out src/keeper/%_$(OTHER).c,$(wildcard src/keeper/*.c)) src/teardown.c src/lima_procs.c src/seal.c src/names.c \
  src/err.c src/utf8.c src/mem.c $(filter-out src/platform_$(OTHER)% src/platform_find.c,$(wildcard src/platform*.c))
WARDEN_SRC := $(filter-out src/warden/%_$(OTHER).c,$(wildcard src/warden/*.c))
