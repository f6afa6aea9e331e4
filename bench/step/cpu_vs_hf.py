#!/usr/bin/env python3
"""One training step on the CPU: primus-worker against a Hugging Face transformers loop, in alternation.

usage: .venv/bin/python bench/step/cpu_vs_hf.py [--rounds N] [--steps N] [--seq S] [--variants V ...]

Both sides train the same shape (cpu_vs_hf.yaml) in fp32 with AdamW and clipping on the same number of threads, each round in
a process of its own, so that peak memory is the operating system's figure and neither side warms the other up. A round's
figure is the median of its steps, the first two left out. Prints tokens/s and peak memory of each side, the ratio round by
round, and where our time goes.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MICRO_BATCH = 4
WARM_UP_STEPS = 2


def hugging_face_loop(variant, steps, seq):
    """Trains and prints the seconds of each step as JSON. Runs in a child process."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    torch.manual_seed(1234)
    config = DeepseekV2Config(
        vocab_size=4096, hidden_size=256, intermediate_size=704, moe_intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=64, qk_nope_head_dim=64,
        qk_rope_head_dim=32, v_head_dim=64, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4,
        first_k_dense_replace=1, topk_method="greedy", norm_topk_prob=False, max_position_embeddings=seq,
        tie_word_embeddings=False, use_cache=False)
    experts = "eager" if variant == "eager" else "grouped_mm"
    model = DeepseekV2ForCausalLM._from_config(config, dtype=torch.float32, experts_implementation=experts)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_model = torch.compile(model) if variant == "compile" else model
    generator = torch.Generator().manual_seed(7)
    seconds = []
    for _ in range(steps):
        ids = torch.randint(0, 4096, (MICRO_BATCH, seq + 1), generator=generator)
        start = time.perf_counter()
        loss = step_model(input_ids=ids[:, :-1].contiguous(), labels=None).logits
        loss = torch.nn.functional.cross_entropy(loss.view(-1, 4096), ids[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


def run_measured(command, env):
    """Standard output and peak resident bytes of a child process."""
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with exit code {child.returncode}\n{output}")
    return output, usage.ru_maxrss * 1024


def measure_primus(steps, seq, env):
    workspace = ROOT / "output"
    env = dict(env, BENCH_STEPS=str(steps), BENCH_SEQ=str(seq), PRIMUS_WORKSPACE=str(workspace))
    command = [str(ROOT / "bin/primus-cli"), "direct", "--", "train", "pretrain", "--config",
               str(ROOT / "bench/step/cpu_vs_hf.yaml")]
    output, peak = run_measured(command, env)
    lines = [json.loads(line) for line in open(workspace / "bench/step/cpu_vs_hf/metrics.jsonl")]
    seconds = [line["elapsed_ms"] / 1e3 for line in lines if "elapsed_ms" in line and "lm_loss" in line]
    zones = re.findall(r"^ *zone .*$", output, re.M)
    return seconds, peak, zones


def measure_hugging_face(variant, steps, seq, env):
    command = [sys.executable, __file__, "--hugging-face-loop", variant, "--steps", str(steps), "--seq", str(seq)]
    output, peak = run_measured(command, env)
    return json.loads(output.strip().splitlines()[-1]), peak


def tokens_per_second(seconds, seq):
    return MICRO_BATCH * seq / statistics.median(seconds[WARM_UP_STEPS:])


def spread(values):
    return f"{statistics.median(values):9.0f} (min {min(values):.0f}, max {max(values):.0f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--variants", nargs="+", default=["grouped_mm", "eager"],
                        choices=["grouped_mm", "eager", "compile"])
    parser.add_argument("--hugging-face-loop", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hugging_face_loop:
        return hugging_face_loop(options.hugging_face_loop, options.steps, options.seq)

    env = dict(os.environ, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())))
    ours, our_peak, zones = [], [], []
    theirs = {variant: [] for variant in options.variants}
    peaks = {variant: [] for variant in options.variants}
    for number in range(options.rounds):
        seconds, peak, zones = measure_primus(options.steps, options.seq, env)
        ours.append(tokens_per_second(seconds, options.seq))
        our_peak.append(peak)
        row = f"round {number + 1}: primus {ours[-1]:.0f} tokens/s"
        for variant in options.variants:
            seconds, peak = measure_hugging_face(variant, options.steps, options.seq, env)
            theirs[variant].append(tokens_per_second(seconds, options.seq))
            peaks[variant].append(peak)
            row += f", {variant} {theirs[variant][-1]:.0f} ({ours[-1] / theirs[variant][-1]:.2f}x)"
        print(row, flush=True)

    print(f"\nsequence {options.seq}, micro-batch {MICRO_BATCH}, {env['OMP_NUM_THREADS']} threads, fp32;"
          f" tokens/s: median over {options.rounds} rounds of the median step")
    print(f"{'system':28} {'tokens/s':36} {'peak memory':>12}   ratio")
    print(f"{'primus-worker':28} {spread(ours):36} {statistics.median(our_peak) / 2**30:8.2f} GiB")
    for variant in options.variants:
        ratios = [a / b for a, b in zip(ours, theirs[variant])]
        print(f"{'transformers ' + variant:28} {spread(theirs[variant]):36}"
              f" {statistics.median(peaks[variant]) / 2**30:8.2f} GiB   {statistics.median(ratios):.2f}x"
              f" (min {min(ratios):.2f}, max {max(ratios):.2f})")
    print("\nwhere our time goes (last round):")
    print("\n".join(zones))


if __name__ == "__main__":
    main()
