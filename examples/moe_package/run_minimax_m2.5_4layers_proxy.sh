#!/usr/bin/env bash
# Four layers of MiniMax-M2.5 on one node of MI355X, without a pipeline: what one stage of the large run does.
#   DRY_RUN=1 bash examples/moe_package/run_minimax_m2.5_4layers_proxy.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh. PRETRAIN_TYPE=BF16 or FP8.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${NNODES:=1}" "${MBS:=2}" "${GBS:=$((64 * NNODES))}"
export USING_AINIC=${USING_AINIC:-0}

add_proxy
launch MiniMaxM2.5_4layers "examples/megatron/configs/MI355X/minimax_m2.5-${PRETRAIN_TYPE:-BF16}-pretrain.yaml" "$@"
