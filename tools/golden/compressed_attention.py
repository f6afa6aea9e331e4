"""DeepSeek-V4's attention by transformers' own module (which computes in fp32): outputs and gradients of the three kinds
of layers. Inputs and weights follow from a formula, so that only results are written."""
import torch
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Attention, DeepseekV4RotaryEmbedding

from golden_text import GoldenText

torch.set_num_threads(1)
golden = GoldenText(__file__, "DeepSeek-V4's attention: outputs and gradients.")


def formula(number, shape, scale=1.0):
    """The tensor of this number: scale * sin(1 + number + 0.37 * (i + 1) * (number + 2)) over its elements i."""
    count = torch.Size(shape).numel()
    angle = 1 + number + 0.37 * (torch.arange(count, dtype=torch.float64) + 1) * (number + 2)
    return (scale * torch.sin(angle)).reshape(shape).float()


def expect_no_ties(scores, positions, config):
    """Of equal scores it would be chance which entry a query picks."""
    for query, row in zip(positions.flatten(), scores.flatten(0, 1)):
        seen = row[:(query + 1) // 4].sort(descending=True).values
        if len(seen) > config.index_topk:
            assert seen[config.index_topk - 1] - seen[config.index_topk] > 1e-5


def case(name, kind, length, ratio, **sizes):
    config = DeepseekV4Config(
        vocab_size=32, hidden_size=12, moe_intermediate_size=8, num_hidden_layers=1, num_attention_heads=4, head_dim=10,
        q_lora_rank=6, num_experts_per_tok=1, n_routed_experts=2, qk_rope_head_dim=4, layer_types=[kind],
        mlp_layer_types=["moe"], compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": ratio},
        rope_theta=10000.0, compress_rope_theta=500.0, max_position_embeddings=256,
        rope_parameters={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                         "beta_fast": 32, "beta_slow": 1},
        sliding_window=5, o_groups=2, o_lora_rank=3, index_n_heads=7, index_head_dim=6, index_topk=2,
        rms_norm_eps=1e-6, attn_implementation="eager", **sizes)
    attention = DeepseekV4Attention(config, 0).train()
    for number, (key, weight) in enumerate(sorted(attention.named_parameters())):
        weight.data = formula(number, weight.shape, 0.6).to(weight.dtype)
        if key.endswith("norm.weight"):
            weight.data += 1.0
    batch = 2
    x = formula(50, (batch, length, config.hidden_size)).requires_grad_()
    dy = formula(51, (batch, length, config.hidden_size))
    positions = torch.arange(length).unsqueeze(0).expand(batch, -1)
    rotary = DeepseekV4RotaryEmbedding(config)
    tables = {label: rotary(x, positions, layer_type=label) for label in ("main", "compress")}
    distance = torch.arange(length).view(-1, 1) - torch.arange(length).view(1, -1)
    hidden = (distance < 0) | (distance >= config.sliding_window)
    mask = torch.zeros(length, length).masked_fill(hidden, float("-inf")).expand(batch, 1, -1, -1)
    if kind == "compressed_sparse_attention":
        attention.compressor.indexer.scorer.register_forward_hook(
            lambda module, inputs, scores: expect_no_ties(scores, positions, config))
    y, _ = attention(x, tables, positions, mask)
    (y * dy).sum().backward()

    golden.case(name)
    golden.put("sizes", batch, length, ratio if kind != "sliding_attention" else 0)
    write = lambda key, tensor: golden.put(key, *(f"{value:.8g}" for value in tensor.flatten().tolist()))
    write("y", y)
    write("dx", x.grad)
    for number, (key, weight) in enumerate(sorted(attention.named_parameters())):
        golden.put("parameter", number, key)
        if weight.grad is not None:
            write("gradient", weight.grad)


case("window", "sliding_attention", 11, 4)
case("entries of many tokens", "heavily_compressed_attention", 21, 6)
case("picked entries", "compressed_sparse_attention", 22, 4)
case("fewer tokens than an entry has", "heavily_compressed_attention", 4, 6)
golden.write()
