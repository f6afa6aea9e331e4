#!/usr/bin/env bash
# MoE-515B on 64 nodes of MI355X: 16 stages of six chunks, with the features that MoE_Features names.
#   DRY_RUN=1 bash examples/moe_package/run_moe_515B_pretrain.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${NNODES:=64}" "${GBS:=512}" "${PP:=16}" "${VPP:=6}"
run_family MoE515B moe_515B "$@"
