#!/usr/bin/env bash
# MoE-515B on 64 nodes of MI355X: 16 stages of six chunks, with the features that MoE_Features names.
#   DRY_RUN=1 bash examples/moe_package/run_moe_515B_pretrain.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${MoE_Features:=3 4 5 6 7}"
: "${NNODES:=64}" "${MBS:=1}" "${GBS:=512}" "${PP:=16}" "${VPP:=6}"
export PRIMUS_VP=$VPP USING_AINIC=${USING_AINIC:-1}

begin
add_sizes
add_switches
add_features
args+=(--pp_warmup True)
launch MoE515B_MI355X examples/moe_package/configs/MI355X/moe_515B-pretrain-baseline.yaml "$@"
