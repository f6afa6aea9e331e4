#!/usr/bin/env bash
# Four layers of DeepSeek-V3 on four nodes of MI355X, without a pipeline: what one stage of the large run does.
#   DRY_RUN=1 bash examples/moe_package/run_deepseek_v3_4layers_proxy.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh. PRETRAIN_TYPE=BF16 or FP8.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${NNODES:=4}" "${MBS:=2}" "${GBS:=$((64 * NNODES))}"
export USING_AINIC=${USING_AINIC:-1}

add_proxy
launch DeepSeekV3_4layers "examples/megatron/configs/MI355X/deepseek_v3-${PRETRAIN_TYPE:-BF16}-pretrain.yaml" "$@"
