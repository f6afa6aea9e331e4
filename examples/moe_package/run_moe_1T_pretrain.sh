#!/usr/bin/env bash
# MoE-1T on 96 nodes of MI355X or MI300X (CHIP), with the features that MoE_Features names. Project it first.
#   DRY_RUN=1 bash examples/moe_package/run_moe_1T_pretrain.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ "${CHIP:-}" = MI300X ]; then
  : "${CP:=2}" "${SYNC_FREE_STAGE:=2}"
fi
run_family MoE1T moe_1T "$@"
