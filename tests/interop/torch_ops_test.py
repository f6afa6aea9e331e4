#!/usr/bin/env python3
"""torch.ops.primus in plain PyTorch: values and gradients against the same formulas in eager PyTorch, opcheck, and
torch.compile over a model of them. On the GPU where there is one, else on the CPU."""
import os
import pathlib
import sys

from command import Checks, skip

try:
    import torch
except ImportError:
    skip("torch is not installed")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import primus_ops  # noqa: E402

DEVICE = os.environ.get("PRIMUS_TEST_DEVICE", "cpu")
ops = torch.ops.primus


def tensor(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(*shape, dtype=torch.float64) * scale).to(DEVICE, dtype).requires_grad_()


def eager_router(logits, topk, score_function="softmax", bias=None, use_pre_softmax=False, scaling_factor=1.0,
                 aux_loss_coeff=0.0, z_loss_coeff=0.0):
    scores = {"softmax": lambda: logits.softmax(-1), "sigmoid": logits.sigmoid,
              "sqrtsoftplus": lambda: torch.nn.functional.softplus(logits).sqrt()}[score_function]()
    choice = logits if score_function == "softmax" and bias is None else scores
    choice = choice if bias is None else choice + bias
    index = choice.topk(topk, sorted=True).indices
    if score_function == "softmax" and not use_pre_softmax:
        prob = logits.gather(1, index).softmax(-1)
    else:
        prob = scores.gather(1, index)
        if score_function != "softmax" and topk > 1:
            prob = prob / (prob.sum(-1, keepdim=True) + 1e-20)
    tokens, experts = logits.shape
    plain = scores.topk(topk).indices
    counts = torch.zeros(experts, dtype=logits.dtype, device=logits.device).index_add(
        0, plain.flatten(), torch.ones(plain.numel(), dtype=logits.dtype, device=logits.device))
    share = scores if score_function == "softmax" else scores / (scores.sum(-1, keepdim=True) + 1e-20)
    loss = aux_loss_coeff * experts / (topk * tokens**2) * (share.sum(0) * counts).sum()
    loss = loss + z_loss_coeff * logits.logsumexp(-1).square().mean()
    return prob * scaling_factor, index, loss


def eager_moe(x, prob, index, w1, w2):
    y = torch.zeros_like(x)
    for expert in range(w1.size(0)):
        token, slot = (index == expert).nonzero(as_tuple=True)
        gate, up = (x[token] @ w1[expert].T).chunk(2, -1)
        rows = torch.nn.functional.silu(gate) * up * prob[token, slot].unsqueeze(1)
        y = y.index_add(0, token, rows.to(x.dtype) @ w2[expert].T)
    return y


def short(dtype):
    return str(dtype).removeprefix("torch.")


def gradients(value, tensors):
    torch.manual_seed(5)
    out = value if value.dim() == 0 else (value * torch.randn(value.shape, dtype=value.dtype, device=value.device)).sum()
    return torch.autograd.grad(out, tensors, retain_graph=True)


def far(ours, theirs):
    scale = theirs.abs().max().clamp_min(1e-30)
    return ((ours - theirs).abs().max() / scale).item() if ours.numel() else 0.0


def check_router(checks):
    cases = [dict(topk=1), dict(topk=2, use_pre_softmax=True, scaling_factor=2.5), dict(topk=3, score_function="sigmoid"),
             dict(topk=2, score_function="sqrtsoftplus"), dict(topk=6, aux_loss_coeff=0.01, z_loss_coeff=0.001),
             dict(topk=2, score_function="sigmoid", aux_loss_coeff=0.1, with_bias=True)]
    wide, bound = (torch.float32, 2e-6) if DEVICE == "cuda" else (torch.float64, 1e-12)
    for tokens in (1, 7, 64):
        for case in cases:
            options = dict(case)
            logits = tensor(tokens, 8, dtype=wide, scale=2.0)
            bias = torch.randn(8, dtype=wide, device=DEVICE) if options.pop("with_bias", False) else None
            prob, index, num_tokens, loss = primus_ops.router(logits, bias=bias, **options)
            double = logits.detach().double().requires_grad_()
            expected_prob, expected_index, expected_loss = eager_router(
                double, bias=None if bias is None else bias.double(), **options)
            name = f"router {case} on {tokens} tokens"
            checks.that(torch.equal(index.long(), expected_index), f"{name}: the choices differ")
            checks.near("probability", far(prob.double(), expected_prob), bound, name)
            checks.that(num_tokens.sum().item() == tokens * options["topk"], f"{name}: counts")
            checks.near("router loss", abs(loss.item() - expected_loss.item()), bound, name)
            ours = gradients(prob, [logits])[0] + gradients(loss, [logits])[0]
            torch.manual_seed(5)
            weights = torch.randn(prob.shape, dtype=prob.dtype, device=DEVICE).double()
            theirs = torch.autograd.grad((expected_prob * weights).sum() + expected_loss, [double])[0]
            # One choice a token: its probability is 1 whatever the logits are, and their gradient rounding alone.
            distance = (ours - theirs).abs().max().item() if options["topk"] == 1 else far(ours.double(), theirs)
            checks.near("router gradient", distance, 100 * bound, name)


def check_experts(checks):
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        if DEVICE == "cuda" and dtype == torch.float64:
            continue
        for tokens, experts, topk in ((1, 4, 1), (33, 4, 2), (64, 8, 3), (5, 16, 2)):
            x = tensor(tokens, 48, dtype=dtype)
            w1, w2 = tensor(experts, 2 * 24, 48, dtype=dtype, scale=0.1), tensor(experts, 48, 24, dtype=dtype, scale=0.1)
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            logits = tensor(tokens, experts, dtype=wide)
            prob, index, _, _ = primus_ops.router(logits, topk=topk)
            ours = primus_ops.moe_mlp(x, prob, index, w1, w2)
            double = [t.detach().double().requires_grad_() for t in (x, logits, w1, w2)]
            expected_prob = eager_router(double[1], topk)[0]
            theirs = eager_moe(double[0], expected_prob, index.long(), double[2], double[3])
            name = f"experts {dtype} {tokens} {experts} {topk}"
            checks.near(f"{short(dtype)} experts", far(ours.double(), theirs), bound, name)
            torch.manual_seed(5)
            weights = torch.randn(theirs.shape, dtype=torch.float64, device=DEVICE)
            for what, mine, other in zip(("x", "logits", "w1", "w2"),
                                         torch.autograd.grad((ours * weights.to(ours.dtype)).sum(), [x, logits, w1, w2]),
                                         torch.autograd.grad((theirs * weights).sum(), double)):
                # One choice a token: its probability is 1 whatever the logits are, and their gradient rounding alone.
                distance = mine.abs().max().item() if topk == 1 and what == "logits" else far(mine.double(), other)
                checks.near(f"{short(dtype)} gradient", distance, 3 * bound, f"{name}, {what}")


def check_loss(checks):
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        if DEVICE == "cuda" and dtype == torch.float64:
            continue
        for tokens in (1, 37):
            x, w = tensor(tokens, 32, dtype=dtype), tensor(200, 32, dtype=dtype, scale=0.3)
            label = torch.randint(0, 200, (tokens,), device=DEVICE)
            label[1::3] = -100
            loss = primus_ops.linear_cross_entropy(x, w, label)
            double = [t.detach().double().requires_grad_() for t in (x, w)]
            expected = torch.nn.functional.cross_entropy(double[0] @ double[1].T, label, ignore_index=-100)
            checks.near(f"{short(dtype)} loss", abs(loss.item() - expected.item()) / max(1, expected.item()), bound, f"{tokens} tokens")
            for mine, other in zip(gradients(2 * loss, [x, w]), gradients(2 * expected, double)):
                checks.near(f"{short(dtype)} loss gradient", far(mine.double(), other), bound, f"{tokens} tokens")


def check_registration(checks):
    """PyTorch's own checks: schema, gradients, shapes without data, tracing with symbolic sizes."""
    logits = tensor(9, 8)
    options = (2, "softmax", False, 1.0, 1, 1, 0.01, 0.001)
    prob, index, _, _, slope = ops.router(logits, None, *options)
    offsets, row_of, slot_of = ops.permute_plan(index, 8)
    x, w1, w2 = tensor(9, 16), tensor(8, 24, 16), tensor(8, 16, 12)
    rows, prob_rows = ops.permute(x, row_of), ops.permute_probs(prob, slot_of)
    y, pre = ops.grouped_mlp(rows, offsets, prob_rows, w1, w2)
    free = [t.detach().requires_grad_() for t in (prob, rows, prob_rows, y)]
    constants = [t.detach() for t in (logits, prob, slope, rows, prob_rows, w1, w2, pre, y)]
    label = torch.randint(0, 50, (9,), device=DEVICE)
    for name, arguments in {
            "router": (logits, None, *options),
            "router_backward": (constants[1], None, constants[0], constants[1], index, constants[2], *options),
            "permute_plan": (index, 8),
            "permute": (x, row_of),
            "unpermute": (free[3], row_of),
            "permute_probs": (free[0], slot_of),
            "unpermute_probs": (constants[4], row_of),
            "grouped_mlp": (free[1], offsets, free[2], w1, w2),
            "grouped_mlp_backward": (constants[8], constants[3], offsets, constants[4], constants[5], constants[6],
                                     constants[7]),
            "linear_cross_entropy": (x, tensor(50, 16), label, -100)}.items():
        try:
            torch.library.opcheck(getattr(ops, name).default, arguments)
            checks.that(True, name)
        except Exception as error:  # noqa: BLE001: opcheck raises many kinds
            checks.that(False, f"opcheck of {name}: {str(error)[:2000]}")


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        parameter = lambda *shape: torch.nn.Parameter(torch.randn(*shape, device=DEVICE) * 0.1)  # noqa: E731
        self.gate, self.w1, self.w2, self.out = parameter(8, 32), parameter(8, 48, 32), parameter(8, 32, 24), parameter(100, 32)

    def forward(self, x, label):
        prob, index, _, aux = primus_ops.router(x @ self.gate.T, topk=2, aux_loss_coeff=0.01)
        x = x + primus_ops.moe_mlp(x, prob, index, self.w1, self.w2)
        return primus_ops.linear_cross_entropy(x, self.out, label) + aux


def check_compile(checks):
    torch.manual_seed(3)
    block = Block()
    compiled = torch.compile(block, backend=os.environ.get("PRIMUS_TEST_BACKEND", "aot_eager"), fullgraph=True, dynamic=True)
    for tokens in (24, 40):
        x, label = torch.randn(tokens, 32, device=DEVICE), torch.randint(0, 100, (tokens,), device=DEVICE)
        results = []
        for model in (block, compiled):
            block.zero_grad()
            loss = model(x, label)
            loss.backward()
            results.append([loss.detach().clone()] + [p.grad.clone() for p in block.parameters()])
        for ours, theirs in zip(*results):
            checks.near("compiled", far(ours, theirs), 1e-5, f"torch.compile, {tokens} tokens")


def check_refusals(checks):
    """What does not fit is refused by name."""
    logits, index = tensor(4, 8), torch.zeros(4, 2, dtype=torch.int32, device=DEVICE)
    x, w1, w2 = tensor(8, 16), tensor(8, 24, 16), tensor(8, 16, 12)
    offsets, row_of, slot_of = ops.permute_plan(index, 8)
    prob = torch.ones(8, device=DEVICE)
    for part, call in {
            "topk": lambda: primus_ops.router(logits, topk=9),
            "score_function": lambda: primus_ops.router(logits, topk=2, score_function="tanh"),
            "num_groups": lambda: primus_ops.router(logits, topk=2, num_groups=3),
            "logits: expected float32 or float64": lambda: primus_ops.router(logits.bfloat16(), topk=2),
            "index: expected int32": lambda: ops.permute_plan(index.long(), 8),
            "num_experts": lambda: ops.permute_plan(index, 0),
            "x: expected floating-point [4, any], found Float [8, 16]": lambda: ops.permute(x, row_of),
            "w1": lambda: ops.grouped_mlp(x, offsets, prob, w1[:, :20], w2),
            "one type": lambda: ops.grouped_mlp(x, offsets, prob, w1.bfloat16(), w2.bfloat16()),
            "offsets": lambda: ops.grouped_mlp(x, offsets[:-1], prob, w1, w2),
            "label": lambda: primus_ops.linear_cross_entropy(x, tensor(50, 16), torch.zeros(3, dtype=torch.int64, device=DEVICE)),
    }.items():
        try:
            call()
            checks.that(False, f"nothing was refused where {part} is wrong")
        except (RuntimeError, ValueError) as error:
            checks.that(part in str(error), f"{part} is not named: {error}")


def main():
    torch.manual_seed(11)
    primus_ops.load()
    checks = Checks()
    for check in (check_router, check_experts, check_loss, check_registration, check_compile, check_refusals):
        check(checks)
    checks.report("torch.ops.primus")
    return 0


if __name__ == "__main__":
    sys.exit(main())
