#!/usr/bin/env python3
"""Training steps on the CPU: primus-worker against a Hugging Face transformers loop, in alternation.

usage: .venv/bin/python bench/step/cpu_vs_hf.py [--models M ...] [--dtypes fp32 bf16] [--seqs S ...] [--variants V ...]
                                                [--rounds N] [--steps N] [--seconds S]

For each model, number type and sequence length both sides train the same model from the same weights (transformers makes
it, `primus-cli checkpoint import` reads it) with AdamW and clipping on the same number of threads, each round in a process
of its own, so that peak memory is the operating system's figure and neither side warms the other up. A round's figure is
the median of its steps, the first two left out. bf16: ours keeps fp32 master weights and moments, theirs holds everything
in bf16. A side that fails or takes longer than --seconds for three steps is said to.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MICRO_BATCH = 4
WARM_UP_STEPS = 2
VOCABULARY = 4096
COMMON = dict(vocab_size=VOCABULARY, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, use_cache=False,
              tie_word_embeddings=False)
LATENT = dict(num_key_value_heads=4, kv_lora_rank=64, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64,
              intermediate_size=704, moe_intermediate_size=128, n_routed_experts=16, n_shared_experts=1,
              num_experts_per_tok=4, first_k_dense_replace=1)


def model_config(name, seq):
    import transformers

    sizes = dict(COMMON, max_position_embeddings=seq)
    if name == "deepseek_v2":
        return transformers.DeepseekV2Config(**sizes, **LATENT, q_lora_rank=None, topk_method="greedy",
                                             norm_topk_prob=False)
    if name == "deepseek_v3":
        return transformers.DeepseekV3Config(**sizes, **LATENT, q_lora_rank=96, n_group=4, topk_group=2,
                                             routed_scaling_factor=2.5)
    if name == "mixtral":
        return transformers.MixtralConfig(**sizes, num_key_value_heads=2, intermediate_size=256, num_local_experts=8,
                                          num_experts_per_tok=2, sliding_window=None)
    return transformers.Qwen3MoeConfig(**sizes, num_key_value_heads=2, head_dim=64, intermediate_size=704,
                                       moe_intermediate_size=128, num_experts=16, num_experts_per_tok=4,
                                       norm_topk_prob=True)


def make_model(name, seq, folder):
    """A Hugging Face folder of random weights, in a child process so that this one never holds torch."""
    import torch
    import transformers

    torch.manual_seed(1234)
    model = transformers.AutoModelForCausalLM.from_config(model_config(name, seq), dtype=torch.float32)
    model.save_pretrained(folder)


def hugging_face_loop(folder, variant, dtype, steps, seq, seconds_limit):
    """Trains and prints the seconds of each step as JSON. Runs in a child process."""
    import torch
    import transformers

    experts = "eager" if variant == "eager" else "grouped_mm"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32, experts_implementation=experts)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_model = torch.compile(model) if variant == "compile" else model
    generator = torch.Generator().manual_seed(7)
    seconds = []
    begin = time.perf_counter()
    while len(seconds) < steps and (len(seconds) <= WARM_UP_STEPS or time.perf_counter() - begin < seconds_limit):
        ids = torch.randint(0, VOCABULARY, (MICRO_BATCH, seq + 1), generator=generator)
        start = time.perf_counter()
        logits = step_model(input_ids=ids[:, :-1].contiguous(), labels=None).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, VOCABULARY).float(), ids[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


def run_measured(command, env, seconds_limit=None):
    """Standard output and peak resident bytes of a child process; a reason instead of output where it fails."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, env=env, stdout=output, stderr=errors)
        deadline = time.monotonic() + seconds_limit if seconds_limit else None
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG if deadline else 0)
            if pid:
                break
            if time.monotonic() > deadline:
                child.kill()
                child.wait()
                return None, 0, f"more than {seconds_limit:.0f} s"
            time.sleep(0.05)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if child.returncode != 0:
            last = [line for line in errors.read().splitlines() if line.strip()][-1:] or ["no message"]
            return None, 0, f"exit code {child.returncode}: {last[0].strip()[:100]}"
        return output.read(), usage.ru_maxrss * 1024, ""


def must_run(command, env):
    output, _, reason = run_measured([str(word) for word in command], env)
    if output is None:
        sys.exit(f"{' '.join(str(word) for word in command)}: {reason}")
    return output


def measure_primus(checkpoint, dtype, steps, seq, env):
    workspace = checkpoint.parent / "output"
    command = [ROOT / "bin/primus-cli", "direct", "--device", "cpu", "--", "train", "pretrain", "--config",
               checkpoint / "experiment.yaml", "--load", checkpoint, "--finetune", "true", "--workspace", workspace,
               "--mock_data", "true", "--tokenizer_type", "NullTokenizer", "--vocab_size", VOCABULARY,
               "--seq_length", seq, "--micro_batch_size", MICRO_BATCH, "--global_batch_size", MICRO_BATCH,
               "--train_iters", steps, "--eval_iters", 0, "--lr", 1e-4, "--min_lr", 0.0, "--lr_decay_style", "constant",
               "--lr_warmup_iters", 0, "--weight_decay", 0.1, "--adam_beta2", 0.95, "--clip_grad", 1.0,
               "--save", "null", "--auto_continue_train", "false",
               "--bf16", "true" if dtype == "bf16" else "false", "--cross_entropy_loss_fusion", "true",
               "--log_interval", 1, "--timing_log_level", 1]
    output, peak, reason = run_measured([str(word) for word in command], env)
    if output is None:
        sys.exit(f"primus-cli: {reason}")
    metrics = next(workspace.rglob("metrics.jsonl"))
    lines = [json.loads(line) for line in open(metrics)]
    metrics.unlink()
    seconds = [line["elapsed_ms"] / 1e3 for line in lines if "elapsed_ms" in line and "lm_loss" in line]
    return seconds, peak, re.findall(r"^ *zone .*$", output, re.M)


def tokens_per_second(seconds, seq):
    return MICRO_BATCH * seq / statistics.median(seconds[WARM_UP_STEPS:])


def spread(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def compare(model, dtype, seq, options, env, folder):
    """One block of the table."""
    must_run([sys.executable, __file__, "--make-model", folder / "hf", "--models", model, "--seqs", seq], env)
    must_run([ROOT / "bin/primus-cli", "checkpoint", "import", "--from", folder / "hf", "--to", folder / "ours"], env)
    ours, our_peaks, zones = [], [], []
    theirs = {variant: [] for variant in options.variants}
    peaks = {variant: [] for variant in options.variants}
    failed = {}
    for _ in range(options.rounds):
        seconds, peak, zones = measure_primus(folder / "ours", dtype, options.steps, seq, env)
        ours.append(tokens_per_second(seconds, seq))
        our_peaks.append(peak)
        for variant in options.variants:
            if variant in failed:
                continue
            command = [sys.executable, __file__, "--hugging-face-loop", str(folder / "hf"), "--variants", variant,
                       "--dtypes", dtype, "--steps", str(options.steps), "--seqs", str(seq), "--seconds",
                       str(options.seconds)]
            output, peak, reason = run_measured(command, env, seconds_limit=10 * options.seconds)
            if output is None:
                failed[variant] = reason
                continue
            theirs[variant].append(tokens_per_second(json.loads(output.strip().splitlines()[-1]), seq))
            peaks[variant].append(peak)
    name = f"{model} {dtype} S {seq}"
    print(f"{name:28} {'primus-worker':24} {spread(ours):24} {statistics.median(our_peaks) / 2**30:6.2f} GiB", flush=True)
    for variant in options.variants:
        label = f"transformers {variant}"
        if variant in failed:
            print(f"{'':28} {label:24} {failed[variant]}", flush=True)
            continue
        ratios = [a / b for a, b in zip(ours, theirs[variant])]
        print(f"{'':28} {label:24} {spread(theirs[variant]):24} {statistics.median(peaks[variant]) / 2**30:6.2f} GiB  "
              f"{statistics.median(ratios):6.2f}x ({min(ratios):.2f}-{max(ratios):.2f})", flush=True)
    return zones


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = ["deepseek_v2", "deepseek_v3", "mixtral", "qwen3_moe"]
    parser.add_argument("--models", nargs="+", default=["deepseek_v2"], choices=models + ["all"])
    parser.add_argument("--dtypes", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    parser.add_argument("--seqs", nargs="+", type=int, default=[512])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=60, help="a transformers loop starts no step after these")
    parser.add_argument("--variants", nargs="+", default=["grouped_mm", "eager"],
                        choices=["grouped_mm", "eager", "compile"])
    parser.add_argument("--hugging-face-loop", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--make-model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make_model:
        return make_model(options.models[0], options.seqs[0], options.make_model)
    if options.hugging_face_loop:
        return hugging_face_loop(options.hugging_face_loop, options.variants[0], options.dtypes[0], options.steps,
                                 options.seqs[0], options.seconds)
    env = dict(os.environ, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())), HF_HUB_OFFLINE="1")
    print(f"micro-batch {MICRO_BATCH}, {env['OMP_NUM_THREADS']} threads, {options.rounds} rounds; tokens/s: median"
          " (min-max) of the rounds, peak memory, how much faster primus-worker is")
    zones = []
    for model in models if "all" in options.models else options.models:
        for dtype in options.dtypes:
            for seq in options.seqs:
                with tempfile.TemporaryDirectory() as folder:
                    zones = compare(model, dtype, seq, options, env, Path(folder))
    print("\nwhere our time goes (last round):")
    print("\n".join(zones))


if __name__ == "__main__":
    main()
