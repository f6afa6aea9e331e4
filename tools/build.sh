#!/usr/bin/env bash
# Configures and builds one preset; without targets it builds everything and points bin/ at the result.
# usage: tools/build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:?usage: tools/build.sh PRESET [TARGET...]}
shift
log=build/$preset.configure.log
mkdir -p build
# Configuring each time costs a second and notices another torch (PRIMUS_LIBTORCH); CMake's fifty lines matter only when it fails.
if ! cmake --preset "$preset" >"$log" 2>&1; then
  cat "$log" >&2
  echo "build: CMake could not configure the preset '$preset' (presets: release, relassert, asan, ci); the reason is above." >&2
  exit 1
fi
cmake --build --preset "$preset" --parallel "${JOBS:-$(nproc)}" ${1:+--target "$@"}
if [ $# -eq 0 ]; then
  mkdir -p bin
  for program in primus-cli primus-worker; do
    # The preset's file itself must exist: a link to nothing would be found only by the first user.
    test -x "build/$preset/bin/$program" || { echo "build: build/$preset/bin/$program was not built" >&2; exit 1; }
    ln -sfn "../build/$preset/bin/$program" "bin/$program"
  done
fi
