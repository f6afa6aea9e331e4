#!/usr/bin/env bash
# Configures one preset and builds it: the two programs, to which bin/ then points, or the targets named.
# usage: tools/build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:?usage: tools/build.sh PRESET [TARGET...]}
shift
programs=(primus-cli primus-worker)
targets=("$@")
log=build/$preset.configure.log
mkdir -p build
# Configuring each time costs a second and notices another torch (PRIMUS_LIBTORCH); CMake's fifty lines matter only when it fails.
if ! cmake --preset "$preset" >"$log" 2>&1; then
  cat "$log" >&2
  echo "build: CMake could not configure the preset '$preset' (presets: release, relassert, asan, ci); the reason is above." >&2
  exit 1
fi
cmake --build --preset "$preset" --parallel "${JOBS:-$(nproc)}" --target "${targets[@]:-${programs[@]}}"
if [ ${#targets[@]} -eq 0 ]; then
  mkdir -p bin
  for program in "${programs[@]}"; do ln -sfn "../build/$preset/bin/$program" "bin/$program"; done
fi
