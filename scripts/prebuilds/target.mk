# SPDX-License-Identifier: Apache-2.0
# One target of scripts/build-prebuilds, cross-built with zig; that script sets the variables and checks what comes out.
#   TARGET  linux-x64, linux-arm64, linux-x64-musl, linux-arm64-musl, darwin-arm64; guest: the lane agents of both processors
#   ZIG     the compiler            LIBARCHIVE, SQLITE, NODE_INCLUDE    the pinned sources
#   O       where objects go        OUT     prebuilds/
OS := $(if $(filter darwin-%,$(TARGET)),darwin,linux)
ARCH := $(word 2,$(subst -, ,$(TARGET)))
MUSL := $(filter %-musl,$(TARGET))
CPU := $(if $(filter x64,$(ARCH)),x86_64,aarch64)
# The oldest systems served: Debian 10 and its contemporaries, macOS 13.
TRIPLE := $(CPU)-$(if $(filter darwin,$(OS)),macos.13.0,linux-$(if $(MUSL),musl,gnu.2.28))
# Without a libc of its own: the same file runs on every Linux.
STATIC := $(if $(filter linux,$(OS)),$(CPU)-linux-musl,$(TRIPLE))
OTHER := $(if $(filter darwin,$(OS)),linux,darwin)

COMMON := -g0 -fvisibility=hidden -fstack-protector-strong -fno-sanitize=undefined -ffunction-sections -fdata-sections -D_GNU_SOURCE \
  -ffile-prefix-map=$(CURDIR)/=
FORTIFY := -D_FORTIFY_SOURCE=2
SHARED := -target $(TRIPLE) -O2 -fPIC $(if $(MUSL),,$(FORTIFY)) $(COMMON)
PROGRAM := -target $(STATIC) -Os $(if $(filter darwin,$(OS)),$(FORTIFY),-static -fPIE -pie) $(COMMON) -std=c11 -Isrc
WARN := -Wall -Wextra -Wno-gnu-statement-expression

include src/sources.mk

# libarchive: plain tar, to and fro. SQLite: JSON, WAL and what the registry asks of them; no extension can be loaded.
ARCHIVE := acl check_magic entry entry_copy_stat entry_sparse entry_stat entry_strmode entry_xattr options rb read read_open_fd \
  read_set_options read_support_format_tar string string_sprintf util virtual write write_add_filter_none write_open_fd \
  write_set_format_pax write_set_format_ustar write_set_options
ARCHIVE_OBJ := $(ARCHIVE:%=$(O)/libarchive/%.o) $(O)/filetype.o
SQLITE_FLAGS := -DSQLITE_THREADSAFE=2 -DSQLITE_OMIT_LOAD_EXTENSION -DSQLITE_OMIT_DEPRECATED -DSQLITE_OMIT_SHARED_CACHE -DSQLITE_DQS=0 \
  -DSQLITE_DEFAULT_MEMSTATUS=0 -DSQLITE_USE_URI=0 -DSQLITE_UNTESTABLE -DHAVE_USLEEP=1 -DHAVE_STDINT_H=1
CORE_OBJ := $(CORE_SRC:src/%.c=$(O)/core/%.o)
BINDING_OBJ := $(patsubst binding/%.cc,$(O)/binding/%.o,$(wildcard binding/*.cc))
HEADERS := $(wildcard src/*.h binding/*.h src/keeper/*.h src/warden/*.h src/agent/*.h)

ifeq ($(OS),darwin)
LINK := -Wl,-undefined,dynamic_lookup -Wl,-dead_strip -Wl,-install_name,agent_lane.node
else
LINK := -Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now -Wl,--gc-sections -Wl,--version-script=scripts/prebuilds/exports.map $(if $(MUSL),-dynamic)
endif

ifeq ($(TARGET),guest)
all: $(OUT)/guest/agent-x86_64 $(OUT)/guest/agent-aarch64
else
all: $(OUT)/$(TARGET)/agent_lane.node $(if $(MUSL),,$(OUT)/$(TARGET)/keeper $(OUT)/$(TARGET)/warden)
endif

$(OUT)/$(TARGET)/agent_lane.node: $(BINDING_OBJ) $(CORE_OBJ) $(ARCHIVE_OBJ) $(O)/sqlite3.o scripts/prebuilds/exports.map
	@mkdir -p $(@D)
	$(ZIG) c++ -target $(TRIPLE) -shared -s -o $@ $(filter %.o,$^) $(LINK)
$(O)/core/%.o: src/%.c $(HEADERS)
	@mkdir -p $(@D)
	$(ZIG) cc $(SHARED) -std=c11 $(WARN) -Isrc -I$(NODE_INCLUDE) -isystem $(LIBARCHIVE)/libarchive -isystem $(SQLITE) -c -o $@ $<
$(O)/binding/%.o: binding/%.cc $(HEADERS)
	@mkdir -p $(@D)
	$(ZIG) c++ $(SHARED) -std=c++17 -fno-exceptions -Wall -Wextra -Isrc -Inode_modules/node-addon-api -isystem $(NODE_INCLUDE) -DNAPI_VERSION=9 \
	  -DNODE_ADDON_API_ENABLE_MAYBE -DNODE_ADDON_API_DISABLE_CPP_EXCEPTIONS -DNODE_ADDON_API_DISABLE_DEPRECATED \
	  -DNODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS -DBUILDING_NODE_EXTENSION -c -o $@ $<
$(O)/libarchive/%.o: $(LIBARCHIVE)/libarchive/archive_%.c scripts/prebuilds/config.h
	@mkdir -p $(@D)
	$(ZIG) cc $(SHARED) -w -DPLATFORM_CONFIG_H='"config.h"' -Iscripts/prebuilds -I$(LIBARCHIVE)/libarchive -c -o $@ $<
$(O)/filetype.o: scripts/prebuilds/filetype.c
	@mkdir -p $(@D)
	$(ZIG) cc $(SHARED) $(WARN) -DPLATFORM_CONFIG_H='"config.h"' -Iscripts/prebuilds -isystem $(LIBARCHIVE)/libarchive -c -o $@ $<
$(O)/sqlite3.o: $(SQLITE)/sqlite3.c
	@mkdir -p $(@D)
	$(ZIG) cc $(SHARED) -w $(SQLITE_FLAGS) -c -o $@ $<
$(OUT)/$(TARGET)/keeper: $(KEEPER_SRC) $(HEADERS)
	@mkdir -p $(@D)
	$(ZIG) cc $(PROGRAM) $(WARN) -s -o $@ $(KEEPER_SRC)
$(OUT)/$(TARGET)/warden: $(WARDEN_SRC) $(HEADERS)
	@mkdir -p $(@D)
	$(ZIG) cc $(PROGRAM) $(WARN) -s -o $@ $(WARDEN_SRC)
$(OUT)/guest/agent-%: $(AGENT_SRC) $(HEADERS)
	@mkdir -p $(@D)
	$(ZIG) cc $(patsubst $(STATIC),$*-linux-musl,$(PROGRAM)) $(WARN) -s -o $@ $(AGENT_SRC)
.PHONY: all
