#!/usr/bin/env bash
# DeepSeek-V3 on 32 nodes of MI355X, all 61 layers MoE. PRETRAIN_TYPE=BF16 or FP8.
#   DRY_RUN=1 bash examples/moe_package/run_deepseek_v3_pretrain_mi355x.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh. Layers that pay to run again, by nodes:
#   RECOMP_IDS=0,1,2,4,6,8,10,12,14,16,34,36,38,40,50   32
#   RECOMP_IDS=0,1,2,4,6,8,10,12,14,16,34,36            64
#   RECOMP_IDS=0,1,2,4,6,8,10,12,14                     128
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${NNODES:=32}" "${MBS:=2}" "${GBS:=$((128 * NNODES))}" "${PP:=16}" "${VPP:=2}" "${LAYERS:=61}"
: "${RECOMPUTE_LAYERS:=2}" "${MoE_Features:=6}"
: "${TURBO_ATTENTION:=False}" "${TURBO_RMS_NORM:=True}" "${ROPE_FUSION:=True}"
export GPU_MAX_HW_QUEUES=${GPU_MAX_HW_QUEUES:-4} USING_AINIC=${USING_AINIC:-1}

case $((PP * VPP)) in
  8) : "${LAYOUT:=$(layout 7 8x5 7x2)}" ;;
  16) : "${LAYOUT:=$(layout 3 4x14 2)}" ;;
  32) : "${LAYOUT:=$(layout 1x2 2x29 1)}" ;;
esac

begin
add_sizes
add_large_model
add_features
add_learning_rate
add_bf16_optimizer
args+=(--pp_warmup True --manual_gc True --manual_gc_interval 1)
launch DeepSeekV3_MI355X "examples/megatron/configs/MI355X/deepseek_v3-${PRETRAIN_TYPE:-BF16}-pretrain.yaml" "$@"
