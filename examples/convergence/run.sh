#!/usr/bin/env bash
# The runs of docs/convergence.md: gathers 24 MB of text, trains a dense model and two with experts on it, in bytes and in
# BPE tokens, and draws their curves. Hours on two CPU cores, two minutes on a large GPU.
#
# usage: examples/convergence/run.sh [byte|bpe]...      (default: both; needs `make build` first)
# environment: CONVERGENCE_ITERS steps of every run (default: one epoch of bytes, two of BPE tokens)
#              CONVERGENCE_BF16=true CONVERGENCE_MICRO_BATCH=32 on a GPU
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
data=output/convergence/data
runs=${PRIMUS_WORKSPACE:-./output}/convergence/${PRIMUS_USER:-local}
here=examples/convergence

python3 "$here/corpus.py" "$data/corpus.jsonl"
# Texts stand in random order: the last of them are held out.
num_held_out=$(($(wc -l <"$data/corpus.jsonl") * 3 / 100))
head -n "-$num_held_out" "$data/corpus.jsonl" >"$data/train.jsonl"
tail -n "$num_held_out" "$data/corpus.jsonl" >"$data/valid.jsonl"

[ $# -gt 0 ] || set -- byte bpe
for kind in "$@"; do
  export CONVERGENCE_TOKENS=$kind CONVERGENCE_DATA=$data/$kind
  mkdir -p "$data/$kind"
  tokenizer=()
  unset CONVERGENCE_TOKENIZER_TYPE CONVERGENCE_TOKENIZER_MODEL
  if [ "$kind" = bpe ]; then
    bin/primus-cli data train-tokenizer --input "$data/train.jsonl" --vocab-size 8192 --output "$data/tokenizer"
    tokenizer=(--tokenizer-model "$data/tokenizer")
    export CONVERGENCE_TOKENIZER_TYPE=HuggingFaceTokenizer CONVERGENCE_TOKENIZER_MODEL=$data/tokenizer
  fi
  for part in train valid; do
    bin/primus-cli data prepare --input "$data/$part.jsonl" --output-prefix "$data/$kind/$part" "${tokenizer[@]}"
  done
  iterations=${CONVERGENCE_ITERS:-$([ "$kind" = bpe ] && echo 830 || echo 1400)}
  compared=()
  for model in dense moe_aux moe_bias; do
    CONVERGENCE_ITERS=$iterations bin/primus-cli train pretrain --config "$here/$model.yaml" --save null
    compared+=(--run "$runs/${kind}_$model")
  done
  bin/primus-cli view loss "${compared[@]}" --of held-out --out "output/convergence/$kind.svg"
  bin/primus-cli view loss "${compared[@]:2}" --of expert-load --out "output/convergence/${kind}_load.svg"
done
