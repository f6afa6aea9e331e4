#!/usr/bin/env bash
# GLM-5 on eight nodes of MI355X, all 78 layers MoE. PRETRAIN_TYPE=BF16 or FP8.
#   DRY_RUN=1 bash examples/moe_package/run_glm5_pretrain_mi355x.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${NNODES:=8}" "${MBS:=1}" "${GBS:=$((32 * NNODES))}" "${PP:=8}" "${VPP:=1}" "${LAYERS:=78}"
: "${RECOMPUTE_LAYERS:=8}" "${MoE_Features:=6}"
: "${TURBO_ATTENTION:=True}" "${TURBO_RMS_NORM:=True}" "${ROPE_FUSION:=False}"
export GPU_MAX_HW_QUEUES=${GPU_MAX_HW_QUEUES:-4} USING_AINIC=${USING_AINIC:-1}

if [ "$VPP" -gt 1 ]; then
  case $((PP * VPP)) in
    8) : "${LAYOUT:=$(layout 9 10x6 9)}" ;;
    16) : "${LAYOUT:=$(layout 4 5x14 4)}" ;;
    # 78 layers: twos at both ends, threes and twos by turns between them
    32) : "${LAYOUT:=$(layout 2 3 2 3 2 3 2 3 2 3 2 3 2 3 2 3 2 3 2 3 2 3 2 3 2 3 2 3 2 2 2 2)}" ;;
  esac
else
  # The last stage has the loss beside it.
  case "$PP" in
    4) : "${LAST_STAGE_LAYERS:=18}" ;;
    8) : "${LAST_STAGE_LAYERS:=8}" ;;
  esac
fi

begin
add_sizes
add_large_model
add_features
add_learning_rate
args+=(--overlap_grad_reduce False --overlap_param_gather False)
args+=(--pp_warmup True --manual_gc True --manual_gc_interval 1)
launch GLM5_MI355X "examples/megatron/configs/MI355X/glm5-${PRETRAIN_TYPE:-BF16}-pretrain.yaml" "$@"
