#!/usr/bin/env bash
# DeepSeek-V2 on four nodes of MI355X: the baseline experiment, interleaved, with the features that MoE_Features names.
#   DRY_RUN=1 bash examples/moe_package/run_deepseek_v2_pretrain_mi355x.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${MoE_Features:=3 4 5 6 7 8}"
: "${NNODES:=4}" "${MBS:=1}" "${GBS:=256}" "${PP:=4}" "${VPP:=5}"
: "${ENABLE_MLA:=True}" "${ENABLE_MTP:=False}"
export USING_AINIC=${USING_AINIC:-1} CPUS_PER_TASK=${CPUS_PER_TASK:-96}
export NCCL_IB_RETRY_CNT=${NCCL_IB_RETRY_CNT:-20} NCCL_IB_TIMEOUT=${NCCL_IB_TIMEOUT:-300}

begin
add_sizes
add_switches
add_features
args+=(--pp_warmup True --torch_profiler_use_gzip False)
launch DeepSeekV2_MI355X examples/moe_package/configs/MI355X/deepseek_v2-pretrain-baseline.yaml "$@"
