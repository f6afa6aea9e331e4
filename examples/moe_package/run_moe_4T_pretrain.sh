#!/usr/bin/env bash
# MoE-4T on 96 nodes of MI355X, with the features that MoE_Features names. Project it first.
#   DRY_RUN=1 bash examples/moe_package/run_moe_4T_pretrain.sh [--key value ...]
# What else it reads from the environment stands at the top of common.sh.
set -euo pipefail
# shellcheck source=examples/moe_package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${EP:=16}" "${CP:=2}"
run_family MoE4T moe_4T "$@"
