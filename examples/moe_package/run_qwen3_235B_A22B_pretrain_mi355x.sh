#!/usr/bin/env bash
# Qwen3-235B-A22B on 32 nodes of MI355X. PRETRAIN_TYPE=BF16 or FP8.
#   DRY_RUN=1 bash examples/moe_package/run_qwen3_235B_A22B_pretrain_mi355x.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${NNODES:=32}" "${MBS:=4}" "${GBS:=8192}" "${PP:=4}" "${VPP:=4}" "${LAYERS:=94}"
: "${RECOMPUTE_LAYERS:=3}" "${MoE_Features:=6}"
: "${TURBO_ATTENTION:=False}" "${TURBO_RMS_NORM:=False}" "${ROPE_FUSION:=True}"
export GPU_MAX_HW_QUEUES=${GPU_MAX_HW_QUEUES:-4} USING_AINIC=${USING_AINIC:-1}

case $((PP * VPP)) in
  8) : "${LAYOUT:=$(layout 11 12x6 11)}" ;;
  16) : "${LAYOUT:=$(layout 5 6x14 5)}" ;;
esac

begin
add_sizes
add_large_model
add_features
add_bf16_optimizer
args+=(--pp_warmup True --manual_gc True --manual_gc_interval 1)
launch Qwen3_235B_MI355X "examples/megatron/configs/MI355X/qwen3_235B_A22B-${PRETRAIN_TYPE:-BF16}-pretrain.yaml" "$@"
