# One-word entry points; the build itself is CMake's (CMakePresets.json).
#
# `make test`, `make demo` and `make demo-chat` work on a fresh Debian 12 machine with make: they install what else is missing first.

JOBS ?= $(shell nproc)
# Some tests wait for disks and for each other's time limits more than they compute.
TESTS_AT_ONCE := $(shell expr $(JOBS) + 2)
BUILD := build/release
CHECK := build/check
# Kernels take most of a build's time, for each architecture; tests need the oldest one's code, which newer GPUs run, too.
CHECK_GPU := 80
# Without a GPU nobody runs that code: it is compiled, and no more (target cuda_resources sees what it takes of a GPU).
CHECK_DRAFT := $(if $(wildcard /dev/nvidia0),OFF,ON)
# What `cmake --install` installs: the demo builds it, too, so that both orders work.
INSTALLED := strata strata_lib strata_shared
PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_ROUNDS ?= 1000000
FUZZ_SECONDS ?= 60

.PHONY: all deps build test test-caps test-python demo demo-chat install matrix fuzz clean help

all: build

deps:
	@tools/install_deps.sh

build:
	cmake --preset release
	cmake --build $(BUILD) -j $(JOBS)

test:
	@tools/install_deps.sh test
	tools/check_layers.sh
	tools/check_links.sh
	cmake --preset release -B $(CHECK) -DSTRATA_WERROR=ON -DSTRATA_CUDA_ARCHITECTURES=$(CHECK_GPU) -DSTRATA_CUDA_DRAFT=$(CHECK_DRAFT)
	cmake --build $(CHECK) -j $(JOBS)
	ctest --test-dir $(CHECK) -j $(TESTS_AT_ONCE) --output-on-failure --no-tests=error -LE matrix

# Of a build that `make test` has made.
test-caps:
	tools/test_caps.sh $(CHECK)

# With torch and others from the network, into a virtual environment below build/; `make test` runs what needs none of them.
test-python: deps
	tools/test_python.sh build/python

demo: deps
	cmake --preset release
	cmake --build $(BUILD) -j $(JOBS) --target $(INSTALLED)
	tools/demo.sh $(BUILD)/cli/strata

demo-chat: deps
	cmake --preset release
	cmake --build $(BUILD) -j $(JOBS) --target $(INSTALLED)
	tools/demo_chat.sh $(BUILD)/cli/strata

# As another user than the one who builds: `make build`, then `sudo make install`.
install:
	@[ -f $(BUILD)/CMakeCache.txt ] || cmake --preset release -B $(BUILD)
	cmake --build $(BUILD) -j $(JOBS) --target $(INSTALLED)
	DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)"

matrix: deps
	cmake --preset release
	cmake --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -L matrix

# Seeded mutations with any compiler; libFuzzer on every target of tests/fuzz where clang is installed.
fuzz:
	@tools/install_deps.sh test
	cmake --preset asan -DSTRATA_CUDA=OFF
	cmake --build build/asan -j $(JOBS) --target test_core
	build/asan/tests/core/test_core json_fuzz $(FUZZ_ROUNDS) $$(date +%s)
	tools/fuzz_short.sh $(FUZZ_SECONDS) $(JOBS)

clean:
	rm -rf build

help:
	@echo "make deps     install what is missing (Debian, Ubuntu)"
	@echo "make build    library, program, tests and benches into $(BUILD)"
	@echo "make test     install, build with warnings as errors, run all tests but the full matrix"
	@echo "make test-caps  the tests under each cap of oneDNN's instruction set, and with 1, 2, 3 workers (hours); a table of what failed"
	@echo "make test-python  the Python package as pip installs it, with torch, matplotlib, transformers, accelerate, peft, trl and evaluate (from the network)"
	@echo "make demo     install, build, train with state on three tiers and compare digests"
	@echo "make demo-chat  install, build, train a small model and an adapter that answers questions about strata"
	@echo "make install  program, library, headers, examples and documents into PREFIX ($(PREFIX)), below DESTDIR"
	@echo "make matrix   the full product of placements, policies and methods (hours)"
	@echo "make fuzz     mutated input into the parsers under sanitizers (FUZZ_ROUNDS, FUZZ_SECONDS)"
	@echo "make clean    remove build/"
