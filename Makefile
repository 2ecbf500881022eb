# SPDX-License-Identifier: Apache-2.0
# The C side without Node: core library, C tests, the guest's lane agent, the warden. The addon is built by binding.gyp.
#   make                   core + C tests (VARIANT=plain|asan|tsan|hooks)        make check-c     build and run the C tests
#   make programs          warden, keeper and the guest's lane agents into prebuilds/
VARIANT ?= plain
OS := $(shell uname -s | tr A-Z a-z)
ARCH := $(shell uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')
B := build/core/$(VARIANT)
PRE := prebuilds/$(OS)-$(ARCH)
CC ?= cc
# What is compiled here is never shipped, so where there is a ccache what it has seen before is taken from it.
CCACHE := $(or $(CCACHE),$(shell command -v ccache))
WARN := -std=c11 -pedantic -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion -Wvla \
  -Wswitch-enum -Wformat=2 -Wno-gnu-statement-expression $(if $(WERROR),-Werror)
HARDEN := -fstack-protector-strong -fvisibility=hidden -D_GNU_SOURCE
OPT_plain := -O2 -g -D_FORTIFY_SOURCE=2
OPT_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT_fuzz := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT_tsan := -O1 -g -fsanitize=thread
# for scripts/chaos: the core stops at the edges of src/hook.h
OPT_hooks := $(OPT_plain) -DAL_HOOKS
DEPS := $(shell pkg-config --cflags libuv libarchive sqlite3 2>/dev/null)
LIBS := $(shell pkg-config --libs libuv libarchive sqlite3 2>/dev/null)
CFLAGS += $(WARN) $(HARDEN) $(OPT_$(VARIANT)) -fPIC -Isrc $(DEPS)
LDFLAGS += $(OPT_$(VARIANT))

OTHER := $(if $(filter darwin,$(OS)),linux,darwin)
include src/sources.mk
CORE_OBJ := $(CORE_SRC:src/%.c=$(B)/%.o) $(if $(filter hooks,$(VARIANT)),$(B)/hooks.o)
# whole engines on stand-ins, which live from /proc, memfd_create and mount namespaces
LINUX_ONLY := $(if $(filter linux,$(OS)),,test/c/test_oom_engine.c test/c/test_exhaust.c test/c/test_disk.c test/c/test_simulation.c test/c/test_admission.c test/c/test_reaper.c test/c/test_db_faults.c)
TESTS := $(patsubst test/c/%.c,$(B)/%,$(filter-out $(LINUX_ONLY),$(wildcard test/c/test_*.c)))
# what the C tests drive: the shipped agent, or the one with sanitizers (Linux only)
AGENT_TEST := $(if $(filter linux,$(OS)),$(if $(filter asan,$(VARIANT)),$(B)/agent,prebuilds/guest/agent-$(shell uname -m)))

all: $(B)/libal_core.a $(TESTS)

$(B)/libal_core.a: $(CORE_OBJ)
	@rm -f $@ && ar rcs $@ $^
COMPILE = @mkdir -p $(@D) && $(CCACHE) $(CC) $(CFLAGS)
$(B)/hooks.o: test/chaos/hooks.c
	$(COMPILE) -MMD -MP -c -o $@ $<
$(B)/%.o: src/%.c
	$(COMPILE) -MMD -MP -c -o $@ $<
# what TSan would not see by itself
SEEN := $(if $(filter tsan,$(VARIANT)),$(B)/tsan_syscall.o)
$(B)/tsan_syscall.o: test/c/tsan_syscall.c
	$(COMPILE) -c -o $@ $<
$(B)/test_%.o: test/c/test_%.c
	$(COMPILE) -Itest/c -MMD -MP -c -o $@ $<
$(B)/test_%: $(B)/test_%.o $(B)/libal_core.a $(SEEN)
	@$(CC) -o $@ $< $(SEEN) $(B)/libal_core.a $(LDFLAGS) -lcmocka $(LIBS) -lpthread

# the guests that have been taken over
$(B)/hostile_%: test/fixtures/hostile_%.c src/frame.c src/sha256.c src/frame.h test/fixtures/hostile.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $(filter %.c,$^) $(LDFLAGS)
$(B)/test_chan_hostile: $(B)/hostile_agent
$(B)/test_xfer_hostile: $(B)/hostile_out

# both ends of the channel in one process; what the simulation has of libuv and the platform comes first
SIM := test/fuzz/sim_uv.c test/fuzz/sim_agent.c
$(B)/test_chan_model: test/c/test_chan_model.c $(SIM) $(wildcard test/fuzz/*.h src/agent/*.[ch]) $(B)/libal_core.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Itest/c -Itest/fuzz -o $@ $(filter %.c,$(filter test/%,$^)) $(B)/libal_core.a \
	  -Wl,--allow-multiple-definition $(LDFLAGS) -lcmocka $(LIBS) -lpthread

# Fuzzers: with libFuzzer (VARIANT=fuzz CC=clang), else with a driver of our own that runs over the corpus and mutations of it.
FUZZERS := frame lines utf8 chan agent tree untar
$(B)/fuzz_%: test/fuzz/fuzz_%.c test/fuzz/driver.c $(SIM) $(wildcard test/fuzz/*.h src/agent/*.[ch]) $(B)/libal_core.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Itest/fuzz -o $@ $< $(if $(filter chan agent,$*),$(SIM)) $(if $(filter fuzz,$(VARIANT)),-fsanitize=fuzzer,test/fuzz/driver.c) \
	  $(B)/libal_core.a -Wl,--allow-multiple-definition $(LDFLAGS) $(LIBS) -lpthread
fuzzers: $(FUZZERS:%=$(B)/fuzz_%)

# The addon with a variant's flags, for scripts/sanitize and scripts/mutants; the one that is shipped comes from binding.gyp.
ADDON_SRC := $(wildcard binding/*.cc)
NODE_INCLUDE ?= $(firstword $(wildcard $(dir $(shell command -v node))../include/node /usr/include/node))
ADDON_FLAGS := -std=c++17 -fPIC -fvisibility=hidden -Wall -Wextra -Wno-maybe-uninitialized $(OPT_$(VARIANT)) -Isrc -Inode_modules/node-addon-api \
  -I$(NODE_INCLUDE) -DNAPI_VERSION=9 -DNODE_ADDON_API_ENABLE_MAYBE -DNODE_ADDON_API_DISABLE_CPP_EXCEPTIONS \
  -DNODE_ADDON_API_DISABLE_DEPRECATED -DNODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS
ADDON_OBJ := $(ADDON_SRC:binding/%.cc=$(B)/binding/%.o)
$(B)/binding/%.o: binding/%.cc
	@mkdir -p $(@D) && $(CCACHE) $(CXX) $(ADDON_FLAGS) -MMD -MP -c -o $@ $<
$(B)/agent_lane.node: $(ADDON_OBJ) $(B)/libal_core.a
	@$(CXX) $(ADDON_FLAGS) -shared -o $@ $^ -Wl,-z,nodelete,--exclude-libs,ALL $(shell pkg-config --libs libarchive sqlite3)

# one test program: make run-test_buf
run-%: $(B)/% $(AGENT_TEST)
	AL_AGENT=$(AGENT_TEST) timeout 300 $<
check-c: $(TESTS) $(AGENT_TEST)
	AL_AGENT=$(AGENT_TEST) scripts/run-c-tests $(TESTS)
# Every allocation, where check-c fails some of the long scenarios only.
check-oom: $(B)/test_oom_engine $(AGENT_TEST)
	AL_OOM=all AL_AGENT=$(AGENT_TEST) LIMIT=7200 scripts/run-c-tests $(B)/test_oom_engine
# What has threads or is called from several, for VARIANT=tsan. Addresses are fixed because TSan's shadow does not cover all places.
# Whole engines, too, since test/c/tsan_syscall.c shows TSan what libuv closes.
THREADED := work proc db db_aside registry registry_adopt registry_history registry_lease registry_queue sweep keeper_link event chan chan_flow chan_end exec exec_end xfer_in xfer_in_tree xfer_in_kill xfer_out xfer_out_end xfer_tree transport lima_boot lima_destroy home image \
  engine_end admission reaper exhaust disk
check-threads: $(THREADED:%=$(B)/test_%) $(AGENT_TEST)
	AL_AGENT=$(AGENT_TEST) TSAN_OPTIONS=die_after_fork=0:second_deadlock_stack=1 LIMIT=600 setarch -R scripts/run-c-tests $(THREADED:%=$(B)/test_%)
# Everything: where valgrind 3.19 has no pidfd_open and openat2, the platform layer takes its other way, so nothing is skipped.
VALGRIND := valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
  --child-silent-after-fork=yes
# Not those that count descriptors, of which valgrind keeps some, or run hundreds of lanes: the leaks of these are ASan's. Nor those whose
# processes judge each other: valgrind shows a process another path of its program than it shows the others.
VALGRINDED := $(filter-out $(B)/test_registry_queue $(B)/test_oom_engine $(B)/test_exhaust $(B)/test_disk $(B)/test_simulation $(B)/test_admission $(B)/test_reaper $(B)/test_db_faults,$(TESTS))
check-valgrind: $(VALGRINDED) $(AGENT_TEST)
	AL_AGENT=$(AGENT_TEST) WRAP="$(VALGRIND)" scripts/run-c-tests $(VALGRINDED)
# the agent with sanitizers, for its own tests; without the search for leaks, which a SIGCONT stops for ever (no_leaks.c)
$(B)/agent: $(AGENT_SRC) $(wildcard src/agent/*.h) src/frame.h src/pacing.h src/sha256.h src/tmp_name.h
	@mkdir -p $(@D)
	$(CC) $(filter-out -fPIC,$(CFLAGS)) -o $@ $(AGENT_SRC) test/c/no_leaks.c $(LDFLAGS)

# and the warden and the keeper, for theirs
$(B)/warden: $(WARDEN_SRC) $(wildcard src/warden/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $(WARDEN_SRC) $(LDFLAGS)
$(B)/test_warden $(B)/test_warden_end $(B)/test_warden_port: $(B)/warden
$(B)/keeper: $(KEEPER_SRC) $(wildcard src/keeper/*.h src/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $(KEEPER_SRC) $(LDFLAGS)
$(B)/test_keeper $(B)/test_keeper_link $(B)/test_oom_engine $(B)/test_exhaust $(B)/test_disk $(B)/test_simulation $(B)/test_admission $(B)/test_reaper $(B)/test_db_faults: $(B)/keeper

# Guest agents: static, any Linux kernel of the last years. musl for our own processor, Debian's cross compiler for the other one. Where
# there is no such compiler (macOS) scripts/build-prebuilds makes them.
AGENT_FLAGS := -std=c11 -pedantic -Wall -Wextra -Wshadow -Wconversion -Os -s -static -D_GNU_SOURCE -Isrc $(if $(WERROR),-Werror)
AGENT_CC_x86_64 ?= $(if $(filter linux-x64,$(OS)-$(ARCH)),musl-gcc,x86_64-linux-gnu-gcc)
AGENT_CC_aarch64 ?= $(if $(filter linux-arm64,$(OS)-$(ARCH)),musl-gcc,aarch64-linux-gnu-gcc)
AGENTS := $(foreach cpu,x86_64 aarch64,$(if $(shell command -v $(AGENT_CC_$(cpu))),prebuilds/guest/agent-$(cpu)))
prebuilds/guest/agent-%: $(AGENT_SRC) $(wildcard src/agent/*.h) src/frame.h src/pacing.h src/sha256.h src/tmp_name.h
	@mkdir -p $(@D)
	$(AGENT_CC_$*) $(AGENT_FLAGS) -o $@ $(AGENT_SRC)
$(PRE)/warden: $(WARDEN_SRC) $(wildcard src/warden/*.h)
	@mkdir -p $(@D)
	$(CC) $(WARN) $(HARDEN) -O2 -D_FORTIFY_SOURCE=2 -s -Isrc -o $@ $(WARDEN_SRC)
$(PRE)/keeper: $(KEEPER_SRC) $(wildcard src/keeper/*.h src/*.h)
	@mkdir -p $(@D)
	$(CC) $(WARN) $(HARDEN) -Os -D_FORTIFY_SOURCE=2 -s -Isrc -o $@ $(KEEPER_SRC)

# The other ends of scripts/bench, for this machine and for the guest of a lane on it.
build/bench/flow: bench/flow.c src/frame.c src/frame.h
	@mkdir -p $(@D)
	$(AGENT_CC_$(shell uname -m)) $(AGENT_FLAGS) -o $@ bench/flow.c src/frame.c

build/bench/true: bench/true.c
	@mkdir -p $(@D)
	$(AGENT_CC_$(shell uname -m)) $(AGENT_FLAGS) -o $@ bench/true.c

programs: $(AGENTS) $(PRE)/warden $(PRE)/keeper
	@for cpu in x86_64 aarch64; do [ -f prebuilds/guest/agent-$$cpu ] || \
	  echo "no lane agent for $$cpu guests: there is no compiler for it here; scripts/build-prebuilds guest makes them"; done
clean:
	rm -rf build/core prebuilds
-include $(CORE_OBJ:.o=.d) $(TESTS:=.d) $(ADDON_OBJ:.o=.d)
.PHONY: all fuzzers check-c check-oom check-threads check-valgrind programs clean
.SECONDARY:
