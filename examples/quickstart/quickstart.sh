#!/usr/bin/env bash
# What `make quickstart` runs: set-up, build, a small real text, and a DeepSeek-V2-style MoE trained on it.
# The text is the licences that every Debian or Ubuntu carries; the end of one of them is held out to judge by.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/phases.sh
experiment=examples/quickstart/deepseek_v2_tiny.yaml
text=/usr/share/common-licenses
data=output/quickstart/data
# As the experiment names it: workspace/work_group/user_name/exp_name.
run=${PRIMUS_WORKSPACE:-./output}/quickstart/${PRIMUS_USER:-local}/${PRIMUS_EXP_NAME:-deepseek_v2_tiny}

[ -e "$text/MPL-2.0" ] || {
  echo "quickstart: $text/MPL-2.0 is not there; Debian and Ubuntu bring it with the package base-files." >&2
  echo "  To train on a text of your own, see the two commands at the top of $experiment." >&2
  exit 1
}

phase set-up tools/setup.sh cpu
phase build tools/build.sh release
phase data bin/primus-cli data prepare --input "$text" --tokenizer-type ByteTokenizer --output-prefix "$data/train" \
  --held-out "$text/MPL-2.0" --held-out-fraction 0.5 --held-out-prefix "$data/valid"
if [ -d "$run" ]; then
  # A quickstart shows training from the first step, so it never goes on with an older run.
  rm -rf "$run.previous"
  mv "$run" "$run.previous"
  echo "quickstart: the last run is now $run.previous"
fi
phase training bin/primus-cli direct -- train pretrain --config "$experiment"

printf '\nTimes\n'
print_phases
