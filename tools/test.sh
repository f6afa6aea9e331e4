#!/usr/bin/env bash
# What `make test` runs: the whole set-up, the cheap checks first, then the build and every test. ctest's closing line comes last.
# environment: JOBS compilers and tests at a time; SOAK=1 full counts, and the sanitizers on every test
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/phases.sh
jobs=${JOBS:-$(nproc)}
# Of the planning half only what reads files and text: the sanitizers' build takes as long as the real one. `make asan` has all of it.
asan_targets=(test_base config_test test_data checkpoint_test)
asan_tests=(--tests-regex "^($(IFS='|' && echo "${asan_targets[*]}"))\$")
if [ -n "${SOAK:-}" ]; then
  export PRIMUS_SOAK=1
  asan_targets=(all)
  asan_tests=()
fi

phase set-up tools/setup.sh full
phase checks tools/check
phase hip tools/check_hip
phase build tools/build.sh ci all
phase asan-build tools/build.sh asan "${asan_targets[@]}"
phase asan-tests ctest --preset asan --no-tests=error -j "$jobs" "${asan_tests[@]}"
phase tests ctest --preset ci --no-tests=error -j "$jobs" --output-log build/ci/tests.log
print_phases
# ctest's closing line once more, below the times: this is what a reader looks for at the end.
grep 'tests passed,' build/ci/tests.log
