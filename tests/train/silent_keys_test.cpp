// Nothing is ignored in silence: every key of the table, at every kind of value, in experiments of many kinds, either
// changes what a run does, or the user is told about it.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/text.hpp"
#include "config/key_table.hpp"
#include "config/parse.hpp"
#include "config/read_beside.hpp"
#include "config/resolve.hpp"
#include "config/test_folder.hpp"
#include "train/settings_text.hpp"

namespace primus::train {
namespace {

using config::Key;
using config::KeyState;
using config::KeyType;
using config::Resolution;
using Words = std::vector<std::string>;

struct Base {
  std::string name;
  std::string model;
  Words words;
};

const Words kSmall = {"--num_layers=4",       "--hidden_size=64",
                      "--ffn_hidden_size=96", "--num_attention_heads=4",
                      "--seq_length=32",      "--max_position_embeddings=64",
                      "--micro_batch_size=2", "--global_batch_size=4",
                      "--train_iters=40",     "--lr_warmup_iters=0",
                      "--mock_data"};

/// Dense and of experts, both kinds of attention, all optimizers, all kinds of data, and whatever switch has details.
/// FOLDER holds the files.
std::vector<Base> bases() {
  const Words rotated = {"--position_embedding_type=rope", "--normalization=RMSNorm"};
  const Words experts = {"--num_experts=8", "--moe_ffn_hidden_size=64", "--moe_router_topk=2"};
  const Words files = {"--mock_data=false", "--tokenizer_type=ByteTokenizer"};
  const auto with = [](const std::vector<Words>& parts) {
    Words words = kSmall;
    for (const Words& part : parts) words.insert(words.end(), part.begin(), part.end());
    return words;
  };
  return {
      {"plain dense", "language_model", with({{"--lr_decay_style=constant"}})},
      {"dense", "language_model",
       with({rotated,
             {"--group_query_attention", "--num_query_groups=2", "--lr_decay_style=WSD", "--lr_wsd_decay_iters=4",
              "--lr_warmup_iters=4", "--qk_layernorm", "--bf16=false", "--eval_iters=2", "--disable_tensorboard=false",
              "--use_rope_scaling", "--vocab_size=1000"}})},
      {"dense with windows", "language_model",
       with({rotated,
             {"--window_size=[7,0]", "--add_bias_linear", "--swiglu=false", "--kv_channels=32", "--optimizer=sgd",
              "--recompute_granularity=selective", "--rope_type=yarn", "--rotary_scaling_factor=4", "--fp16",
              "--bf16=false", "--rerun_mode=report_stats", "--error_injection_rate=5"}})},
      {"experts", "language_model",
       with({rotated,
             experts,
             {"--moe_router_num_groups=4", "--moe_router_group_topk=2", "--optimizer=muon",
              "--moe_expert_capacity_factor=2", "--use_mup", "--mup_base_hidden_size=32", "--moe_latent_size=32",
              "--mtp_num_layers=2", "--activation_situ_beta=4", "--use_sink_attention", "--sink_sliding_window=8",
              "--qk_clip", "--moe_aux_loss_coeff=0.01"}})},
      {"experts balanced by biases", "language_model",
       with({rotated,
             experts,
             {"--moe_router_score_function=sigmoid", "--moe_router_enable_expert_bias",
              "--moe_router_load_balancing_type=none", "--moe_shared_expert_intermediate_size=64", "--optimizer=soap",
              "--moe_router_force_load_balancing", "--recompute_granularity=full", "--recompute_method=block",
              "--recompute_num_layers=1", "--use_precision_aware_optimizer", "--exp_avg_dtype=bf16",
              "--decoupled_lr=0.01", "--weight_decay_incr_style=linear", "--start_weight_decay=0.0",
              "--end_weight_decay=0.1", "--padded_vocab_size=131200", "--moe_routing_trace_path=there"}})},
      {"experts balanced by quantiles", "language_model",
       with({rotated,
             experts,
             {"--moe_router_score_function=sigmoid", "--moe_router_enable_expert_bias",
              "--moe_router_bias_update_rule=quantile", "--optimizer=lion"}})},
      {"experts balanced by Sinkhorn", "language_model",
       with({rotated, experts, {"--moe_router_load_balancing_type=sinkhorn", "--load=here", "--save=there"}})},
      {"experts balanced by a learnt quantile", "language_model",
       with({rotated,
             experts,
             {"--moe_router_load_balancing_type=quantile_balancing", "--moe_router_score_function=sigmoid",
              "--swiglu=false", "--quick_geglu"}})},
      {"one expert a token, of a dense model", "language_model",
       with({rotated,
             experts,
             {"--moe_router_topk=1", "--moe_router_pre_softmax", "--moe_use_upcycling", "--load=here",
              "--auto_continue_train=false"}})},
      {"latent attention", "deepseek_v2_tiny",
       with({{"--q_lora_rank=32", "--finetune=false", "--tokenizer_model=here"}})},
      {"short convolutions", "language_model",
       with({rotated, {"--lfm_layer_types=[conv,full_attention,conv,conv]", "--conv_L_cache=4"}})},
      {"linear attention", "language_model",
       with({rotated,
             {"--experimental_attention_variant=gdn", "--linear_attention_freq=2", "--linear_num_key_heads=2",
              "--linear_num_value_heads=4", "--linear_key_head_dim=16", "--linear_value_head_dim=16"}})},
      {"delta attention", "deepseek_v2_tiny",
       with({{"--experimental_attention_variant=kda", "--linear_attention_freq=2", "--linear_num_key_heads=2",
              "--linear_num_value_heads=4", "--linear_key_head_dim=16", "--linear_value_head_dim=16",
              "--kda_gate_lower_bound=-5"}})},
      {"sparse attention", "deepseek_v2_tiny",
       with({{"--experimental_attention_variant=dsa", "--dsa_indexer_n_heads=4", "--dsa_indexer_head_dim=32",
              "--dsa_indexer_topk=6", "--dsa_indexer_topk_freq=2", "--dsa_indexer_skip_topk_offset=1",
              "--dsa_indexer_loss_coeff=0.5"}})},
      {"compressed attention", "language_model",
       with({rotated,
             experts,
             {"--model_type=deepseek_v4", "--attention_dropout=0", "--q_lora_rank=32", "--kv_channels=96",
              "--qk_pos_emb_head_dim=32", "--hybrid_attention_enabled", "--compress_ratios=[0,4,16,4]",
              "--attn_sliding_window=6", "--attn_sink", "--o_groups=2", "--o_lora_rank=12", "--index_n_heads=4",
              "--index_head_dim=48", "--index_topk=4", "--rope_type=yarn", "--rotary_scaling_factor=4",
              "--compress_rope_theta=40000", "--moe_router_score_function=sqrtsoftplus", "--num_hash_layers=1"}})},
      {"residual streams", "deepseek_v2_tiny",
       with({{"--hc_mult=3", "--hc_use_sinkhorn", "--mtp_num_layers=1", "--mtp_use_separate_hc_head"}})},
      {"bounded residual streams", "deepseek_v2_tiny", with({{"--enable_mhc_connections"}})},
      {"counted in samples",
       "deepseek_v2_tiny",
       {"--train_iters=null", "--train_samples=64", "--micro_batch_size=2", "--global_batch_size=8",
        "--encoder_seq_length=32", "--lr_warmup_iters=0", "--lr_warmup_samples=8", "--mock_data", "--rope_type=rope",
        "--profile", "--use_pytorch_profiler", "--profile_step_start=1", "--lr_decay_style=WSD",
        "--lr_wsd_decay_samples=8"}},
      {"several held-out sets", "language_model",
       with({files,
             {"--train_data_path=FOLDER/a", "--valid_data_path=[FOLDER/a,FOLDER/b]", "--multiple_validation_sets",
              "--eval_iters=2", "--disable_mlflow=false", "--profile", "--use_pytorch_profiler",
              "--non_persistent_save_interval=4", "--non_persistent_ckpt_type=global",
              "--non_persistent_global_ckpt_dir=there", "--record_memory_history"}})},
      {"one data set", "language_model",
       with({files,
             {"--data_path=FOLDER/a", "--profile", "--non_persistent_save_interval=4",
              "--non_persistent_ckpt_type=local"}})},
      {"data by part", "language_model", with({files, {"--train_data_path=FOLDER/a"}})},
      {"data named by a file", "language_model", with({files, {"--data_args_path=FOLDER/a.txt"}})},
      {"data by part, named by a file", "language_model", with({files, {"--per_split_data_args_path=FOLDER/a.json"}})},
      {"tokenizer's files", "language_model",
       with({{"--mock_data=false", "--tokenizer_type=GPT2BPETokenizer", "--vocab_file=FOLDER/vocab.json",
              "--merge_file=FOLDER/merges.txt", "--data_path=FOLDER/a"}})},
  };
}

/// Values that a user might write: every word of a choice, or numbers about the one that is there.
Words candidates(const Key& key, const config::Value& now) {
  static const std::map<std::string_view, Words> kSpecial = {
      {"window_size", {"[3,0]", "null"}},
      {"moe_layer_freq", {"2"}},
      {"experimental_attention_variant", {"gdn", "gated_delta_net", "gdn2", "kda", "dsa", "null"}},
      {"linear_attention_freq", {"3", "[1,1,0,1]"}},
      {"linear_num_key_heads", {"1", "4"}},
      {"kda_gate_lower_bound", {"-2.5", "null"}},
      {"lfm_layer_types", {"[full_attention,conv,conv,conv]"}},
      {"window_attn_skip_freq", {"2", "[1,1,0,1]"}},
      {"no_rope_freq", {"2", "[1,1,0,1]"}},
      {"moe_aux_loss_coeff", {"0.125"}},
      {"profile_ranks", {"[]"}},
      {"profile_step_start", {"2"}},
      {"rampup_batch_size", {"[2,2,8]"}},
      {"iterations_to_skip", {"[3]"}},
      {"step_batch_size_schedule", {"0:2 256:4"}},
      {"split", {"80,20,0"}},
      {"lr_warmup_iters", {"3"}},
      {"lr_warmup_init", {"1e-6"}},
      {"lr_warmup_fraction", {"0.25"}},
      {"min_lr", {"1e-6"}},
      {"decoupled_min_lr", {"0.001"}},
      {"start_weight_decay", {"0.05"}},
      {"rotary_percent", {"0.5"}},
      {"recompute_layer_ids", {"1,2"}},
      {"recompute_modules", {"[mlp]"}},
      {"muon_num_ns_steps", {"10"}},
      {"make_vocab_size_divisible_by", {"96"}},
      {"padded_vocab_size", {"131584"}},
      {"vocab_size", {"1024"}},
      {"num_query_groups", {"1"}},
      {"kv_channels", {"48"}},
      {"eval_micro_batch_size", {"1", "4"}},
      {"encoder_seq_length", {"16"}},
      {"moe_latent_size", {"16"}},
      {"compress_ratios", {"[0,0,16,4]", "[0,4,16]"}},
      {"o_groups", {"1", "3"}},
      {"num_hash_layers", {"2", "9"}},
      {"dsa_indexer_head_dim", {"64"}},
      {"data_path", {"FOLDER/b"}},
      {"train_data_path", {"FOLDER/b"}},
      {"valid_data_path", {"FOLDER/b"}},
      {"test_data_path", {"FOLDER/b"}},
      {"data_args_path", {"FOLDER/b.txt"}},
      {"per_split_data_args_path", {"FOLDER/b.json"}},
      {"vocab_file", {"FOLDER/larger_vocab.json"}},
      {"validation_set_names", {"[one,two]"}},
      {"phase_transition_iterations", {"8,16"}},
  };
  Words words;
  if (const auto special = kSpecial.find(key.name); special != kSpecial.end()) return special->second;
  const auto* integer = std::get_if<std::int64_t>(&now.data);
  const auto* real = std::get_if<double>(&now.data);
  if (key.type == KeyType::kBool) return {"true", "false"};
  if (key.type == KeyType::kInt) return {"2", "8", integer ? std::to_string(*integer * 2) : "16"};
  if (key.type == KeyType::kReal) return {"0.25", fmt::format("{}", real ? *real * 2 : 2.5)};
  const bool is_text = key.type == KeyType::kText || key.type == KeyType::kTextList;
  if (is_text && !key.allowed.empty()) return split(key.allowed, '|');
  return is_text ? Words{"some_word"} : Words{};
}

/// Values that ask for what some run does in any case, with what makes it so.
const std::map<std::string_view, std::string_view> kAskForNothing = {
    {"--experimental_attention_variant=gated_delta_net", "the other name of gdn"},
    {"--model_type=kimi_k3", "latent attention with norms beside delta attention already"},
    {"--max_position_embeddings", "a bound on seq_length where positions are no table"},
    {"--attention_backend=flash", "what auto takes"},
    {"--attention_backend=fused", "likewise"},
    {"--optimizer_cpu_offload", "a run on the CPU has its state there"},
    {"--moe_token_dispatcher_type", "nothing travels on one process"},
    {"--decrease_batch_size_if_needed", "the batch divides"},
    {"--pad_vocab_size", "the vocabulary is a multiple of 128 already"},
    {"--make_vocab_size_divisible_by", "likewise"},
    {"--merge_file", "data prepare reads it; a run wants it to be there"},
    {"--use_precision_aware_optimizer=true", "its types are fp32"},
    {"--auto_continue_train=true", "on unless somebody writes false"},
    {"--logit_dtype=bf16", "the run's type"},
    {"--moe_router_dtype=fp32", "the default"},
    {"--moe_router_load_balancing_type=none", "no loss had a weight"},
    {"--position_embedding_type=mrope", "rope, for text"},
    {"--position_embedding_type=yarn", "rope_type was yarn"},
    {"--rope_type=rope", "rope_type null is rope"},
    {"--rope_type=yarn", "rope_type null is yarn beside latent attention"},
    {"--optimizer=dist_muon", "muon on one process"},
    {"--non_persistent_ckpt_type=global", "both kinds lie in the same folder unless one is named"},
    {"--mtp_layer_type=mirror_last", "always so"},
    {"--add_qkv_bias=true", "beside add_bias_linear"},
    {"--openai_gelu=true", "beside bias_gelu_fusion"},
    {"--recompute_activations=true", "selective already"},
    {"--softmax_type=learnable", "beside use_sink_attention"},
};

bool asks_for_nothing(const Key& key, const std::string& word) {
  return kAskForNothing.contains(word) || kAskForNothing.contains("--" + std::string(key.name));
}

/// Keys whose working values do the same, that are only checked, or that act on what a checkpoint on the disk holds
/// (tests/config/checkpoint_settings_test.cpp), on a tokenizer's file (tests/data/tokenizers) or on a GPU
/// (tests/engine), none of which these experiments have; or that come and go with their details ("sparse attention",
/// "compressed attention");
/// or that a rule asks for wherever they are read (stream heads).
const std::set<std::string_view> kShownElsewhere = {"optimizer_cpu_offload",
                                                    "optimizer_offload_fraction",
                                                    "use_precision_aware_optimizer",
                                                    "experimental_attention_variant",
                                                    "model_type",
                                                    "moe_token_dispatcher_type",
                                                    "merge_file",
                                                    "mtp_layer_type",
                                                    "mtp_use_separate_hc_head",
                                                    "decrease_batch_size_if_needed",
                                                    "auto_continue_train",
                                                    "use_checkpoint_args",
                                                    "use_mp_args_from_checkpoint_args",
                                                    "use_tokenizer_model_from_checkpoint_args",
                                                    "tiktoken_pattern",
                                                    "tiktoken_num_special_tokens",
                                                    "tiktoken_special_tokens",
                                                    "special_tokens",
                                                    "turbo_sync_free_moe_stage",
                                                    "use_pytorch_profiler"};

bool can_act(const Key& key) {
  const bool has_one_value =
      !key.working.empty() && (key.working.find('|') == std::string_view::npos || key.working == "null|1");
  return key.state == KeyState::kWorks && !has_one_value && !kShownElsewhere.contains(key.name);
}

class SilentKeys : public ::testing::Test {
 protected:
  SilentKeys() {
    for (const char* name : {"a.bin", "a.idx", "b.bin", "b.idx"}) folder_.write(name, "");
    for (const std::string name : {"a", "b"}) {
      folder_.write(name + ".txt", folder_.path() / name);
      folder_.write(name + ".json", fmt::format("{{\"train\": \"{}\"}}", (folder_.path() / name).string()));
    }
    folder_.write("vocab.json", R"({"a": 0, "<|endoftext|>": 1})");
    folder_.write("larger_vocab.json", R"({"a": 0, "<|endoftext|>": 1, "c": 300})");
    folder_.write("merges.txt", "#version\n");
    for (const char* model : {"language_model", "deepseek_v2_tiny"}) {
      folder_.write(fmt::format("{}.yaml", model),
                    fmt::format("work_group: lab\nuser_name: ann\nexp_name: run\nworkspace: ./out\nmodules:\n"
                                "  pre_trainer:\n    framework: megatron\n    config: pre_trainer.yaml\n"
                                "    model: {}.yaml\n",
                                model));
    }
  }
  Resolution resolve(const Base& base, const std::string& word) const {
    Words words = base.words;
    if (!word.empty()) words.push_back(word);
    for (std::string& text : words) {
      const std::string path = folder_.path().string();
      for (std::size_t at = text.find("FOLDER"); at != std::string::npos; at = text.find("FOLDER", at + path.size()))
        text.replace(at, 6, path);
    }
    return config::resolve(
        {folder_.path() / (base.model + ".yaml"), words, config::Purpose::kTrain, config::WorldSize{1, "--nproc"}});
  }

  const test::TestFolder folder_;
  const test::ScopedVariable presets_{"PRIMUS_CONFIG_DIR", std::string(PRIMUS_SOURCE_DIR) + "/configs"};
};

bool names(const std::string& text, std::string_view key) {
  return text.find(key) != std::string::npos;
}

bool is_without_effect(const Resolution& resolution, std::string_view key) {
  return std::any_of(resolution.no_effect.begin(), resolution.no_effect.end(),
                     [&](const config::Note& note) { return note.key == key; });
}

bool is_told(const Resolution& resolution, std::string_view key) {
  if (is_without_effect(resolution, key)) return true;
  for (const config::Note& note : resolution.notes) {
    if (note.key == key || names(note.text, key)) return true;
  }
  return std::any_of(resolution.yielding.begin(), resolution.yielding.end(),
                     [&](const config::PlannedUse& use) { return use.key == key; });
}

TEST_F(SilentKeys, ThereAreNone) {
  std::set<std::string_view> acting;
  for (const Base& base : bases()) {
    const Resolution before = resolve(base, "");
    const std::string settings_before = settings_text(before.experiment);
    const auto check = [&](const Key& key, const std::string& word) {
      const std::string what = base.name + ", " + word;
      try {
        const Resolution after = resolve(base, word);
        const config::Value& value = after.experiment.setting(key.name).value;
        const config::Value& old = before.experiment.setting(key.name).value;
        const bool is_same = value == old || (old.is_null() && value == config::Value{false});
        const bool is_changed = settings_text(after.experiment) != settings_before;
        if (is_changed) acting.insert(key.name);
        EXPECT_FALSE(is_changed && is_without_effect(after, key.name)) << what << ": told to have no effect";
        const bool is_unread_default = value == config::default_value(key) && !is_read(key, after.experiment);
        EXPECT_TRUE(is_changed || is_same || is_unread_default || is_told(after, key.name) ||
                    asks_for_nothing(key, word))
            << what << " is ignored in silence";
      } catch (const UserError& error) {
        // A rule may have carried the value on to another key, whose problem names the rule.
        EXPECT_TRUE(names(error.what(), key.name) || names(error.what(), "(rule ") || key.name == "num_experts")
            << what << ": " << error.what();
      }
    };
    for (const config::KeySection& section : config::key_sections()) {
      for (const Key& key : section.keys) {
        if (key.state == KeyState::kNoEffect || key.type == KeyType::kMap) continue;
        // What is refused or told is so whatever the model: two kinds of experiment show it.
        if (key.state == KeyState::kPlanned && base.name != "dense" && base.name != "experts") continue;
        for (const std::string& value : candidates(key, before.experiment.setting(key.name).value))
          check(key, fmt::format("--{}={}", key.name, value));
      }
    }
  }
  for (const config::KeySection& section : config::key_sections()) {
    for (const Key& key : section.keys) {
      EXPECT_TRUE(!can_act(key) || acting.contains(key.name))
          << key.name << " works, but changes nothing in any of the experiments";
    }
  }
}

}  // namespace
}  // namespace primus::train
