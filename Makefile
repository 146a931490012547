# One-word entry points; the build itself is CMake's (CMakePresets.json).
#
# `make test` and `make demo` work on a fresh Debian 12 machine: they install what is missing first.

JOBS ?= $(shell nproc)
BUILD := build/release
CHECK := build/check
FUZZ_ROUNDS ?= 1000000
FUZZ_SECONDS ?= 60
FUZZ_TARGETS := $(basename $(notdir $(wildcard tests/fuzz/fuzz_*.c)))

.PHONY: all deps build test demo matrix fuzz clean help

all: build

deps:
	@tools/install_deps.sh

build:
	cmake --preset release
	cmake --build $(BUILD) -j $(JOBS)

test: deps
	tools/check_layers.sh
	cmake --preset release -B $(CHECK) -DSTRATA_WERROR=ON
	cmake --build $(CHECK) -j $(JOBS)
	ctest --test-dir $(CHECK) -j $(JOBS) --output-on-failure --no-tests=error -LE matrix

demo: deps
	cmake --preset release
	cmake --build $(BUILD) -j $(JOBS) --target strata
	tools/demo.sh $(BUILD)/cli/strata

matrix: deps
	cmake --preset release
	cmake --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -L matrix

# Seeded mutations with any compiler; libFuzzer on every target of tests/fuzz where clang is installed.
fuzz: deps
	cmake --preset asan
	cmake --build build/asan -j $(JOBS) --target test_core_json_fuzz
	build/asan/tests/core/test_core_json_fuzz $(FUZZ_ROUNDS) $$(date +%s)
ifneq ($(shell command -v clang),)
	cmake --preset asan -B build/fuzz -DCMAKE_C_COMPILER=clang -DSTRATA_FUZZ=ON \
	    -DSTRATA_SANITIZE=address,undefined,fuzzer-no-link
	cmake --build build/fuzz -j $(JOBS) --target $(FUZZ_TARGETS)
	set -e; for target in $(FUZZ_TARGETS); do \
	    mkdir -p build/fuzz/new/$$target; \
	    build/fuzz/tests/fuzz/$$target -max_total_time=$(FUZZ_SECONDS) build/fuzz/new/$$target \
	        tests/fuzz/corpus/$${target#fuzz_}; \
	done
else
	@echo "fuzz: clang is not installed, so libFuzzer does not run"
endif

clean:
	rm -rf build

help:
	@echo "make deps     install what is missing (Debian, Ubuntu)"
	@echo "make build    library, program, tests and benches into $(BUILD)"
	@echo "make test     install, build with warnings as errors, run all tests but the full matrix"
	@echo "make demo     install, build, train with state on three tiers and compare digests"
	@echo "make matrix   the full product of placements, policies and methods (hours)"
	@echo "make fuzz     mutated input into the parsers under sanitizers (FUZZ_ROUNDS, FUZZ_SECONDS)"
	@echo "make clean    remove build/"
