#!/usr/bin/env python3
"""torch.ops.primus beside eager PyTorch: one MoE layer with its router, and the output layer's loss; forward and backward.

The layer is the same formulas on the same tensors: eager PyTorch sorts the tokens by expert and multiplies by
torch._grouped_mm where the device has it, else expert by expert. Prints the median of the rounds and their median
absolute deviation, and the memory above what was there before the step on a GPU.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import primus_ops  # noqa: E402

SHAPES = {  # tokens, hidden, ffn, experts, topk, vocabulary
    "v2-lite": (16384, 2048, 1408, 64, 6, 102400),
    "small": (1024, 512, 256, 16, 4, 8192),
}


def sorted_experts(x, prob, index, w1, w2):
    experts = w1.size(0)
    flat = index.flatten().long()
    order = flat.argsort(stable=True)
    token = order // index.size(1)
    rows, scale = x[token], prob.flatten()[order].to(x.dtype).unsqueeze(1)
    ends = torch.bincount(flat, minlength=experts).cumsum(0)
    if x.is_cuda:
        gate, up = torch._grouped_mm(rows, w1.transpose(1, 2), offs=ends.int()).chunk(2, -1)
        y = torch._grouped_mm(torch.nn.functional.silu(gate) * up * scale, w2.transpose(1, 2), offs=ends.int())
    else:
        sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
        parts = []
        for expert, (part, factor) in enumerate(zip(rows.split(sizes), scale.split(sizes))):
            gate, up = (part @ w1[expert].T).chunk(2, -1)
            parts.append((torch.nn.functional.silu(gate) * up * factor) @ w2[expert].T)
        y = torch.cat(parts)
    return torch.zeros_like(x).index_add(0, token, y)


def eager_layer(x, gate, w1, w2, topk):
    values, index = (x.float() @ gate.T).topk(topk)
    return sorted_experts(x, values.softmax(-1), index, w1, w2)


def primus_layer(x, gate, w1, w2, topk):
    prob, index, _, _ = primus_ops.router(x.float() @ gate.T, topk=topk)
    return primus_ops.moe_mlp(x, prob, index, w1, w2)


def eager_loss(x, weight, label):
    return torch.nn.functional.cross_entropy((x @ weight.T).float(), label)


def measure(step, tensors, rounds, device):
    times, peak = [], 0
    for number in range(rounds + 3):
        for tensor in tensors:
            tensor.grad = None
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        begin = time.perf_counter()
        step().backward()
        if device == "cuda":
            torch.cuda.synchronize()
            peak = max(peak, torch.cuda.max_memory_allocated() - before)
        if number >= 3:
            times.append(1e3 * (time.perf_counter() - begin))
    median = statistics.median(times)
    return median, statistics.median(abs(t - median) for t in times), peak


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default=None, help="standard: float32 on the CPU, else bfloat16")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--library", help="libprimus_torch_ops.so (standard: the newest build)")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    primus_ops.load(options.library)
    dtype = getattr(torch, options.dtype or ("float32" if options.device == "cpu" else "bfloat16"))
    tokens, hidden, ffn, experts, topk, vocabulary = SHAPES[options.shape]
    torch.manual_seed(1)

    def parameter(*shape, of=dtype):
        return (torch.randn(*shape, device=options.device) * shape[-1] ** -0.5).to(of).requires_grad_()

    x = parameter(tokens, hidden)
    gate, w1, w2 = parameter(experts, hidden, of=torch.float32), parameter(experts, 2 * ffn, hidden), parameter(experts, hidden, ffn)
    weight, label = parameter(vocabulary, hidden), torch.randint(0, vocabulary, (tokens,), device=options.device)
    slope = torch.randn(tokens, hidden, device=options.device, dtype=dtype)
    layer = [x, gate, w1, w2]
    cases = [
        ("MoE layer", "eager", lambda: (eager_layer(*layer, topk) * slope).sum(), layer),
        ("MoE layer", "primus", lambda: (primus_layer(*layer, topk) * slope).sum(), layer),
        ("loss", "eager", lambda: eager_loss(x, weight, label), [x, weight]),
        ("loss", "primus", lambda: primus_ops.linear_cross_entropy(x, weight, label), [x, weight]),
    ]
    results = []
    for what, by, step, tensors in cases:
        median, deviation, peak = measure(step, tensors, options.rounds, options.device)
        results.append({"what": what, "by": by, "ms": median, "mad_ms": deviation, "peak_bytes": peak})
    if options.format == "json":
        print(json.dumps(results))
        return 0
    print(f"{options.shape}: {tokens} tokens, hidden {hidden}, ffn {ffn}, {experts} experts, top {topk}, "
          f"vocabulary {vocabulary}, {dtype}, {options.device}; forward and backward, {options.rounds} rounds")
    for result in results:
        memory = f", {result['peak_bytes'] / 2**30:.2f} GiB above" if options.device == "cuda" else ""
        print(f"  {result['what']:10} {result['by']:7} {result['ms']:9.2f} ms ± {result['mad_ms']:.2f}{memory}")
    for eager, ours in ((results[0], results[1]), (results[2], results[3])):
        print(f"  {eager['what']}: {eager['ms'] / ours['ms']:.2f} x eager")
    return 0


if __name__ == "__main__":
    sys.exit(main())
