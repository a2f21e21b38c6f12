# kernel-rl: `make help` lists the targets.
BUILD   ?= build
CC      := gcc
SAN     ?=
OPT     ?= $(if $(SAN),-O1 -g1,-O2 -g)
FAST_LD := $(if $(shell command -v ld.lld),-fuse-ld=lld) # links a hundred tests in half of the time
WARN    := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wvla -Wno-format-truncation -Werror
# Names of folders stay out of the objects, so that two checkouts of the same sources build the same bytes.
BASEFLAGS := -std=gnu11 -D_GNU_SOURCE -fno-math-errno -fno-trapping-math -ffp-contract=off -fvisibility=hidden \
             -Isrc -pthread '-ffile-prefix-map=$(CURDIR)=.' $(WARN) $(OPT)
ifneq ($(SAN),)
  BUILD := build/$(if $(filter thread,$(SAN)),tsan,san)
  BASEFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
  LDFLAGS += -fsanitize=$(SAN) $(FAST_LD)
endif
LIBS    := -lmicrohttpd -ljansson -lfyaml -lpcre2-8 -lutf8proc -lsqlite3 -lzstd -lseccomp -lcurl -lcrypto -lm -ldl -lpthread

# Programs with their own main: the product, the runner that hosts native answers in the jail, the tools.
SRC     := $(shell find src -name '*.c' -o -name '*.cu')
MAIN    := src/cli/main.c
RUNNER  := src/verify/jail/runner.c
LIB_SRC := $(filter-out %_test.c src/cuda/% src/dist/mpi/% src/verify/nats/% $(MAIN) $(RUNNER), $(filter %.c,$(SRC)))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
TEST_SRC := $(filter %_test.c,$(SRC))
TEST_BIN := $(TEST_SRC:src/%.c=$(BUILD)/test/%)
FUZZ_SRC := $(wildcard tests/fuzz/*.c)
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=build/fuzz/%)
TOOL_SRC := $(wildcard tools/*.c)
TOOL_BIN := $(TOOL_SRC:tools/%.c=$(BUILD)/tools/%)
BENCH_SRC := $(wildcard bench/*.c)
ifeq ($(wildcard /usr/include/oneapi/dnnl/dnnl.h),) # bench/matmul has oneDNN (libdnnl-dev) as its rival
  BENCH_SRC := $(filter-out bench/matmul.c,$(BENCH_SRC))
endif
BENCH_BIN := $(BENCH_SRC:bench/%.c=$(BUILD)/bench/%)

BIN     := $(BUILD)/kernelrl
RUN_BIN := $(BUILD)/kernelrl-runner

# The CUDA backend is a plugin that the program loads: built where there is nvcc, missed nowhere else. Its runtime is
# linked in, so that a machine needs a driver and nothing more. CUDA_ARCH names compute capabilities ("90", "80 90").
NVCC      ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_LIB  := $(BUILD)/libkernelrl_cuda.so
CUDA_OBJ  := $(patsubst src/cuda/%,$(BUILD)/cuda/%.o,$(basename $(filter src/cuda/%,$(SRC)))) $(BUILD)/cuda/base.o
ifneq ($(NVCC),)
  CUDA_ARCH ?= $(filter 80 89 90 100,$(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch)))
endif
# Ranks over MPI are a plugin for each MPI that there is, since their ABIs differ.
MPI_LIB := $(foreach m,openmpi mpich,$(if $(shell command -v mpicc.$m),$(BUILD)/libkernelrl_$m.so))
# Nothing may be fused or flushed but what the kernels say: their bits are those of the CPU. 90a: with wgmma.
NVFLAGS := -std=c++17 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false -Isrc -cudart static \
           -Xcompiler -fPIC,-fvisibility=hidden,-Wall $(foreach a,$(CUDA_ARCH:90=90a),-gencode arch=compute_$a,code=sm_$a)

# Verifier hosts behind a queue (docs/farm.md): a plugin where there is NATS's client library (libnats-dev).
NATS_LIB := $(if $(wildcard /usr/include/nats/nats.h),$(BUILD)/libkernelrl_nats.so)

.DEFAULT_GOAL := build
.PHONY: build all bundle wheel deb image install uninstall cuda setup demo test test-long test-clients test-faults test-packages test-cheats test-fast test-cuda doctor fmt configuration tidy fuzz bench experiments embedded-model clean help
build: $(BIN) $(RUN_BIN) $(MPI_LIB) $(NATS_LIB) $(if $(NVCC),$(if $(SAN),,$(CUDA_LIB))) ## build the program (default)
all: build $(TOOL_BIN) $(BENCH_BIN)

$(BUILD)/libkernelrl.a: $(LIB_OBJ)
	@rm -f $@ && ar qcsP $@ $^
$(BIN): $(BUILD)/$(MAIN:.c=.o) $(BUILD)/libkernelrl.a
	@echo "  LD $@" && $(CC) $(LDFLAGS) -o $@ $^ $(LIBS)
$(RUN_BIN): $(BUILD)/$(RUNNER:.c=.o)
	@echo "  LD $@" && $(CC) $(filter-out -fsanitize=%,$(LDFLAGS)) -o $@ $^ -ldl -lpthread
# The runner lives under a seccomp filter and an address space limit, where a sanitizer cannot: it never has one.
$(BUILD)/$(RUNNER:.c=.o): BASEFLAGS := $(filter-out -fsanitize=% -fno-sanitize-recover=%,$(BASEFLAGS))
$(BUILD)/%.o: %.c
	@mkdir -p $(@D) && echo "  CC $<" && $(CC) $(BASEFLAGS) -MMD -MP -c -o $@ $<
# The version says which commit it is of. KERNELRL_COMMIT says so where the sources are without their history.
$(BUILD)/src/cli/cmd_help.o: BASEFLAGS += -DKERNELRL_COMMIT='"$(or $(KERNELRL_COMMIT),$(shell git describe --always --dirty 2>/dev/null || echo unknown))"'
$(BUILD)/src/cli/cmd_help.o: $(wildcard $(shell git rev-parse --git-path logs/HEAD 2>/dev/null))
$(BUILD)/src/dashboard/files.o: $(wildcard src/dashboard/page/*)
$(BUILD)/src/cpu/%.o: BASEFLAGS += -O3
$(BUILD)/test/%: src/%.c $(BUILD)/libkernelrl.a
	@mkdir -p $(@D) && echo "  TEST $@" && $(CC) $(BASEFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/libkernelrl.a -lcmocka $(LIBS)
$(BUILD)/tools/%: tools/%.c $(BUILD)/libkernelrl.a
	@mkdir -p $(@D) && $(CC) $(BASEFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/libkernelrl.a $(LIBS)
$(BUILD)/bench/%: bench/%.c $(BUILD)/libkernelrl.a
	@mkdir -p $(@D) && $(CC) $(BASEFLAGS) -O3 -I. -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/libkernelrl.a $(LIBS)
$(BUILD)/bench/matmul: LIBS += -ldnnl -lgomp
$(BUILD)/bench/pool: | $(BUILD)/test/pool/stand_in # its workers
# Fuzz targets are compiled with clang's coverage instrumentation, and of the library what they reach, which the linker
# says when it is given the program's own. They reach nothing of src/cpu, which selects instruction sets by a pragma of
# gcc's. Warnings are left to the normal build, which is gcc's.
FUZZ_CC := clang $(filter-out -W%,$(BASEFLAGS)) -O1 -g1
build/fuzz/obj/%.o: %.c
	@mkdir -p $(@D) && $(FUZZ_CC) -fsanitize=fuzzer-no-link,address,undefined -MMD -MP -c -o $@ $<
build/fuzz/libkernelrl.a: $(FUZZ_SRC:%.c=build/fuzz/obj/%.o) $(BUILD)/libkernelrl.a
	+@reached=$$(ld -r -z muldefs -t -t -o $@.o $^ | sed -n 's|^(.*)$(BUILD)/|build/fuzz/obj/|p') && \
	    $(MAKE) --no-print-directory $$reached && rm -f $@ $@.o && ar qcsP $@ $$reached
.SECONDARY: $(FUZZ_SRC:%.c=build/fuzz/obj/%.o)
build/fuzz/%: build/fuzz/obj/tests/fuzz/%.o build/fuzz/libkernelrl.a
	@echo "  FUZZ $@" && $(FUZZ_CC) -fsanitize=fuzzer,address,undefined $(FAST_LD) -o $@ $^ $(LIBS)

CUDA_LINK := -shared -Xlinker --exclude-libs,ALL,-z,defs -Xcompiler -static-libgcc,-static-libstdc++
$(CUDA_LIB): $(CUDA_OBJ)
	@echo "  LD $@" && $(NVCC) $(NVFLAGS) $(CUDA_LINK) -o $@ $^
$(BUILD)/cuda/%.o: src/cuda/%.cu
	@mkdir -p $(@D) && echo "  NVCC $<" && $(NVCC) $(NVFLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/cuda/%.o: src/cuda/%.c
	@mkdir -p $(@D) && echo "  CC $<" && $(CC) $(BASEFLAGS) -fPIC -isystem $(CUDA_HOME)/include -MMD -MP -c -o $@ $<
$(BUILD)/cuda/base.o: src/base/base.c # what the plugin needs of the program, which exports nothing
	@mkdir -p $(@D) && $(CC) $(BASEFLAGS) -fPIC -MMD -MP -c -o $@ $<

# What the MPI plugin needs of the program, which exports nothing, is in it.
MPI_BASE := $(patsubst %,$(BUILD)/mpi/%.o,base err str)
.SECONDARY: $(MPI_BASE)
$(BUILD)/libkernelrl_%.so: src/dist/mpi/plugin.c src/dist/comm.h $(MPI_BASE)
	@echo "  MPI $@" && mpicc.$* $(BASEFLAGS) $(filter-out -fsanitize=%,$(LDFLAGS)) -Wno-stringop-overflow -fPIC -shared -Wl,-z,defs -o $@ $< $(MPI_BASE)
$(BUILD)/mpi/%.o: src/base/%.c
	@mkdir -p $(@D) && $(CC) $(BASEFLAGS) -fPIC -MMD -MP -c -o $@ $<

# A worker of the pool's tests that judges nothing.
$(BUILD)/test/pool/%: tests/pool/%.c $(BUILD)/libkernelrl.a
	@mkdir -p $(@D) && echo "  TEST $@" && $(CC) $(BASEFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/libkernelrl.a $(LIBS)

$(BUILD)/libkernelrl_nats.so: src/verify/nats/nats.c src/base/err.c src/base/base.c
	@mkdir -p $(@D) && echo "  LD $@" && $(CC) $(filter-out -fsanitize=% -fno-sanitize-recover=%,$(BASEFLAGS)) -fPIC -MMD -MP -shared -o $@ $^ -lnats

# A program of somebody else, built against the library (tests/e2e/library.sh).
$(BUILD)/test/library/%: tests/library/%.c $(BUILD)/libkernelrl.a
	@mkdir -p $(@D) && echo "  TEST $@" && $(CC) $(BASEFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/libkernelrl.a $(LIBS)

# The ops of the plugin against those of the CPU; and the same kernels on an emulated device, which needs no GPU.
CUDA_TEST     := $(BUILD)/test/cuda_plugin
CUDA_EMULATED := $(BUILD)/test/libkernelrl_cuda_emulated.so
EMU_FLAGS     := -g1 -fPIC -DKERNELRL_EMULATED -Itests/cuda/emulate
EMU_CXX        = g++ -x c++ -std=gnu++17 $(filter-out -std=% -W% -Wstrict-prototypes,$(BASEFLAGS)) $(EMU_FLAGS) -mfma
EMU_OBJ       := $(patsubst $(BUILD)/cuda/%,$(BUILD)/emulated/%,$(CUDA_OBJ)) $(BUILD)/emulated/emulate.o
$(CUDA_TEST): tests/cuda/plugin_test.c $(BUILD)/libkernelrl.a
	@mkdir -p $(@D) && echo "  TEST $@" && $(CC) $(BASEFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/libkernelrl.a $(LIBS)
$(CUDA_EMULATED): $(EMU_OBJ)
	@mkdir -p $(@D) && g++ $(LDFLAGS) -shared -o $@ $^ -lm
$(BUILD)/emulated/%.o: src/cuda/%.cu
	@mkdir -p $(@D) && $(EMU_CXX) -MMD -MP -c -o $@ $<
$(BUILD)/emulated/%.o: src/cuda/%.c
	@mkdir -p $(@D) && $(CC) $(BASEFLAGS) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/emulated/base.o: src/base/base.c
	@mkdir -p $(@D) && $(CC) $(BASEFLAGS) -fPIC -MMD -MP -c -o $@ $<
$(BUILD)/emulated/%.o: tests/cuda/emulate/%.cc
	@mkdir -p $(@D) && $(EMU_CXX) -MMD -MP -c -o $@ $<

# What stands in for NCCL between processes with an emulated device each.
$(BUILD)/test/libnccl_stand_in.so: tests/cuda/nccl_stand_in.c
	@mkdir -p $(@D) && $(CC) $(BASEFLAGS) -fPIC -shared -o $@ $<

# A folder that runs on another Linux: the same objects, linked to look for their libraries in ../lib.
BUNDLE       ?= $(BUILD)/bundle
BUNDLE_FLAGS ?=
$(BUILD)/bundled/kernelrl: $(BUILD)/$(MAIN:.c=.o) $(BUILD)/libkernelrl.a
	@mkdir -p $(@D) && echo "  LD $@" && $(CC) $(LDFLAGS) -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib' -o $@ $^ $(LIBS)
$(BUILD)/bundled/libkernelrl_cuda.so: $(CUDA_OBJ)
	@mkdir -p $(@D) && echo "  LD $@" && $(NVCC) $(NVFLAGS) $(CUDA_LINK) -Xlinker --disable-new-dtags,-rpath,'$$ORIGIN/../lib' -o $@ $^

tests-bin: $(TEST_BIN) $(RUN_BIN) $(NATS_LIB)
fuzz-bin: $(FUZZ_BIN)

ifneq ($(NVCC),)
cuda: $(CUDA_LIB) ## build the CUDA backend (make build does it too where there is nvcc)
else
cuda:
	@echo "make cuda: no nvcc: put it on PATH or set NVCC=/path/to/bin/nvcc" >&2; exit 1
endif
bundle: build $(BUILD)/bundled/kernelrl $(if $(NVCC),$(BUILD)/bundled/libkernelrl_cuda.so) ## a folder for a GPU node that has only a driver
	@BUILD=$(BUILD) CUDA_HOME=$(CUDA_HOME) tools/bundle $(BUNDLE_FLAGS) $(BUNDLE)
# The bundle of the wheel is made anew each time, and without cuBLASLt, which is 540 MB.
wheel: build $(BUILD)/bundled/kernelrl $(if $(NVCC),$(BUILD)/bundled/libkernelrl_cuda.so) ## a Python wheel that carries the program: build/wheel/*.whl
	@rm -rf $(BUILD)/wheel && BUILD=$(BUILD) CUDA_HOME=$(CUDA_HOME) tools/bundle --without-cublaslt $(BUILD)/wheel/bundle
	@tools/wheel $(BUILD)/wheel/bundle $(BUILD)/wheel
deb: ## a Debian package: build/deb/kernelrl_*.deb
	@NVCC='$(NVCC)' tools/deb
image: ## a container image of the package, by buildah, which needs no daemon
	@tools/image
PREFIX ?= /usr/local
install: build ## put the program below PREFIX (/usr/local); DESTDIR stands in front of it
	@BUILD='$(BUILD)' PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' SYSCONFDIR='$(SYSCONFDIR)' tools/install
uninstall: ## take it away again
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' SYSCONFDIR='$(SYSCONFDIR)' tools/install --uninstall
setup: ## install the missing system packages (root or sudo), or list them
	@tools/setup
demo: ## set up, build, then train the embedded model and show it learning; DEVICE=cuda: on a GPU
	@tools/setup && $(MAKE) --no-print-directory -j$$(nproc) build && tools/demo
test: ## set up, build, run the tests but the long ones
	@tools/setup test && $(MAKE) --no-print-directory -j$$(nproc) build && tests/run
test-long: ## set up, build, then the tests that take longest, and fuzzing: three quarters of the work
	@tools/setup test && $(MAKE) --no-print-directory -j$$(nproc) build && tests/run --long
test-clients: ## set up and build, then files and modules of other programs, newest releases (6 GB of packages)
	@tools/setup clients && $(MAKE) --no-print-directory -j$$(nproc) build && \
	    KERNELRL_PYTHON=$${KERNELRL_PYTHON:-$$PWD/.venv-clients/bin/python} tests/run --clients
test-faults: ## set up and build, then killed processes, failing writes, a full disk
	@tools/setup faults && $(MAKE) --no-print-directory -j$$(nproc) build && tests/run --faults
test-packages: ## set up, then build every package and install each in a bare Debian: an hour
	@tools/setup packages && $(MAKE) --no-print-directory -j$$(nproc) build && tests/run --packages
test-cheats: build $(BUILD)/test/verify/cheats_test ## every cheat 20 times, on an idle and on a busy machine: hours
	@tests/cheats/run
test-fast: build ## unit tests only
	@tests/run --fast
CUDA_TESTED   := $(if $(wildcard /dev/nvidiactl),$(CUDA_LIB),$(CUDA_EMULATED))
test-cuda: $(CUDA_TEST) $(BIN) $(CUDA_TESTED) ## every CUDA op against the CPU's, on a GPU or emulated
	@$(CUDA_TEST) $(CUDA_TESTED) && KERNELRL_CUDA_PLUGIN=$(CUDA_TESTED) $(BIN) selfcheck ops --device cuda
doctor: build ## what this machine can do
	@$(BIN) doctor
fmt: ## format the sources
	@clang-format -i $$(git ls-files --cached --others --exclude-standard 'src/*.c' 'src/*.h' 'src/*.cu' 'src/*.cuh' 'tests/*.c' \
	    'tests/*.h' 'tools/*.c' 'bench/*.c')
	@if command -v black >/dev/null; then tools/tidy --scripts | xargs black --quiet --line-length=120; fi
configuration: build ## write the tables of docs/configuration.md from the keys
	@tools/configuration
tidy: ## style, include direction, banned calls
	@tools/tidy
fuzz: fuzz-bin ## build the fuzz targets and run each for a minute
	@tests/fuzz/run 60
bench: all ## measure this machine's rates
	@bench/run
experiments: build ## the long runs behind published tables (hours)
	@tools/experiments && tools/experiment_methods
embedded-model: all ## rebuild models/tiny from nothing (hours on two cores)
	@tools/embedded_model
clean: ## remove build products
	rm -rf build
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 26

-include $(shell find build -name '*.d' 2>/dev/null)
