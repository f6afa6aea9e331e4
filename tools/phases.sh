# Sourced by the scripts that run several long phases: names each one and keeps its time.
# shellcheck shell=bash
phase_names=()
phase_seconds=()

# phase NAME COMMAND...
phase() {
  local name=$1 start=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  if ! "$@"; then
    printf '\n== %s failed after %d s\n' "$name" $((SECONDS - start)) >&2
    exit 1
  fi
  phase_names+=("$name")
  phase_seconds+=($((SECONDS - start)))
}

print_phases() {
  local i
  for i in "${!phase_names[@]}"; do printf '  %-14s %4d s\n' "${phase_names[i]}" "${phase_seconds[i]}"; done
}
