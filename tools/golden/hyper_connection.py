"""Residual streams through two hyper-connections and the head of transformers' DeepSeek-V4, and their gradients (fp32)."""
import inspect
import types

import torch
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (DeepseekV4DecoderLayer, DeepseekV4HyperConnection,
                                                                   DeepseekV4HyperHead)

from golden_text import GoldenText

golden = GoldenText(__file__, "Hyper-connections of DeepSeek-V4: y = tanh(z) and y = sin(2 z) stand for attention and MLP.")


def put(name, tensor):
    golden.put(name, *(f"{value:.9g}" for value in tensor.detach().flatten().tolist()))


def case(name, tokens, streams, hidden, iterations, norm_epsilon, epsilon, seed):
    generator = torch.Generator().manual_seed(seed)
    config = DeepseekV4Config(hc_mult=streams, hidden_size=hidden, hc_sinkhorn_iters=iterations, hc_eps=epsilon,
                              rms_norm_eps=norm_epsilon)
    first, second, head = DeepseekV4HyperConnection(config), DeepseekV4HyperConnection(config), DeepseekV4HyperHead(config)
    golden.case(name)
    for key, value in (("tokens", tokens), ("streams", streams), ("hidden", hidden), ("iterations", iterations),
                       ("norm_epsilon", norm_epsilon), ("epsilon", epsilon)):
        golden.put(key, value)
    parameters = []
    for part, module in (("first", first), ("second", second), ("head", head)):
        for key, parameter in module.named_parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
            key = key.removeprefix("hc_")
            put(f"{part}.{key}", parameter)
            parameters.append((f"{part}.{key}", parameter))
    x = torch.randn(1, tokens, streams, hidden, generator=generator, requires_grad=True)
    weight = torch.randn(1, tokens, hidden, generator=generator)
    put("x", x)
    put("dz", weight)
    layer = types.SimpleNamespace(attn_hc=first, ffn_hc=second, input_layernorm=lambda z: z,
                                  post_attention_layernorm=lambda z: z,
                                  self_attn=lambda z: (torch.tanh(z), None),
                                  mlp=lambda z, input_ids: torch.sin(2 * z))
    out = inspect.unwrap(DeepseekV4DecoderLayer.forward)(layer, x)
    z = head(out)
    (z * weight).sum().backward()
    put("out", out)
    put("z", z)
    put("dx", x.grad)
    for key, parameter in parameters:
        put(f"d{key}", parameter.grad)


case("4 streams as released", 5, 4, 6, 20, 1e-6, 1e-6, 1)
case("2 streams, one iteration, large epsilons", 3, 2, 5, 1, 1e-2, 3e-2, 2)
case("3 streams, two iterations, one token", 1, 3, 4, 2, 1e-5, 1e-3, 3)
case("1 stream", 2, 1, 7, 3, 1e-5, 1e-4, 4)
golden.write()
