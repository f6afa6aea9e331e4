#!/usr/bin/env bash
# What a machine with a GPU has to show: the CUDA tests, the same under compute-sanitizer, loss curves of the CPU and the
# GPU on real text, the step of bench/step/w1.yaml, and that step switch by switch. One table a step; logs are left in
# the output folder.
#
# usage: tools/gpu_check.sh BIN_DIR OUT_DIR [tests|sanitize|losses|w1|ladder]...
#   BIN_DIR  folder with primus-cli, primus-worker, libprimus_cuda.so, libprimus_nvtx_listener.so and the CUDA test programs
#   OUT_DIR  folder for logs (made when missing)
# The libraries of torch must be found by the loader (LD_LIBRARY_PATH where they lie elsewhere than at build time).
set -uo pipefail
[[ $# -ge 2 ]] || { sed -n '2,10p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
steps=${*:-tests sanitize losses w1}
failures=0

fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

run_tests() {
  for program in ops_cuda_test engine_cuda_test train_cuda_test; do
    "$bin/$program" --gtest_brief=1 >"$out/$program.log" 2>&1 || fail "$program (see $out/$program.log)"
    grep -q Skipped "$out/$program.log" && fail "$program skips tests: $(grep -m1 -A1 Skipped "$out/$program.log" | tail -1)"
    printf '%-18s %s\n' "$program" "$(grep -E '^\[ *(PASSED|SKIPPED|FAILED) *\] [0-9]+ test' "$out/$program.log" | tr '\n' ' ')"
  done
}

# One process a suite and tool, several beside each other: most of a run's time is loading and instrumenting.
sanitize_one() {
  local tool=$1 program=$2 filter=$3 log
  log="$out/$tool.$program.$(tr -c 'A-Za-z0-9\n' '_' <<<"$filter").log"
  # Races between the threads of our own kernels only. initcheck has to see the vendors' kernels too, or what they
  # write would count as never written.
  local -a kernels=()
  [[ $tool != racecheck ]] || kernels=(--kernel-name kns=primus)
  local begin=$SECONDS
  timeout "${SANITIZE_LIMIT_S:-400}" compute-sanitizer --tool "$tool" "${kernels[@]}" --error-exitcode 99 \
    --num-callers-host 3 "$bin/$program" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1
  local rc=$?
  local verdict
  grep -q Skipped "$log" && rc=skipped
  case $rc in
    0) verdict=clean ;;
    99) verdict="ERRORS" ;;
    124) verdict="not finished" ;;
    *) verdict="exit code $rc" ;;
  esac
  printf '%-10s %-16s %-34s %-13s %4d s  %s\n' "$tool" "$program" "$filter" "$verdict" $((SECONDS - begin)) \
    "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -1 | sed 's/=* *//')"
}

run_sanitize() {
  export -f sanitize_one
  export bin out
  local jobs="$out/sanitize.jobs"
  : >"$jobs"
  for program in ops_cuda_test engine_cuda_test; do
    local suites
    suites=$("$bin/$program" --gtest_list_tests | grep -E '^[A-Za-z/]+\.' | sed 's/ .*//')
    [[ $program == engine_cuda_test ]] && suites='*Fp32StepsEqualTheCpus/[0123] *BFloat16Steps*/[0123]'
    for suite in $suites; do
      for tool in memcheck racecheck initcheck; do
        local filter="$suite*"
        [[ $program == engine_cuda_test ]] && filter=${suite/\[0123\]/0}:${suite/\[0123\]/3}
        echo "$tool $program $filter" >>"$jobs"
      done
    done
  done
  xargs -P "${SANITIZE_JOBS:-12}" -L 1 bash -c 'set -f; sanitize_one $1 $2 "$3"' _ <"$jobs" | tee "$out/sanitize.table"
  grep -qE 'ERRORS|exit code' "$out/sanitize.table" && fail "compute-sanitizer (see $out/sanitize.table)"
  return 0
}

# Loss curves of the quickstart: fp32 on the CPU and bf16 on the GPU, three seeds; two GPU runs of the same seed.
curve() {
  local name=$1 device=$2
  shift 2
  PRIMUS_EXP_NAME=$name PRIMUS_WORKSPACE="$out/runs" "$bin/primus-cli" direct -- train pretrain \
    --config "$root/examples/quickstart/deepseek_v2_tiny.yaml" --device "$device" --train_iters 200 --log_interval 1 \
    --eval_interval 200 --save null "$@" >"$out/$name.log" 2>&1 || fail "$name (see $out/$name.log)"
}

run_losses() {
  cd "$root" || exit 1
  export PRIMUS_CONFIG_DIR="$root/configs"
  "$bin/primus-cli" data prepare --input /usr/share/common-licenses --tokenizer-type ByteTokenizer \
    --output-prefix output/quickstart/data/train --held-out /usr/share/common-licenses/MPL-2.0 \
    --held-out-fraction 0.5 --held-out-prefix output/quickstart/data/valid >"$out/data.log" 2>&1 || fail "data prepare"
  for seed in 1 2 3; do
    curve "cpu_fp32_$seed" cpu --seed "$seed"
    curve "gpu_fp32_$seed" cuda --seed "$seed"
    curve "gpu_bf16_$seed" cuda --seed "$seed" --bf16 True
  done
  curve gpu_again_1 cuda --seed 1 --bf16 True
  curve gpu_det_a cuda --seed 1 --bf16 True --deterministic_mode True
  curve gpu_det_b cuda --seed 1 --bf16 True --deterministic_mode True --enable_primus_turbo True \
    --turbo_sync_free_moe_stage 3
  python3 "$root/tools/compare_curves.py" "$out/runs"
}

# Median, least and most of the steps after the fourth, and the peak of memory.
w1_row() {
  local ms
  ms=$(grep -oE 'per iteration \(ms\): [0-9.]+' "$1" | awk '{print $NF}' | tail -n +5 | sort -n)
  awk -v tokens="$2" '{v[NR] = $1} END {if (NR) printf "%7.1f (%.1f, %.1f) %9.0f", v[int((NR + 1) / 2)], v[1], v[NR],
    tokens / v[int((NR + 1) / 2)] * 1000}' <<<"$ms"
  grep -oE 'memory: [0-9.]+ GiB' "$1" | tail -1 | sed 's/memory:/ /'
}

# Median of the host's time a step, over the same steps.
host_ms() {
  grep -oE '"host_ms":[0-9.]+' "$1" | cut -d: -f2 | tail -n +5 | sort -n | awk '{v[NR] = $1} END {if (NR) printf "%6.1f", v[int((NR + 1) / 2)]}'
}

# w1_run NAME MICRO_BATCH ACCUMULATION OVERRIDES...: one run of W1; its log and the folder of its records.
w1_run() {
  local name=$1 micro=$2 accumulation=$3
  shift 3
  PRIMUS_EXP_NAME=$name BENCH_MICRO_BATCH=$micro BENCH_GLOBAL_BATCH=$((micro * accumulation)) "$bin/primus-cli" direct \
    -- train pretrain --config bench/step/w1.yaml --moe_router_force_load_balancing True --device cuda "$@" \
    >"$out/$name.log" 2>&1 || fail "$name (see $out/$name.log)"
}

w1_table_row() {
  local name=$1 micro=$2 accumulation=$3
  printf '%-28s %s  host %s ms\n' "$name" "$(w1_row "$out/$name.log" $((4096 * micro * accumulation)))" \
    "$(host_ms "$out/runs/bench/step/$name/metrics.jsonl")"
}

# The switches one after another at micro-batch 4, then larger ones; LADDER_RUNS times, so that the spread shows.
run_ladder() {
  cd "$root" || exit 1
  export PRIMUS_CONFIG_DIR="$root/configs" PRIMUS_WORKSPACE="$out/runs"
  local run stage
  for ((run = 1; run <= ${LADDER_RUNS:-3}; run++)); do
    w1_run "baseline.$run" 4 1 --cross_entropy_loss_fusion False --attention_backend unfused \
      --moe_use_legacy_grouped_gemm True
    w1_table_row "baseline.$run" 4 1
    w1_run "fused_attention.$run" 4 1 --cross_entropy_loss_fusion False --moe_use_legacy_grouped_gemm True
    w1_table_row "fused_attention.$run" 4 1
    w1_run "grouped_products.$run" 4 1 --cross_entropy_loss_fusion False
    w1_table_row "grouped_products.$run" 4 1
    for stage in 0 1 2 3; do
      w1_run "stage_$stage.$run" 4 1 --enable_primus_turbo True --turbo_sync_free_moe_stage "$stage"
      w1_table_row "stage_$stage.$run" 4 1
    done
    w1_run "stage_3_micro_8.$run" 8 1 --enable_primus_turbo True --turbo_sync_free_moe_stage 3
    w1_table_row "stage_3_micro_8.$run" 8 1
  done
}

run_w1() {
  cd "$root" || exit 1
  export PRIMUS_CONFIG_DIR="$root/configs" PRIMUS_WORKSPACE="$out/runs"
  local accumulation micro stage
  for accumulation in ${W1_ACCUMULATION:-1}; do
    for micro in ${W1_MICRO_BATCHES:-1 2 4 8}; do
      for stage in ${W1_STAGES:-0 3}; do
        local name="w1_${micro}x$accumulation.stage$stage"
        w1_run "$name" "$micro" "$accumulation" --enable_primus_turbo True --turbo_sync_free_moe_stage "$stage"
        w1_table_row "$name" "$micro" "$accumulation"
      done
    done
  done
}

for step in $steps; do
  echo "== $step"
  case $step in
    tests) run_tests ;;
    sanitize) run_sanitize ;;
    losses) run_losses ;;
    w1) run_w1 ;;
    ladder) run_ladder ;;
    *) echo "unknown step '$step': tests, sanitize, losses, w1 or ladder" >&2; exit 2 ;;
  esac
done
echo "== $failures failures"
[[ $failures -eq 0 ]]
