"""Tiny random models of transformers, and which of them our layers cannot run yet."""
import random
import sys

import torch
import transformers

# Remove a line when the layers that it names are built: everything in hugging_face_test.py then applies to that model.
NOT_RUNNABLE = {}

# What moves by counts, not by gradients, and stays fp32.
EXPERT_BIASES = ("e_score_correction_bias", "expert_bias")


def common(rng, head_multiple=4):
    heads = rng.choice([2, 4])
    return dict(vocab_size=rng.choice([97, 128, 160]), hidden_size=heads * head_multiple * rng.choice([4, 6]),
                num_hidden_layers=rng.randint(2, 4), num_attention_heads=heads, max_position_embeddings=128,
                rms_norm_eps=rng.choice([1e-6, 1e-5]), initializer_range=0.05)


def grouped(rng, sizes):
    return rng.choice([g for g in (1, 2, 4) if sizes["num_attention_heads"] % g == 0])


def yarn(rng):
    """DeepSeek's positions, or plain ones."""
    if rng.random() < 0.4:
        return {"rope_type": "default", "rope_theta": 10000.0}
    return {"rope_type": "yarn", "rope_theta": 10000.0, "factor": rng.choice([4.0, 40.0]), "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 32}


def latent(rng, sizes):
    return dict(num_key_value_heads=sizes["num_attention_heads"], q_lora_rank=rng.choice([None, 12]),
                kv_lora_rank=16, qk_rope_head_dim=rng.choice([4, 8]), qk_nope_head_dim=rng.choice([8, 12]),
                v_head_dim=rng.choice([8, 12]))


def llama(rng, rope=None):
    sizes = common(rng)
    return transformers.LlamaConfig(**sizes, intermediate_size=rng.choice([40, 72]), num_key_value_heads=grouped(rng, sizes),
                                    tie_word_embeddings=rng.random() < 0.3, rope_parameters=rope or {
                                        "rope_type": "default", "rope_theta": rng.choice([10000.0, 500000.0])})


def llama3_rope(rng):
    return llama(rng, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                       "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})


def mixtral(rng):
    sizes = common(rng)
    experts = rng.choice([4, 8])
    return transformers.MixtralConfig(**sizes, intermediate_size=rng.choice([24, 40]), num_local_experts=experts,
                                      num_key_value_heads=grouped(rng, sizes), num_experts_per_tok=rng.choice([2, 3]))


def qwen3_moe(rng):
    sizes = common(rng)
    return transformers.Qwen3MoeConfig(**sizes, intermediate_size=40, moe_intermediate_size=rng.choice([16, 24]),
                                       num_key_value_heads=grouped(rng, sizes), head_dim=rng.choice([8, 16]),
                                       num_experts=8, num_experts_per_tok=rng.choice([2, 3]),
                                       norm_topk_prob=rng.random() < 0.7, mlp_only_layers=[0] if rng.random() < 0.5 else [])


def deepseek_v2(rng, groups=None):
    sizes = common(rng)
    routing = dict(topk_method="group_limited_greedy", n_group=4, topk_group=2) if groups else dict(
        topk_method="greedy", n_group=1, topk_group=1)
    return transformers.DeepseekV2Config(**sizes, **latent(rng, sizes), **routing, intermediate_size=rng.choice([40, 72]),
                                         moe_intermediate_size=rng.choice([16, 24]), n_routed_experts=8,
                                         n_shared_experts=rng.choice([1, 2]), num_experts_per_tok=rng.choice([2, 3]),
                                         first_k_dense_replace=rng.choice([0, 1]),
                                         routed_scaling_factor=rng.choice([1.0, 2.5]), rope_parameters=yarn(rng))


def deepseek_v2_groups(rng):
    return deepseek_v2(rng, groups=True)


def deepseek_v3(rng, groups=True):
    sizes = common(rng)
    return transformers.DeepseekV3Config(**sizes, **latent(rng, sizes), intermediate_size=rng.choice([40, 72]),
                                         moe_intermediate_size=rng.choice([16, 24]), n_routed_experts=8, n_shared_experts=1,
                                         num_experts_per_tok=4 if groups else rng.choice([2, 3]),
                                         n_group=4 if groups else 1, topk_group=2 if groups else 1,
                                         first_k_dense_replace=1, routed_scaling_factor=2.5, rope_parameters=yarn(rng))


def deepseek_v3_no_groups(rng):
    return deepseek_v3(rng, groups=False)


def sparse(rng, sizes):
    """An indexer of many heads: where all are silent, scores are equal, and transformers says not which keys it takes."""
    return dict(latent(rng, sizes), q_lora_rank=12, intermediate_size=rng.choice([40, 72]), n_routed_experts=8,
                moe_intermediate_size=rng.choice([16, 24]), n_shared_experts=1, routed_scaling_factor=2.5,
                index_topk=rng.choice([3, 6, 9]), index_head_dim=rng.choice([8, 12, 16]), index_n_heads=16,
                rope_parameters=yarn(rng))


def deepseek_v32(rng):
    sizes = common(rng)
    return transformers.DeepseekV32Config(**sizes, **sparse(rng, sizes), num_experts_per_tok=4, n_group=4, topk_group=2,
                                          first_k_dense_replace=1)


def glm_moe_dsa(rng):
    """Layers share choices of keys."""
    sizes = dict(common(rng), num_hidden_layers=rng.choice([3, 4]))
    types = rng.choice([["full"] * 4, ["full", "shared", "full", "shared"], ["full", "full", "shared", "shared"]])
    return transformers.GlmMoeDsaConfig(**sizes, **sparse(rng, sizes), num_experts_per_tok=rng.choice([2, 3]), n_group=1,
                                        topk_group=1, first_k_dense_replace=1,
                                        indexer_types=types[:sizes["num_hidden_layers"]])


def gpt_oss(rng):
    sizes = dict(common(rng), rms_norm_eps=1e-5)
    return transformers.GptOssConfig(**sizes, intermediate_size=rng.choice([24, 40]),
                                     num_key_value_heads=grouped(rng, sizes), head_dim=rng.choice([8, 16]),
                                     num_local_experts=rng.choice([4, 8]),
                                     num_experts_per_tok=2, sliding_window=rng.choice([5, 8]))


def lfm2_layers(rng, layers):
    """At least one layer of each kind."""
    kinds = ["conv", "full_attention"] + [rng.choice(["conv", "full_attention"]) for _ in range(layers - 2)]
    rng.shuffle(kinds)
    return kinds


def lfm2_sizes(rng):
    """Without a padding token: torch's embedding drops the gradient of its row, whatever the loss says."""
    sizes = common(rng)
    sizes["norm_eps"] = sizes.pop("rms_norm_eps")
    return dict(sizes, num_key_value_heads=grouped(rng, sizes), pad_token_id=None, conv_L_cache=rng.choice([1, 3, 4]),
                conv_bias=rng.random() < 0.5, layer_types=lfm2_layers(rng, sizes["num_hidden_layers"]),
                tie_word_embeddings=rng.random() < 0.7)


def lfm2(rng):
    return transformers.Lfm2Config(**lfm2_sizes(rng), intermediate_size=rng.choice([40, 72]),
                                   block_multiple_of=rng.choice([8, 24]), block_ffn_dim_multiplier=rng.choice([1.0, 1.3]),
                                   block_auto_adjust_ff_dim=rng.random() < 0.7)


def lfm2_moe(rng):
    return transformers.Lfm2MoeConfig(**lfm2_sizes(rng), intermediate_size=rng.choice([40, 72]),
                                      moe_intermediate_size=rng.choice([16, 24]), num_dense_layers=rng.choice([0, 1]),
                                      num_experts=8, num_experts_per_tok=rng.choice([2, 3]),
                                      use_expert_bias=rng.random() < 0.7, routed_scaling_factor=rng.choice([1.0, 2.5]))


def qwen3_next(rng):
    sizes = common(rng)
    layers = sizes["num_hidden_layers"]
    kinds = [kind.replace("conv", "linear_attention") for kind in lfm2_layers(rng, layers)]
    key_heads = rng.choice([1, 2, 3])
    return transformers.Qwen3NextConfig(
        **sizes, intermediate_size=40, moe_intermediate_size=rng.choice([16, 24]),
        shared_expert_intermediate_size=rng.choice([16, 24]), num_key_value_heads=grouped(rng, sizes),
        head_dim=rng.choice([8, 16]), num_experts=8, num_experts_per_tok=rng.choice([2, 3]),
        norm_topk_prob=rng.random() < 0.7, mlp_only_layers=[0] if rng.random() < 0.5 else [], layer_types=kinds,
        linear_num_key_heads=key_heads, linear_num_value_heads=key_heads * rng.choice([1, 2]),
        linear_key_head_dim=rng.choice([4, 8, 12]), linear_value_head_dim=rng.choice([4, 8, 12]),
        linear_conv_kernel_dim=rng.choice([2, 4]), pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                         "partial_rotary_factor": rng.choice([0.25, 0.5, 1.0])})


def kimi_linear(rng):
    """Every layer with experts: transformers writes a dense layer's MLP as block_sparse_moe, the released files do not."""
    sizes = common(rng)
    sizes["model_max_length"] = sizes.pop("max_position_embeddings")
    layers = sizes["num_hidden_layers"]
    kinds = [kind.replace("conv", "linear_attention") for kind in lfm2_layers(rng, layers)]
    return transformers.KimiLinearConfig(
        **sizes, **latent(rng, sizes), intermediate_size=40, moe_intermediate_size=rng.choice([16, 24]),
        num_local_experts=8, num_experts_per_tok=rng.choice([2, 3]), n_shared_experts=rng.choice([1, 2]), n_group=1,
        topk_group=1, routed_scaling_factor=rng.choice([1.0, 2.446]), layer_types=kinds,
        mlp_layer_types=["sparse"] * layers, linear_num_heads=rng.choice([1, 2, 3]),
        linear_head_dim=rng.choice([4, 8, 12]), linear_conv_kernel_dim=rng.choice([2, 4]), pad_token_id=None,
        bos_token_id=None, eos_token_id=None)


MODELS = {f.__name__: f for f in (llama, llama3_rope, mixtral, qwen3_moe, deepseek_v2, deepseek_v2_groups, deepseek_v3,
                                  deepseek_v3_no_groups, deepseek_v32, glm_moe_dsa, gpt_oss, lfm2,
                                  lfm2_moe, qwen3_next, kimi_linear)}


def correct(model):
    """Where transformers' code departs from its own config: the norms of DeepSeek's latent vectors ignore rms_norm_eps.
    And from its own arithmetic: of its two forms of the gated delta rule, that in chunks subtracts numbers near 1 from
    each other where a decay's gradient is tiny (seen: 12 % off its fp64 value, 3e-7); the one token by token does not.
    Kimi Linear's rule has the same two forms."""
    if model.config.model_type == "qwen3_next":
        code = sys.modules[type(model).__module__]
        code.torch_chunk_gated_delta_rule = code.torch_recurrent_gated_delta_rule
    if model.config.model_type == "kimi_linear":
        code = sys.modules[type(model).__module__]
        code.chunk_kimi_delta_attention = code.recurrent_kimi_delta_attention
    for name, module in model.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.variance_epsilon = model.config.rms_norm_eps
    return model


def make(name, seed):
    """A model whose every parameter is random: ones in norms and zeros in biases would hide what is swapped."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    config = MODELS[name](rng)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager",
                                                          experts_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for key, buffer in model.named_buffers():
            if key.endswith(EXPERT_BIASES):
                buffer.copy_(0.1 * torch.randn_like(buffer))
    return correct(model.eval())
