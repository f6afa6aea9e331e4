#!/usr/bin/env bash
# MoE-1T on 96 nodes of MI355X or MI300X (CHIP), with the features that MoE_Features names. Project it first.
#   DRY_RUN=1 bash examples/moe_package/run_moe_1T_pretrain.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${CHIP:=MI355X}" "${MoE_Features:=3 4 5 6 7}"
: "${NNODES:=96}" "${MBS:=1}" "${GBS:=1024}" "${PP:=24}" "${VPP:=4}"
if [ "$CHIP" = MI300X ]; then
  : "${CP:=2}" "${SYNC_FREE_STAGE:=2}"
fi
export PRIMUS_VP=$VPP USING_AINIC=${USING_AINIC:-1}

begin
add_sizes
add_switches
add_features
args+=(--pp_warmup True)
launch "MoE1T_$CHIP" "examples/moe_package/configs/$CHIP/moe_1T-pretrain-baseline.yaml" "$@"
