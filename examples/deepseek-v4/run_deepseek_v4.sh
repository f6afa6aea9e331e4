#!/usr/bin/env bash
# A small DeepSeek-V4 with all its kinds of layers on one node: eight layers of eight experts, short sequences.
#   DRY_RUN=1 bash examples/deepseek-v4/run_deepseek_v4.sh [--key value ...]
# What else it reads from the environment stands at the top of examples/moe_package/common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../moe_package/common.sh"

: "${MBS:=1}" "${GBS:=16}" "${SEQ_LENGTH:=128}" "${EP:=1}"
: "${LAYERS:=8}" "${EXPERTS:=8}" "${TOPK:=2}" "${COMPRESS_RATIOS:=[0,0,4,128,4,128,4,0]}"

begin
add_sizes
add_features
args+=(
  --num_layers "$LAYERS" --compress_ratios "$COMPRESS_RATIOS" --mtp_num_layers 0
  --num_experts "$EXPERTS" --moe_router_topk "$TOPK" --pipeline_model_parallel_layout None
)
launch DeepSeekV4 "examples/megatron/configs/MI355X/deepseek_v4_flash-${PRETRAIN_TYPE:-BF16}-pretrain.yaml" "$@"
