// Rows: what the network is. Structure, positions, latent attention, tokenizer.
#include "config/key_rows.hpp"

// clang-format off
namespace primus::config::rows {
namespace {

constexpr Key kStructure[] = {
  works("num_layers", kInt, "24", ">=1", "Decoder layers."),
  works("hidden_size", kInt, "1024", ">=1", "Width of the residual stream."),
  works("num_attention_heads", kInt, "16", ">=1", "Query heads of every attention layer."),
  works("ffn_hidden_size", kInt, "null", ">=1", "Inner width of the dense MLP.", "null with SwiGLU: 8/3 of hidden_size, rounded down to a multiple of 64"),
  works("group_query_attention", kBool, "false", "", "Several query heads share one key and value head."),
  works("num_query_groups", kInt, "null", ">=1", "Key and value heads with grouped queries."),
  works("kv_channels", kInt, "null", ">=1", "Size of one attention head.", "null: hidden_size / num_attention_heads; latent attention has its own sizes"),
  works("normalization", kText, "LayerNorm", "LayerNorm|RMSNorm", "Kind of normalization before attention, before the MLP and at the end.", "LayerNorm: on the CPU; norms on queries, keys and latent vectors follow"),
  works("norm_epsilon", kReal, "1e-05", ">0", "Added under the square root of every norm.", "also spelled layernorm_epsilon"),
  works("qk_layernorm", kBool, "false", "", "Norm on each head's query and key.", "with latent attention: the norms of the latent vectors"),
  works("untie_embeddings_and_output_weights", kBool, "true", "", "The output layer has its own weights instead of the embedding's."),
  works("swiglu", kBool, "true", "", "Gated SiLU in every MLP and expert.", "false, and no other activation: exact GELU, or its tanh form with add_bias_linear and bias_gelu_fusion"),
  works("add_bias_linear", kBool, "false", "", "Biases in linear layers."),
  works("add_qkv_bias", kBool, "false", "", "Biases on the query, key and value projections."),
  works("quick_geglu", kBool, "false", "", "Gated sigmoid-approximated GELU."),
  works("openai_gelu", kBool, "false", "", "GELU in its tanh form."),
  works("squared_relu", kBool, "false", "", "Squared ReLU in the MLP."),
  works("qk_l2_norm", kBool, "false", "", "Norm on each head's query and key, without a weight."),
  works("final_logit_softcapping", kReal, "null", ">0", "tanh bound on the output logits.", "on the CPU"),
  works("attn_logit_softcapping", kReal, "null", ">0", "tanh bound on the attention logits."),
  works("router_logit_softcapping", kReal, "null", ">0", "tanh bound on the router's logits."),
  works("lfm_layer_types", kTextList, "null", "conv|full_attention", "Layer kinds of LFM2, in order.", "on the CPU"),
  works("conv_L_cache", kInt, "3", ">=1", "Kernel length of LFM2's short convolutions."),
  works("conv_bias", kBool, "false", "", "Biases of LFM2's short convolutions and of the projections around them."),
  works("fp32_residual_connection", kBool, "false", "", "Residual stream held in fp32 whatever the compute type.", "on the CPU; fp32 runs have nothing else"),
  works("apply_residual_connection_post_layernorm", kBool, "false", "", "Residual taken after the norm instead of before it.", "on the CPU"),
  works("apply_layernorm_1p", kBool, "false", "", "Norm weights stored as their difference from one.", "on the CPU; of both kinds of norm"),
  works("mtp_num_layers", kInt, "null", ">=0", "Multi-token prediction depths after the decoder."),
  works("mtp_loss_scaling_factor", kReal, "0.1", ">=0", "Weight of the prediction depths' mean loss."),
  works("model_type", kText, "gpt", "gpt|deepseek_v4|kimi_k3", "Kind of model: layers of Kimi K3 are delta and latent attention."),
  no_effect("encoder_num_layers", kInt, "null", ">=0", "Layers of an encoder before the decoder.", "models here are decoders; more than 0 is refused"),
  no_effect("decoder_num_layers", kInt, "null", ">=0", "Decoder layers of an encoder-decoder model.", "num_layers counts the decoder's layers"),
  works("attention_backend", kText, "auto", "auto|flash|fused|unfused|local", "Which attention kernel family runs.", "on a GPU; unfused, local: matrix products and softmax, slower, to be compared with; else cuDNN's wherever it takes the sizes"),
  no_effect("use_flash_attn", kBool, "false", "", "Ask for memory-saving attention.", "attention never holds the full score matrix"),
  no_effect("transformer_impl", kText, "transformer_engine", "local|transformer_engine|inference_optimized", "Which layer library builds the model.", "there is one implementation"),
  no_effect("use_legacy_models", kBool, "false", "", "Old model classes.", "there is one implementation"),
  no_effect("deprecated_use_mcore_models", kBool, "false", "", "Old switch between model classes.", "there is one implementation"),
  no_effect("spec", kTextList, "null", "", "Python module that describes the layers.", "layers are described by the other keys"),
};

constexpr Key kPosition[] = {
  works("position_embedding_type", kText, "learned_absolute", "learned_absolute|rope|yarn|mrope|relative|none", "How positions enter the model.", "relative: refused, it belongs to encoders; mrope: text has one position for all parts of a head, so it is rope; learned_absolute: a table of max_position_embeddings rows; none: attention is causal and knows no more"),
  works("max_position_embeddings", kInt, "null", ">=1", "Longest position that the model is made for."),
  works("original_max_position_embeddings", kInt, "null", ">=1", "Context length before rope scaling (YaRN).", "null: 4096"),
  works("rotary_base", kReal, "10000", ">0", "Base of the rotary frequencies."),
  works("rotary_percent", kReal, "1.0", "0..1", "Part of each head that is rotated, its first elements.", "with latent attention only 1: the rest is planned"),
  works("rope_type", kText, "null", "rope|yarn", "Plain rotary positions, or YaRN scaling.", "null: yarn with latent attention, else rope"),
  works("rotary_scaling_factor", kReal, "1.0", ">0", "YaRN's context extension factor.", "read where rope_type is yarn"),
  works("beta_fast", kReal, "32", ">0", "YaRN: rotations above which a frequency is left alone."),
  works("beta_slow", kReal, "1", ">0", "YaRN: rotations below which a frequency is fully scaled."),
  works("mscale", kReal, "1.0", ">=0", "YaRN: strength of the attention temperature in cos and sin."),
  works("mscale_all_dim", kReal, "1.0", ">=0", "YaRN: strength of the attention temperature in the softmax scale."),
  works("rotary_interleaved", kBool, "false", "", "Rotate neighbouring pairs instead of halves.", "latent attention always does"),
  works("rotary_seq_len_interpolation_factor", kInt, "null", ">=1", "Positions are divided by it.", "not beside YaRN"),
  works("use_rope_scaling", kBool, "false", "", "Llama 3.1's scaling of low frequencies.", "from original_max_position_embeddings, 8192 where that is null; not beside YaRN"),
  works("rope_scaling_factor", kReal, "8.0", ">0", "Factor of Llama 3's frequency scaling."),
  no_effect("use_rotary_position_embeddings", kBool, "null", "", "Old switch for rotary positions.", "position_embedding_type decides"),
  no_effect("add_position_embedding", kBool, "false", "", "Old switch for learned positions.", "position_embedding_type decides"),
};

constexpr Key kLatentAttention[] = {
  works("multi_latent_attention", kBool, "false", "", "Multi-head latent attention as in DeepSeek-V2."),
  works("q_lora_rank", kInt, "null", ">=1", "Rank of the queries' latent vector.", "null: queries are projected directly"),
  works("kv_lora_rank", kInt, "32", ">=1", "Rank of the keys' and values' latent vector."),
  works("qk_head_dim", kInt, "128", ">=1", "Part of a query and key head without positions."),
  works("qk_pos_emb_head_dim", kInt, "64", ">=1", "Part of a query and key head that is rotated."),
  works("v_head_dim", kInt, "128", ">=1", "Size of a value head."),
};

constexpr Key kTokenizer[] = {
  works_for("tokenizer_type", kText, "null",
            "ByteTokenizer|NullTokenizer|HuggingFaceTokenizer|DeepSeekV2Tokenizer|DeepSeekV3Tokenizer|DeepSeekV4Tokenizer|KimiK2Tokenizer|"
            "MixtralTokenizer|Llama2Tokenizer|Llama3Tokenizer|Llama4Tokenizer|Lfm2Tokenizer|GPT2BPETokenizer|SentencePieceTokenizer|"
            "GPTSentencePieceTokenizer|TikTokenizer|BertWordPieceLowerCase|BertWordPieceCase|MultimodalTokenizer|NullMultimodalTokenizer|SFTTokenizer",
            "null|ByteTokenizer|NullTokenizer|HuggingFaceTokenizer|DeepSeekV2Tokenizer|DeepSeekV3Tokenizer|DeepSeekV4Tokenizer|KimiK2Tokenizer|"
            "MixtralTokenizer|Llama2Tokenizer|Llama3Tokenizer|Llama4Tokenizer|Lfm2Tokenizer|GPT2BPETokenizer|SentencePieceTokenizer|"
            "GPTSentencePieceTokenizer|TikTokenizer", "BERT, multimodal and fine-tuning tokenizers", "Tokenizer of the data.", "gives the vocabulary size of the known model families"),
  works("tokenizer_model", kText, "null", "", "File or folder of the tokenizer, or its name on a hub.", "files here give the vocabulary size, names that of the known model families; nothing is fetched"),
  works("vocab_size", kInt, "null", ">=1", "Tokens of the vocabulary before padding.", "null: the tokenizer's; 131072 with mock_data"),
  works("make_vocab_size_divisible_by", kInt, "128", ">=1", "The vocabulary is padded to a multiple of this and of the tensor-parallel size."),
  works("vocab_file", kText, "null", "", "GPT-2's vocab.json.", "beside merge_file"),
  works("merge_file", kText, "null", "", "GPT-2's merges.txt.", "beside vocab_file"),
  no_effect("vocab_extra_ids", kInt, "0", ">=0", "Sentinel tokens of span masking.", "models here are decoders"),
  works("tiktoken_pattern", kText, "null", "v1|v2", "Splitting pattern of a tiktoken vocabulary.", "null: v2"),
  works("tiktoken_num_special_tokens", kInt, "1000", ">=0", "Special tokens of a tiktoken vocabulary, its first ids."),
  works("tiktoken_special_tokens", kTextList, "null", "", "Names of a tiktoken vocabulary's special tokens.", "null: <unk> <s> </s> <mask> <pad> <cls> <sep>"),
  no_effect("legacy_tokenizer", kBool, "false", "", "Old tokenizer classes.", "there is one implementation"),
  no_effect("trust_remote_code", kBool, "false", "", "Let a tokenizer run Python code from the hub.", "nothing here runs Python code"),
  works("special_tokens", kTextList, "null", "", "Further special tokens of a tokenizer.json, behind its own.", "of a TikTokenizer: another name of tiktoken_special_tokens"),
  no_effect("chat_template", kText, "null", "", "Form of a conversation.", "a run reads tokens: conversations get their form in the text that data prepare reads"),
  no_effect("metadata_path", kText, "null", "", "File that names the tokenizer's library.", "the tokenizer's own files say what it is"),
  works("null_tokenizer_eod_id", kInt, "null", ">=0", "End-of-document token of a NullTokenizer.", "null: the last id"),
  no_effect("null_tokenizer_pad_id", kInt, "-1", "", "Filling token of made-up data.", "samples are never filled up"),
  works("padded_vocab_size", kInt, "null", ">=1", "Rows of the embedding; null: vocab_size, padded."),
  works("pad_vocab_size", kBool, "true", "", "Pad the vocabulary."),
  no_effect("tokenizer_hf_no_include_special_tokens", kBool, "false", "", "No tokens around a text.", "a run reads tokens; data prepare has --no-special-tokens"),
  no_effect("tokenizer_hf_no_use_fast", kBool, "false", "", "Slow tokenizer classes.", "there is one implementation"),
  no_effect("tokenizer_sentencepiece_legacy", kBool, "false", "", "Special tokens added outside of the model.", "a run reads tokens, which data prepare makes by the model alone"),
  no_effect("tokenizer_sentencepiece_ignore_extra_whitespaces", kBool, "true", "", "Runs of spaces count as one.", "a run reads tokens, which data prepare makes by the model alone"),
  no_effect("use_gigatoken", kBool, "false", "", "Another library's tokenizer.", "there is one implementation"),
};

}  // namespace

std::span<const Key> structure_keys() { return kStructure; }
std::span<const Key> position_keys() { return kPosition; }
std::span<const Key> latent_attention_keys() { return kLatentAttention; }
std::span<const Key> tokenizer_keys() { return kTokenizer; }

}  // namespace primus::config::rows
