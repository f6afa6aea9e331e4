// The optimizer and its number types as an experiment says them, and what they hold.
#include "model/optimizer_spec.hpp"

#include <gtest/gtest.h>

#include "model/preset_spec.hpp"

namespace primus::model {
namespace {

using test::preset_experiment;
using test::preset_spec;

const ParameterDescriptor& find(const std::vector<ParameterDescriptor>& all, const std::string& name) {
  for (const ParameterDescriptor& parameter : all) {
    if (parameter.name == name) return parameter;
  }
  throw std::runtime_error(name);
}

TEST(OptimizerSpecTest, MuonMovesMatricesBetweenTheEnds) {
  OptimizerSpec muon;
  muon.kind = OptimizerKind::kMuon;
  const std::vector<ParameterDescriptor> all = training_parameters(
      preset_spec("deepseek_v3", {"--num_layers", "4", "--moe_layer_freq", "([0]*3+[1]*1)", "--mtp_num_layers", "1"}));
  for (const char* name :
       {"decoder.layers.3.mlp.experts.linear_fc1.weight", "decoder.layers.0.self_attention.linear_proj.weight",
        "decoder.layers.3.mlp.router.weight", "mtp.layers.0.eh_proj.weight"}) {
    EXPECT_EQ(muon.rule(find(all, name)), OptimizerKind::kMuon) << name;
  }
  for (const char* name : {"embedding.word_embeddings.weight", "output_layer.weight", "decoder.final_layernorm.weight",
                           "mtp.layers.0.enorm.weight"}) {
    EXPECT_EQ(muon.rule(find(all, name)), OptimizerKind::kAdam) << name;
  }
}

TEST(OptimizerSpecTest, KeysAreRead) {
  const OptimizerSpec spec = optimizer_spec(preset_experiment(
      "deepseek_v2_lite", {"--optimizer", "dist_muon", "--muon_scalar_optimizer", "lion", "--muon_num_ns_steps", "8",
                           "--muon_coefficient_type", "polar_express", "--muon_scale_mode", "unit_rms_norm",
                           "--muon_use_nesterov", "True", "--muon_split_qkv", "False", "--lion_beta1", "0.8"}));
  EXPECT_EQ(spec.kind, OptimizerKind::kMuon);
  EXPECT_EQ(spec.scalar_kind, OptimizerKind::kLion);
  EXPECT_EQ(spec.muon.num_steps, 8);
  EXPECT_EQ(spec.muon.coefficients, MuonCoefficients::kPolarExpress);
  EXPECT_EQ(spec.muon.scale, MuonScale::kUnitRmsNorm);
  EXPECT_EQ(spec.muon.nesterov, MuonSpec::Nesterov::kOn);
  EXPECT_EQ(spec.muon.split_qkv, MuonSpec::SplitQkv::kOff);
  EXPECT_EQ(spec.lion_beta1, 0.8);
}

TEST(OptimizerSpecTest, NormsOnQueriesAndKeysDecayOnlyIfTold) {
  const ModelSpec spec = preset_spec("deepseek_v3", {"--num_layers", "4", "--moe_layer_freq", "([0]*3+[1]*1)"});
  const std::vector<ParameterDescriptor> all = model_parameters(spec);
  const ParameterDescriptor& norm = find(all, "decoder.layers.0.self_attention.q_layernorm.weight");
  const ParameterDescriptor& other = find(all, "decoder.layers.0.self_attention.kv_layernorm.weight");
  EXPECT_EQ(OptimizerSpec{}.decay(norm), Decay::kNo);
  for (const char* key : {"--apply_wd_to_qk_layernorm=True", "--no_weight_decay_cond_type=apply_wd_to_qk_layernorm"}) {
    const OptimizerSpec told = optimizer_spec(preset_experiment("deepseek_v2_lite", {key}));
    EXPECT_EQ(told.decay(norm), Decay::kYes) << key;
    EXPECT_EQ(told.decay(other), Decay::kNo) << key;
  }
}

TEST(OptimizerSpecTest, BytesOfStates) {
  EXPECT_EQ(state_bytes(DType::kFloat32, 1000), 4000);
  EXPECT_EQ(state_bytes(DType::kBFloat16, 1000), 2000);
  EXPECT_EQ(state_bytes(DType::kFloat16, 1000), 2000 + 8 * 4);
  EXPECT_EQ(state_bytes(DType::kFloat8, 1024), 1024 + 8 * 4);
}

/// Decision 19: a parameter of V2-Lite in 8-bit moments and bf16 gradients takes little more than 2 + 2 bytes of state.
TEST(OptimizerSpecTest, EightBitMomentsOfV2Lite) {
  const config::Experiment experiment = preset_experiment(
      "deepseek_v2_lite", {"--use_precision_aware_optimizer", "True", "--use_distributed_optimizer", "True",
                           "--main_grads_dtype", "bf16", "--exp_avg_dtype", "fp8", "--exp_avg_sq_dtype", "fp8"});
  const NumericPolicy policy = numeric_policy(experiment);
  const std::vector<ParameterDescriptor> all = model_parameters(build_model_spec(experiment));
  std::int64_t count = 0;
  for (const ParameterDescriptor& parameter : all) count += parameter.num_elements();
  const ResidentBytes bytes = resident_bytes(all, optimizer_spec(experiment), policy);
  EXPECT_EQ(bytes.parameters, 2 * count);
  EXPECT_EQ(bytes.main_gradients, 2 * count);
  // fp32 masters, two moments of a byte each, and their scales: 4 bytes for 128 elements.
  EXPECT_NEAR(static_cast<double>(bytes.optimizer), 6.0625 * static_cast<double>(count),
              1e-3 * static_cast<double>(count));
}

TEST(NumericPolicyTest, KeysChooseTypes) {
  const auto policy = [](std::vector<std::string> overrides) {
    return numeric_policy(preset_experiment("deepseek_v2_lite", std::move(overrides)));
  };
  EXPECT_EQ(policy({}).parameters, DType::kBFloat16);
  EXPECT_EQ(policy({"--bf16", "False"}).parameters, DType::kFloat32);
  EXPECT_FALSE(policy({"--bf16", "False"}).has_master_copy());
  const NumericPolicy half = policy({"--bf16", "False", "--fp16", "True"});
  EXPECT_EQ(half.activations, DType::kFloat16);
  EXPECT_EQ(half.master, DType::kFloat32);
  EXPECT_TRUE(half.has_master_copy());
  EXPECT_EQ(policy({"--grad_reduce_in_bf16", "True"}).main_gradients, DType::kBFloat16);
  EXPECT_EQ(policy({"--grad_reduce_in_bf16", "True", "--bf16", "False"}).main_gradients, DType::kFloat32);
  // Without the precision-aware optimizer the dtype keys are not read.
  EXPECT_EQ(policy({}).first_moment, DType::kFloat32);
}

TEST(OptimizerSpecTest, StateOnTheHostIsSpreadOverTheLayers) {
  const auto spec_of = [](const char* fraction) {
    return optimizer_spec(preset_experiment(
        "deepseek_v2_lite", {"--optimizer_cpu_offload", "true", "--optimizer_offload_fraction", fraction}));
  };
  const auto num_on_host = [](const OptimizerSpec& spec, int first, int end) {
    int count = 0;
    for (int layer = first; layer < end; ++layer) count += spec.place(layer) == StatePlace::kHost ? 1 : 0;
    return count;
  };
  EXPECT_EQ(
      optimizer_spec(preset_experiment("deepseek_v2_lite", {"--optimizer_offload_fraction", "0.5"})).host_fraction, 0.0)
      << "without the switch nothing moves";
  EXPECT_EQ(num_on_host(spec_of("0"), -1, 27), 0);
  EXPECT_EQ(num_on_host(spec_of("0.5"), 0, 27), 13);
  EXPECT_EQ(num_on_host(spec_of("0.5"), 0, 13), 6) << "either half has as many";
  EXPECT_EQ(num_on_host(spec_of("0.34"), 0, 27), 9);
  EXPECT_EQ(spec_of("0.99").place(-1), StatePlace::kDevice) << "the ends, unless everything moves";
  EXPECT_EQ(num_on_host(spec_of("1"), -1, 27), 28);
}

TEST(OptimizerSpecTest, BytesOnTheHostAreNotTheDevices) {
  const std::vector<ParameterDescriptor> all = training_parameters(preset_spec("deepseek_v2_lite"));
  const NumericPolicy policy = gpu_policy(numeric_policy(preset_experiment("deepseek_v2_lite")));
  OptimizerSpec spec;
  const ResidentBytes whole = resident_bytes(all, spec, policy);
  EXPECT_EQ(whole.optimizer_on_host, 0);
  for (const double fraction : {0.1, 0.5, 0.9, 1.0}) {
    spec.host_fraction = fraction;
    const ResidentBytes bytes = resident_bytes(all, spec, policy);
    EXPECT_EQ(bytes.optimizer + bytes.optimizer_on_host, whole.optimizer) << fraction;
    EXPECT_EQ(bytes.total(), whole.total() - bytes.optimizer_on_host) << fraction;
    EXPECT_NEAR(static_cast<double>(bytes.optimizer_on_host) / static_cast<double>(whole.optimizer), fraction, 0.06);
  }
}

}  // namespace
}  // namespace primus::model
