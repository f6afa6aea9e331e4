#!/usr/bin/env bash
# MiniMax-M2.5 on 16 nodes of MI355X. PRETRAIN_TYPE=BF16 or FP8.
#   DRY_RUN=1 bash examples/moe_package/run_minimax_m2.5_pretrain_mi355x.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${NNODES:=16}" "${MBS:=2}" "${GBS:=$((64 * NNODES))}" "${PP:=4}" "${VPP:=2}" "${LAYERS:=62}"
: "${RECOMPUTE_LAYERS:=2}" "${MoE_Features:=6}"
: "${TURBO_ATTENTION:=False}" "${TURBO_RMS_NORM:=True}" "${ROPE_FUSION:=True}"
export GPU_MAX_HW_QUEUES=${GPU_MAX_HW_QUEUES:-4} USING_AINIC=${USING_AINIC:-1}

case $((PP * VPP)) in
  8) : "${LAYOUT:=$(layout 7 8x6 7)}" ;;
  16) : "${LAYOUT:=$(layout 3 4x14 3)}" ;;
esac

begin
add_sizes
add_large_model
add_features
add_learning_rate
add_bf16_optimizer
args+=(--pp_warmup True --manual_gc True --manual_gc_interval 1)
launch MiniMaxM2.5_MI355X "examples/megatron/configs/MI355X/minimax_m2.5-${PRETRAIN_TYPE:-BF16}-pretrain.yaml" "$@"
