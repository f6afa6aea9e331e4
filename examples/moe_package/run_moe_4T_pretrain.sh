#!/usr/bin/env bash
# MoE-4T on 96 nodes of MI355X, with the features that MoE_Features names. Project it first.
#   DRY_RUN=1 bash examples/moe_package/run_moe_4T_pretrain.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${MoE_Features:=3 4 5 6 7}"
: "${NNODES:=96}" "${MBS:=1}" "${GBS:=1024}" "${PP:=24}" "${VPP:=4}" "${EP:=16}" "${CP:=2}"
export PRIMUS_VP=$VPP USING_AINIC=${USING_AINIC:-1}

begin
add_sizes
add_switches
add_features
args+=(--pp_warmup True)
launch MoE4T_MI355X examples/moe_package/configs/MI355X/moe_4T-pretrain-baseline.yaml "$@"
