// Wrong inputs and the exact text that each gets.
#include <gtest/gtest.h>

#include "config/resolve_fixture.hpp"

namespace primus::config {
namespace {

struct WrongOverride {
  const char* name;
  std::vector<std::string> words;
  const char* message;
  Purpose purpose = Purpose::kPlan;
  std::int64_t world_size = 0;
};

class WrongOverrides : public testing::TestWithParam<WrongOverride> {};

TEST_P(WrongOverrides, AreToldWhatIsWrong) {
  const ResolveFixture fixture;
  EXPECT_EQ(fixture.problems(GetParam().words, GetParam().purpose, GetParam().world_size),
            std::string(GetParam().message) + "\n");
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongOverrides,
    testing::Values(
        WrongOverride{
            "empty_name",
            {"--exp_name", "''"},
            "exp.yaml: exp_name: cannot name a part of the run's folder (expected a name without '/', found '')"},
        WrongOverride{"name_leads_away",
                      {"--exp_name", "../../evil"},
                      "exp.yaml: exp_name: cannot name a part of the run's folder (expected a name without '/', found "
                      "'../../evil')"},
        WrongOverride{"too_many_sequences",
                      {"--global_batch_size", "4000000000000"},
                      "command line: --global_batch_size: out of range (expected integer from 1 to 100000000, found "
                      "4000000000000)"},
        WrongOverride{"unknown", {"--lrr", "1"}, "command line: --lrr: unknown key; did you mean 'lr'?"},
        WrongOverride{"unknown_far", {"--qqqqqqqq", "1"}, "command line: --qqqqqqqq: unknown key"},
        WrongOverride{"removed",
                      {"--use_turbo_parallel_linear"},
                      "command line: --use_turbo_parallel_linear: this key was removed; write use_turbo_gemm instead"},
        WrongOverride{"not_an_integer",
                      {"--num_layers", "two"},
                      "command line: --num_layers: wrong type (expected integer >= 1, found text 'two')"},
        WrongOverride{"not_whole",
                      {"--num_layers", "2.5"},
                      "command line: --num_layers: wrong type (expected integer >= 1, found 2.5)"},
        WrongOverride{"not_a_number",
                      {"--lr", "high"},
                      "command line: --lr: wrong type (expected number > 0, found text 'high')"},
        WrongOverride{
            "not_finite", {"--lr", "nan"}, "command line: --lr: wrong type (expected number > 0, found text 'nan')"},
        WrongOverride{"not_a_truth",
                      {"--bf16", "maybe"},
                      "command line: --bf16: wrong type (expected true or false, found text 'maybe')"},
        WrongOverride{"a_list",
                      {"--num_layers", "[2]"},
                      "command line: --num_layers: wrong type (expected integer >= 1, found a list)"},
        WrongOverride{"a_map", {"--lr.x", "1"}, "command line: --lr.x: wrong type (expected number > 0, found a map)"},
        WrongOverride{"null",
                      {"--num_layers", "None"},
                      "command line: --num_layers: needs a value (expected integer >= 1, found null)"},
        WrongOverride{"below",
                      {"--num_layers", "0"},
                      "command line: --num_layers: out of range (expected integer >= 1, found 0)"},
        WrongOverride{"above",
                      {"--adam_beta1", "1"},
                      "command line: --adam_beta1: out of range (expected number from 0 to below 1, found 1)"},
        WrongOverride{
            "stage",
            {"--turbo_sync_free_moe_stage", "-1"},
            "command line: --turbo_sync_free_moe_stage: out of range (expected integer from 0 to 3, found -1)"},
        WrongOverride{"not_allowed",
                      {"--lr_decay_style", "cosin"},
                      "command line: --lr_decay_style: not an allowed value (expected one of constant, linear, cosine, "
                      "inverse-square-root, WSD, found 'cosin'); did you mean 'cosine'?"},
        WrongOverride{"bad_list",
                      {"--profile_ranks", "[0, a]"},
                      "command line: --profile_ranks: wrong type (expected list of integers, found a list)"},
        WrongOverride{"bad_pattern",
                      {"--moe_layer_freq", "([0]*1+[1]*"},
                      "command line: --moe_layer_freq: malformed pattern: expected an integer at character 12 "
                      "(expected integer >= 1, or a pattern such as ([0]*1+[1]*26), found text '([0]*1+[1]*')"},
        WrongOverride{"no_code",
                      {"--moe_layer_freq", "__import__('os').getpid()"},
                      "command line: --moe_layer_freq: malformed pattern: expected '[' or '(' at character 1 (expected "
                      "integer >= 1, or a pattern such as ([0]*1+[1]*26), found text '__import__('os').getpid()')"},
        WrongOverride{"top_k",
                      {"--moe_router_topk", "9"},
                      "command line: --moe_router_topk: exceeds num_experts 8 (models/megatron/tiny.yaml:11) (expected "
                      "at most 8, found 9)"},
        WrongOverride{"pattern_length",
                      {"--num_layers", "4"},
                      "models/megatron/tiny.yaml:12: moe_layer_freq: is for 2 layers, but num_layers 4 (command line) "
                      "(expected 4 items, found \"([0]*1+[1]*1)\"); for instance ([0]*1+[1]*3)"},
        WrongOverride{"pattern_items",
                      {"--moe_layer_freq", "[0,2]"},
                      "command line: --moe_layer_freq: holds something else than 0 and 1 (expected 0 for a dense "
                      "layer, 1 for a MoE layer, found [0, 2])"},
        WrongOverride{"groups",
                      {"--moe_router_num_groups", "3"},
                      "command line: --moe_router_num_groups: does not divide num_experts 8 "
                      "(models/megatron/tiny.yaml:11) (expected a divisor, found 3)"},
        WrongOverride{
            "group_topk",
            {"--moe_router_num_groups", "4"},
            "exp.yaml: moe_router_group_topk: needed beside moe_router_num_groups (expected integer >= 1, found null)"},
        WrongOverride{"too_few_groups",
                      {"--moe_router_num_groups=8", "--moe_router_group_topk=1"},
                      "models/megatron/tiny.yaml:13: moe_router_topk: exceeds the 1 experts of 1 groups (expected at "
                      "most 1, found 2)"},
        WrongOverride{"heads",
                      {"--multi_latent_attention=false", "--num_attention_heads=3"},
                      "command line: --num_attention_heads: does not divide hidden_size 64 (expected a divisor, or "
                      "kv_channels set, found 3); nearest: 2"},
        WrongOverride{"odd_heads",
                      {"--multi_latent_attention=false", "--kv_channels=15"},
                      "command line: --kv_channels: rotary positions need heads of even size (expected an even head "
                      "size, found 15)"},
        WrongOverride{"query_groups",
                      {"--multi_latent_attention=false", "--group_query_attention", "--num_query_groups=3"},
                      "command line: --num_query_groups: does not divide num_attention_heads 4 (expected a divisor, "
                      "found 3); nearest: 2"},
        WrongOverride{"odd_rotary",
                      {"--qk_pos_emb_head_dim=15"},
                      "command line: --qk_pos_emb_head_dim: the rotated part of a head has pairs (expected an even "
                      "integer, found 15)"},
        WrongOverride{"positions",
                      {"--max_position_embeddings=64"},
                      "modules/megatron/plain.yaml:5: seq_length: exceeds max_position_embeddings 64 (command line) "
                      "(expected at most 64, found 128); raise max_position_embeddings or shorten seq_length"},
        WrongOverride{"recompute_ids",
                      {"--recompute_layer_ids", "0,7"},
                      "command line: --recompute_layer_ids: '7' is not a layer of this model (expected numbers from 0 "
                      "to 1, separated by commas, found \"0,7\")"},
        WrongOverride{"recompute_method",
                      {"--recompute_layer_ids=0", "--recompute_method=block"},
                      "command line: --recompute_method: conflicts with recompute_layer_ids (expected null, found "
                      "block); write recompute_method: null, or leave it out"},
        WrongOverride{"half_precision",
                      {"--fp16", "--bf16"},
                      "command line: --bf16: conflicts with fp16 (expected false, found true); write bf16: false, or "
                      "leave it out"},
        WrongOverride{
            "fp8_and_fp4",
            {"--fp8=hybrid", "--fp4=e2m1"},
            "command line: --fp4: conflicts with fp8 hybrid (command line) (expected one of the two, found e2m1)"},
        WrongOverride{"no_length",
                      {"--train_iters=None"},
                      "command line: --train_iters: the length of the run is not set (expected integer >= 0, found "
                      "null); write train_iters or train_samples"},
        WrongOverride{"two_lengths",
                      {"--train_iters=5", "--train_samples=80", "--lr_warmup_iters=0"},
                      "command line: --train_iters: conflicts with train_samples 80 (command line) (expected null, "
                      "found 5); write train_iters: null, or leave it out"},
        WrongOverride{"no_rate",
                      {"--lr=None"},
                      "command line: --lr: the learning rate is not set (expected number > 0, found null)"},
        WrongOverride{"min_rate",
                      {"--min_lr=1"},
                      "command line: --min_lr: exceeds lr 2e-05 (modules/megatron/plain.yaml:2) (expected at most "
                      "2e-05, found 1.0)"},
        WrongOverride{"start_rate",
                      {"--lr_warmup_init=1"},
                      "command line: --lr_warmup_init: exceeds lr 2e-05 (modules/megatron/plain.yaml:2) (expected at "
                      "most 2e-05, found 1.0)"},
        WrongOverride{
            "units",
            {"--lr_decay_samples=100"},
            "command line: --lr_decay_samples: conflicts with train_iters 1000 (modules/megatron/plain.yaml:1) "
            "(expected null, found 100); write lr_decay_samples: null, or leave it out"},
        WrongOverride{"long_warmup",
                      {"--lr_warmup_iters=1000"},
                      "command line: --lr_warmup_iters: conflicts with a learning rate that decays over 1000 (expected "
                      "999, found 1000); write lr_warmup_iters: 999, or leave it out"},
        WrongOverride{"wsd",
                      {"--lr_decay_style=WSD"},
                      "exp.yaml: lr_wsd_decay_iters: lr_decay_style WSD needs the length of its final decay (expected "
                      "integer >= 1, found null)"},
        WrongOverride{"long_wsd",
                      {"--lr_decay_style=WSD", "--lr_wsd_decay_iters=2000"},
                      "command line: --lr_wsd_decay_iters: is longer than the whole decay of 1000 (expected at most "
                      "1000, found 2000)"},
        WrongOverride{"batch",
                      {"--micro_batch_size=3"},
                      "modules/megatron/plain.yaml:6: global_batch_size: is not a multiple of micro_batch_size 3 x 4 "
                      "data-parallel ranks (expected a multiple of 12, found 16); nearest: 12"},
        WrongOverride{"small_batch",
                      {"--micro_batch_size=3", "--global_batch_size=1"},
                      "command line: --global_batch_size: is not a multiple of micro_batch_size 3 x 4 data-parallel "
                      "ranks (expected a multiple of 12, found 1); nearest: 12"},
        WrongOverride{"world",
                      {"--pipeline_model_parallel_size=2"},
                      "command line: --pipeline_model_parallel_size: TP 1 x CP 1 x PP 2 and EP 4 x ETP 1 x PP 2 do not "
                      "fit the processes (--nproc) (expected a multiple of 8, found 3 processes)",
                      Purpose::kPlan,
                      3},
        WrongOverride{"experts",
                      {"--expert_model_parallel_size=3", "--global_batch_size=12"},
                      "command line: --expert_model_parallel_size: does not divide num_experts 8 "
                      "(models/megatron/tiny.yaml:11) (expected a divisor, found 3); for instance 1"},
        WrongOverride{"stage_alone",
                      {"--turbo_sync_free_moe_stage=1"},
                      "command line: --turbo_sync_free_moe_stage: needs enable_primus_turbo (expected 0, or "
                      "enable_primus_turbo: true, found 1)"},
        WrongOverride{"stage_legacy",
                      {"--turbo_sync_free_moe_stage=2", "--enable_primus_turbo", "--moe_use_legacy_grouped_gemm"},
                      "command line: --moe_use_legacy_grouped_gemm: conflicts with turbo_sync_free_moe_stage 2 "
                      "(expected false, found true)"},
        WrongOverride{"stage_denied",
                      {"--turbo_sync_free_moe_stage=1", "--enable_primus_turbo", "--moe_permute_fusion=False"},
                      "command line: --moe_permute_fusion: conflicts with turbo_sync_free_moe_stage 1 (expected true, "
                      "found false); write moe_permute_fusion: true, or leave it out"},
        WrongOverride{"legacy",
                      {"--use_turbo_grouped_gemm", "--moe_use_legacy_grouped_gemm"},
                      "command line: --use_turbo_grouped_gemm: conflicts with moe_use_legacy_grouped_gemm true "
                      "(command line) (expected one of the two, found true); write moe_use_legacy_grouped_gemm: false"},
        WrongOverride{"deepep_overlap",
                      {"--use_turbo_deepep", "--moe_shared_expert_overlap"},
                      "command line: --moe_shared_expert_overlap: conflicts with use_turbo_deepep (expected false, "
                      "found true); write moe_shared_expert_overlap: false, or leave it out"},
        WrongOverride{"deepep_dtype",
                      {"--use_turbo_deepep", "--moe_router_dtype=fp64"},
                      "command line: --moe_router_dtype: conflicts with use_turbo_deepep (expected fp32, found fp64); "
                      "write moe_router_dtype: fp32, or leave it out"},
        WrongOverride{"recipe",
                      {"--use_turbo_gemm", "--fp8=hybrid"},
                      "exp.yaml: fp8_recipe: use_turbo_gemm does not know this recipe (expected one of tensorwise, "
                      "blockwise, mxfp8, found delayed)"},
        WrongOverride{"unpadded",
                      {"--turbo_grouped_gemm_without_padding"},
                      "command line: --turbo_grouped_gemm_without_padding: needs enable_primus_turbo and "
                      "use_turbo_grouped_gemm (expected false, or both, found true)"},
        WrongOverride{"no_data",
                      {"--mock_data=False"},
                      "exp.yaml: train_data_path: there is no data to train on (expected prefix of .bin and .idx "
                      "files, found null); write train_data_path or data_path, or mock_data: true",
                      Purpose::kTrain,
                      1},
        WrongOverride{"no_file",
                      {"--mock_data=False", "--train_data_path=/nowhere/text"},
                      "command line: --train_data_path: /nowhere/text.bin does not exist (expected prefix of .bin and "
                      ".idx files, found [/nowhere/text]); make them with `primus-cli data prepare`",
                      Purpose::kTrain,
                      1},
        WrongOverride{"two_sources",
                      {"--mock_data=False", "--train_data_path=a", "--data_path=b"},
                      "command line: --train_data_path: conflicts with data_path [b] (command line) (expected one of "
                      "the two, found [a])"},
        WrongOverride{"no_held_out",
                      {"--mock_data=False", "--train_data_path=a", "--eval_iters=1"},
                      "command line: --eval_iters: there is no held-out data to evaluate on (expected 0, or held-out "
                      "data, found 1); write valid_data_path, or data_path with a split such as 99,1,0"},
        WrongOverride{"bad_split",
                      {"--mock_data=False", "--split=a,b"},
                      "command line: --split: malformed (expected one to three weights >= 0 with a positive sum, as in "
                      "99,1,0, found \"a,b\")"},
        WrongOverride{"vocabulary",
                      {"--mock_data=False", "--tokenizer_type=HuggingFaceTokenizer"},
                      "exp.yaml: vocab_size: not set, and the vocabulary of tokenizer_type HuggingFaceTokenizer is not "
                      "known here (expected integer >= 1, found null); write vocab_size: N"},
        WrongOverride{"byte_vocabulary",
                      {"--mock_data=False", "--vocab_size=300"},
                      "command line: --vocab_size: does not fit tokenizer_type ByteTokenizer (expected 257 (256 bytes "
                      "and end of document), found 300); leave vocab_size out"},
        WrongOverride{"planned",
                      {"--recompute_granularity=full"},
                      "command line: --recompute_granularity: planned, not built yet: recomputation of activations "
                      "(expected null, found full)",
                      Purpose::kTrain,
                      1},
        WrongOverride{"planned_value",
                      {"--normalization=LayerNorm"},
                      "command line: --normalization: planned, not built yet: Kind of normalization before attention, "
                      "before the MLP and at the end (expected RMSNorm, found LayerNorm)",
                      Purpose::kTrain,
                      1},
        WrongOverride{"planned_by_rule",
                      {"--multi_latent_attention=false"},
                      "models/megatron/tiny.yaml:10: qk_layernorm: planned, not built yet: norms on queries and keys "
                      "without latent attention (write qk_layernorm: false) (found true)",
                      Purpose::kTrain,
                      1}),
    [](const auto& wrong) { return wrong.param.name; });

struct WrongFile {
  const char* name;
  std::string text;
  const char* message;
};

class WrongFiles : public testing::TestWithParam<WrongFile> {};

TEST_P(WrongFiles, AreToldWhatIsWrong) {
  ResolveFixture fixture;
  fixture.write_experiment(GetParam().text);
  EXPECT_EQ(fixture.problems(), std::string(GetParam().message) + "\n");
}

constexpr const char* kIdentity = "work_group: a\nuser_name: b\nexp_name: c\nworkspace: d\n";

std::string with_identity(const std::string& text) {
  return kIdentity + text;
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongFiles,
    testing::Values(
        WrongFile{"empty", "",
                  "exp.yaml: modules: is missing (expected map with one trainer, for instance pre_trainer)\n"
                  "exp.yaml: work_group: is missing (expected text)\nexp.yaml: user_name: is missing (expected text)\n"
                  "exp.yaml: exp_name: is missing (expected text)\nexp.yaml: workspace: is missing (expected text)"},
        WrongFile{"top_level", ResolveFixture::experiment_with("mock_data: true\n") + "module: {}\n",
                  "exp.yaml:12: module: unknown key at the top of an experiment; did you mean 'modules'?"},
        WrongFile{
            "misplaced", ResolveFixture::experiment_with("mock_data: true\n") + "lr: 1\n",
            "exp.yaml:12: lr: unknown key at the top of an experiment; it belongs under modules.<trainer>.overrides"},
        WrongFile{"identity_type", "work_group: [a]\nuser_name: b\nexp_name: c\nworkspace: d\nmodules: {}\n",
                  "exp.yaml:1: work_group: wrong type (expected text, found a list)\nexp.yaml:5: modules: holds no "
                  "trainer (expected pre_trainer)"},
        WrongFile{"modules_type", with_identity("modules: 3\n"),
                  "exp.yaml:5: modules: wrong type (expected map with one trainer, for instance pre_trainer, found 3)"},
        WrongFile{"module_name", with_identity("modules: {model: {}}\n"),
                  "exp.yaml:5: modules.model: the name of a module holds the word trainer (expected pre_trainer, found "
                  "model)"},
        WrongFile{"framework", with_identity("modules:\n  pre_trainer:\n    framework: torchtitan\n"),
                  "exp.yaml:7: modules.pre_trainer.framework: this framework is not part of Primus-CPP (expected "
                  "megatron, found torchtitan)"},
        WrongFile{"no_framework", with_identity("modules:\n  pre_trainer: {overrides: {lr: 1, train_iters: 1}}\n"),
                  "exp.yaml:6: modules.pre_trainer.framework: is missing (expected text)"},
        WrongFile{"half_preset",
                  with_identity("modules:\n  pre_trainer:\n    framework: megatron\n    config: plain.yaml\n"),
                  "exp.yaml:6: modules.pre_trainer: has a config but no model (expected both, or neither)"},
        WrongFile{"no_preset",
                  with_identity(
                      "modules:\n  pre_trainer:\n    framework: megatron\n    config: plain\n    model: tony.yaml\n"),
                  "exp.yaml:9: modules.pre_trainer.model: file 'models/megatron/tony.yaml' does not exist; did you "
                  "mean 'tiny.yaml'?"},
        WrongFile{"climbing_preset",
                  with_identity(
                      "modules:\n  pre_trainer:\n    framework: megatron\n    config: plain\n    model: ../x.yaml\n"),
                  "exp.yaml:9: modules.pre_trainer.model: not the name of a preset (expected a file under "
                  "models/megatron, found '../x.yaml')"},
        WrongFile{"module_key",
                  with_identity("modules:\n  pre_trainer:\n    framework: megatron\n    config: plain\n    model: "
                                "tiny\n    override: {}\n"),
                  "exp.yaml:10: modules.pre_trainer.override: unknown key of a module; did you mean 'overrides'?"},
        WrongFile{"trainer_class",
                  with_identity("modules:\n  pre_trainer:\n    framework: megatron\n    config: plain\n    model: "
                                "tiny\n    trainer_class: My\n"),
                  "exp.yaml:10: modules.pre_trainer.trainer_class: trainers written in Python cannot run here "
                  "(expected null, found text 'My')"},
        WrongFile{"overrides_type",
                  with_identity("modules:\n  pre_trainer:\n    framework: megatron\n    config: plain\n    model: "
                                "tiny\n    overrides: 4\n"),
                  "exp.yaml:10: modules.pre_trainer.overrides: wrong type (expected map of keys, found 4)"},
        WrongFile{"environment_type", "env: 3\n" + ResolveFixture::experiment_with("mock_data: true\n"),
                  "exp.yaml:1: env: wrong type (expected map of environment variables, found 3)"},
        WrongFile{"twice", ResolveFixture::experiment_with("lr: 1\nseed: 2\nlr: 3\n"),
                  "exp.yaml:13: lr: written twice, first at line 11; keep one of the two"},
        WrongFile{"two_names", ResolveFixture::experiment_with("norm_epsilon: 1e-5\nlayernorm_epsilon: 1e-6\n"),
                  "exp.yaml:12: modules.pre_trainer.overrides.layernorm_epsilon: conflicts with norm_epsilon at line "
                  "11: two names of one key (expected 1e-05, found 1e-06)"},
        WrongFile{"full_name", ResolveFixture::experiment_with("mock_data: true\nlr: fast\n"),
                  "exp.yaml:12: modules.pre_trainer.overrides.lr: wrong type (expected number > 0, found text 'fast')"},
        WrongFile{
            "all_at_once", ResolveFixture::experiment_with("lr: fast\nnum_layer: 3\nnum_experts: -1\n"),
            "exp.yaml:11: modules.pre_trainer.overrides.lr: wrong type (expected number > 0, found text 'fast')\n"
            "exp.yaml:12: modules.pre_trainer.overrides.num_layer: unknown key; did you mean 'num_layers'?\n"
            "exp.yaml:13: modules.pre_trainer.overrides.num_experts: out of range (expected integer >= 1, found -1)"}),
    [](const auto& wrong) { return wrong.param.name; });

}  // namespace
}  // namespace primus::config
