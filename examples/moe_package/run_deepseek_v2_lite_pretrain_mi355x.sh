#!/usr/bin/env bash
# DeepSeek-V2-Lite on one node of MI355X: the baseline experiment with the features that MoE_Features names.
#   DRY_RUN=1 bash examples/moe_package/run_deepseek_v2_lite_pretrain_mi355x.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${MoE_Features:=3 4 5 6 7 8}"
: "${MBS:=14}" "${GBS:=896}"
: "${ENABLE_MLA:=True}" "${ENABLE_MTP:=False}"
export USING_AINIC=${USING_AINIC:-0}

begin
add_sizes
add_switches
add_features
launch DeepSeekV2Lite_MI355X examples/moe_package/configs/MI355X/deepseek_v2_lite-pretrain-baseline.yaml "$@"
