#!/usr/bin/env bash
# Eight layers of DeepSeek-V4 Flash in full width on one node of MI355X, without a pipeline.
#   DRY_RUN=1 bash examples/deepseek-v4/run_deepseek_v4_flash_proxy.sh [--key value ...]
# What else it reads from the environment stands at the top of examples/moe_package/common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../moe_package/common.sh"

: "${MBS:=1}" "${GBS:=256}"
: "${LAYERS:=8}" "${COMPRESS_RATIOS:=[0,0,4,128,4,128,4,0]}"

begin
add_sizes
add_features
args+=(
  --num_layers "$LAYERS" --compress_ratios "$COMPRESS_RATIOS" --mtp_num_layers 0
  --pipeline_model_parallel_layout None
)
launch DeepSeekV4Flash "examples/megatron/configs/MI355X/deepseek_v4_flash-${PRETRAIN_TYPE:-BF16}-pretrain.yaml" "$@"
