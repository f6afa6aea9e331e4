#!/usr/bin/env bash
# The gpt-oss-120b stand-in on four nodes of MI355X, in fp8, with the features that MoE_Features names (1 to 7).
#   DRY_RUN=1 bash examples/moe_package/run_gpt_oss_120B_mi355x.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${MoE_Features:=1 3 7}"
: "${NNODES:=4}" "${MBS:=8}" "${GBS:=2048}" "${PP:=2}" "${VPP:=2}"
: "${ENABLE_MLA:=False}" "${ENABLE_MTP:=False}" "${FP8:=True}" "${LEGACY_GG:=False}" "${RECOMPUTE_LAYERS:=4}"
export USING_AINIC=${USING_AINIC:-1} CPUS_PER_TASK=${CPUS_PER_TASK:-96}
# The experiment names its chunks too.
export PRIMUS_VP=$VPP

begin
add_sizes
add_switches
add_features
args+=(--pp_warmup True --torch_profiler_use_gzip False)
precision=BF16
if [ "$FP8" = True ]; then precision=FP8; fi
launch GptOss120B_MI355X "examples/megatron/configs/MI355X/gpt_oss_120B-$precision-pretrain.yaml" "$@"
