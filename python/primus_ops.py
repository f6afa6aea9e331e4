"""torch.ops.primus: router, permutation, expert MLP and fused loss of Primus-CPP in a PyTorch model.

    import primus_ops
    primus_ops.load("build/release/bin/libprimus_torch_ops.so")
    prob, index, num_tokens, loss = primus_ops.router(logits, topk=6)

The library brings the ops; this module gives them gradients (torch.autograd) and shapes (torch.compile). docs/torch_ops.md
says what each argument is. Legend of shapes: T tokens, E experts, K topk, R = T * K rows by expert, H hidden, F ffn width,
V vocabulary.
"""
import os
import pathlib

import torch

_LIBRARY = "libprimus_torch_ops.so"
_loaded = None


def find_library():
    """The library that PRIMUS_TORCH_OPS names, or the newest one that was built beside this module."""
    named = os.environ.get("PRIMUS_TORCH_OPS")
    if named:
        return pathlib.Path(named)
    root = pathlib.Path(__file__).resolve().parents[1]
    built = sorted(root.glob(f"build/*/bin/{_LIBRARY}"), key=lambda path: path.stat().st_mtime)
    if not built:
        raise FileNotFoundError(f"no {_LIBRARY} under {root / 'build'}: run `make build`, or set PRIMUS_TORCH_OPS to its path")
    return built[-1]


def load(path=None):
    """Load the ops once; later calls with another path are errors."""
    global _loaded
    path = pathlib.Path(path) if path is not None else find_library()
    if _loaded is not None:
        if path.resolve() != _loaded:
            raise RuntimeError(f"{_loaded} is loaded already; {path} cannot take its place in this process")
        return
    torch.ops.load_library(str(path))
    _loaded = path.resolve()
    _register()


def _register():
    library = torch.library
    library.register_fake("primus::router")(_router_shapes)
    library.register_fake("primus::router_backward")(lambda dprob, dloss, logits, *rest: torch.empty_like(logits))
    library.register_fake("primus::permute_plan")(_plan_shapes)
    library.register_fake("primus::permute")(lambda x, row_of: x.new_empty(row_of.numel(), x.size(1)))
    library.register_fake("primus::unpermute")(lambda y, row_of: y.new_empty(row_of.size(0), y.size(1)))
    library.register_fake("primus::permute_probs")(lambda prob, slot_of: prob.new_empty(slot_of.numel()))
    library.register_fake("primus::unpermute_probs")(lambda prob, row_of: prob.new_empty(row_of.shape))
    library.register_fake("primus::grouped_mlp")(
        lambda x, offsets, prob, w1, w2: (x.new_empty(x.shape), x.new_empty(x.size(0), w1.size(1))))
    library.register_fake("primus::grouped_mlp_backward")(
        lambda dy, x, offsets, prob, w1, w2, pre: tuple(t.new_empty(t.shape) for t in (x, prob, w1, w2)))
    library.register_fake("primus::linear_cross_entropy")(_loss_shapes)

    library.register_autograd("primus::router", _router_backward, setup_context=_keep_router)
    library.register_autograd("primus::permute", lambda ctx, dy: (torch.ops.primus.unpermute(dy, *ctx.saved_tensors), None),
                              setup_context=_keep_second)
    library.register_autograd("primus::unpermute", lambda ctx, dy: (torch.ops.primus.permute(dy, *ctx.saved_tensors), None),
                              setup_context=_keep_second)
    library.register_autograd("primus::permute_probs", _permute_probs_backward, setup_context=_keep_probs)
    library.register_autograd("primus::grouped_mlp", _grouped_mlp_backward, setup_context=_keep_grouped_mlp)
    library.register_autograd("primus::linear_cross_entropy", _loss_backward, setup_context=_keep_loss)


def _router_shapes(logits, bias, topk, score_function, use_pre_softmax, scaling_factor, num_groups, group_topk,
                   aux_loss_coeff, z_loss_coeff):
    tokens, experts = logits.shape
    return (logits.new_empty(tokens, topk), logits.new_empty(tokens, topk, dtype=torch.int32),
            logits.new_empty(experts, dtype=torch.int32), logits.new_empty(()), logits.new_empty(1, experts))


def _plan_shapes(index, num_experts):
    return index.new_empty(num_experts + 1), index.new_empty(index.shape), index.new_empty(index.numel())


def _loss_shapes(x, weight, label, ignore_index):
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty((), dtype=wide), x.new_empty(x.shape), weight.new_empty(weight.shape)


def _keep_router(ctx, inputs, output):
    logits, _, *ctx.options = inputs
    prob, index, num_tokens, _, slope = output
    ctx.mark_non_differentiable(index, num_tokens, slope)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(logits, prob, index, slope)


def _router_backward(ctx, dprob, dindex, dnum_tokens, dloss, dslope):
    dlogits = torch.ops.primus.router_backward(dprob, dloss, *ctx.saved_tensors, *ctx.options)
    return (dlogits, *[None] * 9)


def _keep_second(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])


def _keep_probs(ctx, inputs, output):
    prob, slot_of = inputs
    ctx.topk = prob.size(1)
    ctx.save_for_backward(slot_of)


def _permute_probs_backward(ctx, dprob):
    # row_of is slot_of's inverse.
    slot_of, = ctx.saved_tensors
    rows = torch.arange(slot_of.numel(), dtype=torch.int32, device=slot_of.device)
    row_of = torch.empty_like(slot_of).scatter(0, slot_of.long(), rows)
    return torch.ops.primus.unpermute_probs(dprob, row_of.view(-1, ctx.topk)), None


def _keep_grouped_mlp(ctx, inputs, output):
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs, output[1])


def _grouped_mlp_backward(ctx, dy, dpre):
    dx, dprob, dw1, dw2 = torch.ops.primus.grouped_mlp_backward(dy, *ctx.saved_tensors)
    return dx, None, dprob, dw1, dw2


def _keep_loss(ctx, inputs, output):
    _, dx, dweight = output
    ctx.mark_non_differentiable(dx, dweight)
    ctx.save_for_backward(dx, dweight)


def _loss_backward(ctx, dloss, ddx, ddweight):
    dx, dweight = ctx.saved_tensors
    return dx * dloss.to(dx.dtype), dweight * dloss.to(dweight.dtype), None, None


def router(logits, topk, bias=None, score_function="softmax", use_pre_softmax=False, scaling_factor=1.0, num_groups=1,
           group_topk=1, aux_loss_coeff=0.0, z_loss_coeff=0.0):
    """Choices of each token: prob [T, K], index [T, K] (int32), num_tokens [E] (int32) and the losses' sum."""
    prob, index, num_tokens, loss, _ = torch.ops.primus.router(
        logits, bias, topk, score_function, use_pre_softmax, scaling_factor, num_groups, group_topk, aux_loss_coeff,
        z_loss_coeff)
    return prob, index, num_tokens, loss


def moe_mlp(x, prob, index, w1, w2):
    """SwiGLU experts, dropless: x [T, H], w1 [E, 2F, H] (gate, then up), w2 [E, H, F]; gives [T, H]."""
    offsets, row_of, slot_of = torch.ops.primus.permute_plan(index, w1.size(0))
    rows = torch.ops.primus.permute(x, row_of)
    y, _ = torch.ops.primus.grouped_mlp(rows, offsets, torch.ops.primus.permute_probs(prob, slot_of), w1, w2)
    return torch.ops.primus.unpermute(y, row_of)


def linear_cross_entropy(x, weight, label, ignore_index=-100):
    """Mean loss of an output layer without its logits: x [T, H], weight [V, H], label [T] (int64)."""
    return torch.ops.primus.linear_cross_entropy(x, weight, label, ignore_index)[0]
