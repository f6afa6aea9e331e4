# Two commands are all that a newcomer needs: `make quickstart` and `make test`. Each installs what is missing.
#   PRESET=release|relassert|asan|ci   what `make build` builds
#   JOBS=N                             compilers and tests at a time (default: one a core)
#   PRIMUS_LIBTORCH=DIR                an existing torch (include/, lib/) instead of PyPI's wheel
#   PYTHON=python3.12                  the Python that makes the local environment
#   SOAK=1                             `make test` with the full counts and the sanitizers on everything
PRESET ?= release
KIND ?= cpu
export JOBS ?= $(shell nproc)
ifdef PRIMUS_LIBTORCH
export PRIMUS_LIBTORCH := $(abspath $(PRIMUS_LIBTORCH))
endif
export PYTHON SOAK

.DEFAULT_GOAL := help
.PHONY: help setup build quickstart test check format asan bench clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
	@sed -n '2,6s/^#/ /p' Makefile

setup: ## install what a build needs (KIND=full: what the tests need, too)
	@tools/setup.sh $(KIND)

build: setup ## bin/primus-cli and bin/primus-worker
	@tools/build.sh $(PRESET)

quickstart: ## set up, build, prepare a small real text, train a small DeepSeek-V2-style model on it
	@examples/quickstart/quickstart.sh

test: ## set up, build with warnings as errors, then every check and test
	@tools/test.sh

check: ## formatting, layers, file sizes, leftovers
	@tools/check

format: ## let clang-format rewrite what `make check` would refuse
	@tools/check_format --fix

asan: setup ## the planning half's tests under the address and undefined-behaviour sanitizers
	@tools/build.sh asan planning_tests
	@ctest --preset asan --label-regex planning --no-tests=error -j $(JOBS)

bench: ## speed of the ops, and of a training step against transformers
	@tools/setup.sh full
	@tools/build.sh release
	@tools/build.sh release ops_bench
	build/release/bin/ops_bench
	.venv/bin/python bench/step/cpu_vs_hf.py

clean: ## remove what was built (the environment in .venv stays; rm -rf .venv removes it)
	rm -rf build bin
