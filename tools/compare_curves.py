#!/usr/bin/env python3
"""Compares the loss curves that tools/gpu_check.sh wrote: the GPU in fp32 and bf16 against the CPU in fp32, seed by seed,
beside how far the seeds themselves lie apart; and whether runs that should repeat each other do, bit by bit.

usage: tools/compare_curves.py RUNS_FOLDER
"""
import json
import statistics
import sys
from pathlib import Path

WINDOW = 20  # steps that a printed mean covers


def curves(folder):
    """Name of the run -> its training losses in order."""
    found = {}
    for path in sorted(Path(folder).rglob("metrics.jsonl")):
        rows = [json.loads(line) for line in open(path)]
        losses = [row["lm_loss"] for row in rows if "lm_loss" in row and "grad_norm" in row]
        if losses:
            found[path.parent.name] = losses
    return found


def window_means(losses):
    return [statistics.fmean(losses[first:first + WINDOW]) for first in range(0, len(losses) - WINDOW + 1, WINDOW)]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    runs = curves(sys.argv[1])
    seeds = sorted(name.rsplit("_", 1)[1] for name in runs if name.startswith("cpu_fp32_"))
    if not seeds:
        sys.exit(f"no curve cpu_fp32_* below {sys.argv[1]}")
    kinds = {kind: [window_means(runs.get(f"{kind}_{seed}", [])) for seed in seeds]
             for kind in ("cpu_fp32", "gpu_fp32", "gpu_bf16")}
    print(f"mean loss of {WINDOW} steps over the seeds {', '.join(seeds)}; in brackets the largest distance of a seed's"
          " GPU curve from its CPU curve")
    print(f"{'steps':>9}  {'CPU fp32':>9}  {'spread of the seeds':>19}  {'GPU fp32':>18}  {'GPU bf16':>18}")
    for index, _ in enumerate(kinds["cpu_fp32"][0]):
        ours = [means[index] for means in kinds["cpu_fp32"]]
        row = f"{index * WINDOW + 1:4}-{(index + 1) * WINDOW:4}  {statistics.fmean(ours):9.4f}  {max(ours) - min(ours):19.4f}"
        for kind in ("gpu_fp32", "gpu_bf16"):
            theirs = [means[index] for means in kinds[kind] if index < len(means)]
            if len(theirs) != len(ours):
                row += f"  {'-':>18}"
                continue
            distance = max(abs(a - b) for a, b in zip(ours, theirs))
            row += f"  {statistics.fmean(theirs):8.4f} ({distance:7.4f})"
        print(row)
    for left, right in (("gpu_bf16_1", "gpu_again_1"), ("gpu_det_a", "gpu_det_b")):
        if left in runs and right in runs:
            same = sum(a == b for a, b in zip(runs[left], runs[right]))
            print(f"{left} and {right}: {same} of {len(runs[left])} losses have the same bits")


if __name__ == "__main__":
    main()
