#!/usr/bin/env bash
# Qwen3-30B-A3B on one node of MI355X, in fp8. PRETRAIN_TYPE=BF16 or FP8.
#   DRY_RUN=1 bash examples/moe_package/run_qwen3_30B_A3B_pretrain_mi355x.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${NNODES:=1}" "${MBS:=8}" "${GBS:=$((512 * NNODES))}" "${TRAIN_ITERS:=20}" "${ROPE_FUSION:=True}"
export GPU_MAX_HW_QUEUES=${GPU_MAX_HW_QUEUES:-4}

begin
add_sizes
add_large_model
add_features
add_bf16_optimizer
launch Qwen3_30B_MI355X "examples/megatron/configs/MI355X/qwen3_30B_A3B-${PRETRAIN_TYPE:-FP8}-pretrain.yaml" "$@"
