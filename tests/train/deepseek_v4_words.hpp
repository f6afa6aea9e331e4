#pragma once
// DeepSeek-V4's attention in a tiny model by its keys: a layer with picked entries and one with entries of eight
// tokens, both of which route by token.
#include <string>
#include <vector>

namespace primus::train {

inline const std::vector<std::string> kDeepSeekV4Words = {
    // clang-format off
    "--model_type", "deepseek_v4", "--multi_latent_attention", "False", "--qk_layernorm", "False",
    "--q_lora_rank", "24", "--kv_channels", "32", "--qk_pos_emb_head_dim", "16",
    "--hybrid_attention_enabled", "True", "--compress_ratios", "[4,8]", "--attn_sliding_window", "6",
    "--attn_sink", "True", "--o_groups", "2", "--o_lora_rank", "12",
    "--index_n_heads", "2", "--index_head_dim", "24", "--index_topk", "3",
    "--v4_indexer_distill_loss_coeff", "0.1", "--num_hash_layers", "2", "--moe_layer_freq", "1",
    // clang-format on
};

}  // namespace primus::train
