# The front door. Each target is a line or two of CMake, ctest or a script; HACKING.md tells more.
SECS  ?=
SEED  ?= 1
FIRST ?= 1
SEEDS ?= 1000
JOBS  ?= $(shell nproc 2>/dev/null || echo 2)
BUILD := cmake --build --parallel $(JOBS) --preset
CONFIGURE := @scripts/configure

.PHONY: loom demo test release clang asan tsan lint fuzz chaos sim dots clients bench format clean

# build/loom, the program.
loom:
	$(CONFIGURE) release
	@$(BUILD) release --target loom

demo:
	@scripts/setup run
	@$(MAKE) --no-print-directory loom
	build/loom demo

test:
	@scripts/setup test
	@scripts/test

# Program and tests of one preset: build/, build-clang/, build-asan/, build-tsan/.
release clang asan tsan:
	$(CONFIGURE) $@
	@$(BUILD) $@

lint:
	@scripts/lint

# fuzz: all targets, SECS (10) each. fuzz-NAME: one, SECS (60).
fuzz:
	$(CONFIGURE) fuzz -DLOOM_FUZZ_SECONDS=$(or $(SECS),10)
	@$(BUILD) fuzz
	@ctest --preset fuzz --no-tests=error

fuzz-%:
	$(CONFIGURE) fuzz
	@$(BUILD) fuzz --target fuzz_$*
	@scripts/fuzz-one build-fuzz/fuzz/fuzz_$* $(or $(SECS),60)

# SECS (300) seconds of everything that can happen to machines and cables, in network namespaces, while requests run.
chaos: release
	LOOM=$(CURDIR)/build/loom python3 test/chaos/chaos.py --need-shadows --secs $(or $(SECS),300) --seed $(SEED)

# Whole clusters in one process, one for each of SEEDS seeds from FIRST on.
sim: release
	@set -e; for t in test/sim/test_*.c; do b=build/test/sim_$$(basename $$t .c | sed s/^test_//); echo "$$b $(FIRST) $(SEEDS)"; $$b $(FIRST) $(SEEDS); done

# N (ten million) random dot products of each weight type, the kernels of every instruction set against compute/ref.
dots: release
	build/test/unit_compute_dots $(or $(N),10000000) $(SEED)

clients: loom
	LOOM=$(CURDIR)/build/loom bash test/clients/run.sh

bench: loom
	LOOM=$(CURDIR)/build/loom bash bench/run.sh

format:
	clang-format -i $$(scripts/lint --files)

clean:
	rm -rf build build-clang build-asan build-tsan build-fuzz .cache
