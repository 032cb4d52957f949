# plumb: one Makefile, variants side by side (V=release|asan|tsan), no configure step. `make help` lists the targets.
V ?= release
# CUDA=1 adds the backend for NVIDIA GPUs (build/cuda; V=asan: build/asan-cuda): the toolkit is needed, no GPU. CUDA=sim: the same for a
# simulated device (tests/cudasim; build/cudasim, build/asan-cudasim): neither is needed.
CUDA ?= 0
ifneq ($(CUDA),0)
B := build/$(if $(filter release,$(V)),,$(V)-)$(if $(filter sim,$(CUDA)),cudasim,cuda)
else
B := build/$(V)
endif

CC ?= cc
CLANG ?= clang
WERROR ?= -Werror
WARN := -Wall -Wextra -Wshadow -Wvla -Wundef -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter \
	-Wpointer-arith $(WERROR)
OPT_release := -O3 -g
OPT_asan := -O1 -g -DPLUMB_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=undefined
OPT_tsan := -O1 -g -DPLUMB_DEBUG -fsanitize=thread
OPT_fuzz := -O1 -g -DPLUMB_DEBUG -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined
OPT_neon := -O3 -g
ifeq ($(V),fuzz)
CC := $(CLANG)
endif
# V=neon: tests/check alone, for ARM from any machine, static so that qemu-user needs no system of that architecture beside it.
ifeq ($(V),neon)
CC := aarch64-linux-gnu-gcc
endif

# -ffp-contract=off: the C reference must not depend on whether a compiler fuses a*b+c. Never -ffast-math, -march=native.
VERSION := 0.1.0
CFLAGS := -std=c11 -D_GNU_SOURCE -DPLUMB_VERSION='"$(VERSION)"' -Isrc -Iinclude -Itests $(WARN) $(OPT_$(V)) \
	-ffp-contract=off -fno-omit-frame-pointer -MMD -MP
LDFLAGS := $(filter -fsanitize% -fno-sanitize%,$(OPT_$(V)))
LIBS := -levent -levent_pthreads -levent_openssl -lyajl -lpcre2-8 -lutf8proc -lssl -lcrypto -lsqlite3 -lpthread -ledit -lm

# Instruction sets of each architecture, by file-name suffix; a file of another architecture is no part of the build.
ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ISA_x86_64 := avx2 avxvnni avx512 amx
ISA_aarch64 := neon
OTHER_ISA := $(filter-out $(ISA_$(ARCH)),$(ISA_x86_64) $(ISA_aarch64))

SRC := $(filter-out $(foreach isa,$(OTHER_ISA),%_$(isa).c),$(sort $(wildcard src/*/*.c src/*/*/*.c)))
ifeq ($(V),neon)
SRC := $(filter src/base/% src/tensor/% src/kernels/% src/weights/dequant.c,$(SRC))
CUDA := 0
LIBS := -lpthread -lm
LDFLAGS += -static
endif
# The CUDA backend: kernels by nvcc for each architecture of CUDA_ARCHS (90a = compute capability 9.0 with its own instructions), and the
# runtime linked in, so that the program needs nothing of the toolkit. Without it none.c stands in its place.
CUDA_HOME ?= /usr/local/cuda
NVCC ?= $(CUDA_HOME)/bin/nvcc
CUDA_ARCHS ?= 90a
CUDA_ARCH_LIST := $(patsubst sm_%,%,$(if $(filter all,$(CUDA_ARCHS)),80 86 89 90a 100 120,$(CUDA_ARCHS)))
NVCCFLAGS := -O3 -std=c++17 -lineinfo -fmad=false -Isrc -Xcompiler -fno-exceptions,-fno-rtti,-ffp-contract=off \
	$(foreach a,$(CUDA_ARCH_LIST),-gencode=arch=compute_$(a),code=sm_$(a))
ifneq ($(CUDA),0)
SRC := $(filter-out src/kernels/cuda/none.c,$(SRC))
CU := $(sort $(wildcard src/kernels/cuda/*.cu))
LIBS += $(if $(filter 1,$(CUDA)),-L$(CUDA_HOME)/lib64 -lcudart_static) -lstdc++ -ldl -lrt
CUDA_INCLUDE := $(if $(filter 1,$(CUDA)),-isystem $(CUDA_HOME)/include,-Itests/cudasim/include)
else
SRC := $(filter-out $(filter-out src/kernels/cuda/none.c,$(wildcard src/kernels/cuda/*.c)),$(SRC))
endif
# The simulated device. A field that a kernel's format has no use for is a warning to a compiler that cannot tell.
SIM := $(if $(filter sim,$(CUDA)),$(sort $(wildcard tests/cudasim/*.cc)))
SHARED_SECTION := .bss=cudasim_shared,alloc,load,data,contents
CXX ?= c++
CXXFLAGS = -std=c++17 -Itests/cudasim/include -Isrc -Iinclude -Wall -Wextra -Wno-unknown-pragmas -Wno-unused-parameter \
	-Wno-unused-function -Wno-maybe-uninitialized $(WERROR) $(OPT_$(V)) -ffp-contract=off -fno-exceptions -fno-omit-frame-pointer -MMD -MP
OBJ := $(SRC:%.c=$(B)/%.o) $(CU:%.cu=$(B)/%.cu.o) $(SIM:%.cc=$(B)/%.o)
MAIN := $(B)/src/cli/main.o
LIB := $(B)/libplumb-all.a

# Instruction sets follow the file-name suffix and nothing else is built above the baseline. A file's dispatch test (cpu.c) asks
# for every flag that it is compiled with here.
$(B)/src/kernels/cuda/%.o: CFLAGS += $(CUDA_INCLUDE)
$(B)/%_avx2.o: CFLAGS += -mavx2 -mfma -mf16c
$(B)/%_avxvnni.o: CFLAGS += -mavx2 -mfma -mf16c -mavxvnni
$(B)/%_avx512.o: CFLAGS += -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
$(B)/%_amx.o: CFLAGS += -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mamx-tile -mamx-int8 -mamx-bf16
$(B)/%_neon.o: CFLAGS += -march=armv8.2-a+dotprod
# gcc 12 would load every code of a group first and spill the sums. clang does not know the flag.
ifneq ($(V),fuzz)
$(B)/%_neon.o: CFLAGS += -fno-schedule-insns
endif

# Where variables are at each instruction of the inlined kernels takes a quarter of their time to compile; lines do.
$(B)/src/kernels/cpu/%.o: CFLAGS += -g1

# Fuzzers look for faults in parsers; clang takes minutes and a gigabyte to instrument the inlined kernels, which read no input.
ifeq ($(V),fuzz)
$(B)/src/kernels/cpu/%.o: CFLAGS += -fno-sanitize=all
endif

UNIT := $(patsubst tests/unit/%.c,$(B)/tests/unit/%,$(sort $(wildcard tests/unit/t_*.c)))
# What tests share (tests/support), and programs that only tests run (tests/support/serve_script.c: the server without a model).
SUPPORT_MAINS := $(sort $(wildcard tests/support/serve_*.c tests/support/bench_*.c))
SUPPORT_BIN := $(SUPPORT_MAINS:%.c=$(B)/%)
SUPPORT := $(B)/libsupport.a
# Of V=neon what tests/check compares with; the rest needs more than kernels.
SUPPORT_SRC := $(filter-out $(SUPPORT_MAINS),$(sort $(wildcard tests/support/$(if $(filter neon,$(V)),plain_)*.c)))
# Programs made of a whole directory: tests/check (kernels against ref), tests/exact, tests/golden, tests/torture (schedules).
SUITES := $(foreach d,check exact golden sample torture,$(if $(wildcard tests/$(d)/*.c),$(B)/tests/$(d)/$(d)))
# One program per fuzz target. V=fuzz: libFuzzer's main; elsewhere replay.c runs the files and folders that it is given.
FUZZ := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
FUZZ_BIN := $(FUZZ:%=$(B)/tests/fuzz/fuzz_%)
ifeq ($(V),fuzz)
FUZZ_LDFLAGS := -fsanitize=fuzzer
else
FUZZ_MAIN := $(B)/tests/fuzz/replay.o
endif
T ?= $(firstword $(FUZZ))
SECONDS ?= 60

.PHONY: all help clean unit tests check families check-neon exact golden torture fuzz fuzz-bin fuzz-replay lint fmt perf
all: $(B)/plumb ## build the program (build/$(V)/plumb)

help: ## this list
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z -]+):.*## /  make \1|/' | column -t -s '|'
	@echo; echo 'Variants: V=release (default), V=asan (address, undefined), V=tsan, V=fuzz (clang). Tests: ./check'

# A change of flags rebuilds.
FLAGS_NOW := $(CC) $(CFLAGS) $(LDFLAGS) $(LIBS) $(if $(CU),$(NVCC) $(NVCCFLAGS) $(CXX) $(CXXFLAGS))
$(shell mkdir -p $(B); echo '$(subst ','"'"',$(FLAGS_NOW))' | cmp -s - $(B)/flags || echo '$(subst ','"'"',$(FLAGS_NOW))' > $(B)/flags)

$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c $< -o $@

$(B)/%.cu.o: %.cu $(B)/flags
	@mkdir -p $(@D)
	$(if $(filter 1,$(CUDA)),$(NVCC) $(NVCCFLAGS) -MMD -MF $(@:.o=.d),$(CXX) $(CXXFLAGS) -x c++) -c $< -o $@
	$(if $(SIM),@objcopy --rename-section $(SHARED_SECTION) $@)

$(B)/%.o: %.cc $(B)/flags
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -c $< -o $@

$(LIB): $(filter-out $(MAIN),$(OBJ))
	@rm -f $@
	@ar rcs $@ $^

$(B)/plumb: $(MAIN) $(LIB)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$(SUPPORT): $(SUPPORT_SRC:%.c=$(B)/%.o)
	@rm -f $@
	@ar rcs $@ $^

$(SUPPORT_BIN): $(B)/%: $(B)/%.o $(SUPPORT) $(LIB)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$(B)/tests/unit/%: $(B)/tests/unit/%.o $(SUPPORT) $(LIB)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) -lcmocka

.SECONDEXPANSION:
$(B)/tests/check/check $(B)/tests/exact/exact $(B)/tests/golden/golden $(B)/tests/sample/sample $(B)/tests/torture/torture: \
		$$(patsubst %.c,$(B)/%.o,$$(sort $$(wildcard tests/$$(@F)/*.c))) $(SUPPORT) $(LIB)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$(B)/tests/fuzz/fuzz_%: $(B)/tests/fuzz/fuzz_%.o $(FUZZ_MAIN) $(SUPPORT) $(LIB)
	$(CC) $(LDFLAGS) $(FUZZ_LDFLAGS) -o $@ $^ $(LIBS)

tests: $(UNIT) $(SUITES) $(SUPPORT_BIN) $(if $(FUZZ_MAIN),$(FUZZ_BIN)) ## build every test program
unit: $(UNIT) ## build and run the unit tests
	@for t in $(UNIT); do $$t || exit 1; done
check exact golden torture: $$(B)/tests/$$@/$$@ ## run tests/check (kernels), tests/exact, tests/golden or tests/torture
	$<

families: $(B)/tests/golden/golden $(B)/tests/exact/exact ## the families' table: loads, goldens, exactness
	tools/families

check-neon: ## tests/check for ARM, cross-built, a sample of its shapes under qemu-user
	@$(MAKE) --no-print-directory V=neon build/neon/tests/check/check
	qemu-aarch64-static -cpu max build/neon/tests/check/check --quick

fuzz-bin: $(FUZZ_BIN)
fuzz: ## fuzz one parser: make fuzz T=gguf SECONDS=600 (needs clang)
	@$(MAKE) --no-print-directory V=fuzz fuzz-bin
	tools/fuzz $(T) $(SECONDS)
fuzz-replay: $(FUZZ_BIN) ## run the stored fuzz inputs once
	@for t in $(FUZZ); do $(B)/tests/fuzz/fuzz_$$t tests/fuzz/corpus/$$t || exit 1; done

perf: all ## measure speed on the fetched models: tables, build/perf/perf.csv and perf.svg (PERF=--quick to try it)
	tools/measure $(PERF)

lint: all ## format, layers, headers, names, banned calls, sizes
	@tools/lint

fmt: ## format every C file
	clang-format -i $(shell git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh')

clean: ## remove build/
	rm -rf build

-include $(OBJ:.o=.d) $(wildcard $(B)/tests/*/*.d)
