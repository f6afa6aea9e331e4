#pragma once
// Random runs of one process: a model, number types, an optimizer, what runs again.
#include <random>

#include "rig.hpp"

namespace primus::test {

/// All that decides what a run holds.
struct Configuration {
  model::ModelSpec spec;
  engine::StepSettings step;
  model::OptimizerSpec optimizer;
};

template <typename T, std::size_t N>
T pick(std::mt19937_64& generator, const std::array<T, N>& values) {
  return values[generator() % N];
}

inline Configuration random_configuration(std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  Configuration c;
  c.spec = random_spec(seed);
  c.spec.layers.insert(c.spec.layers.begin(), generator() % 3, model::LayerKind::kMoe);
  c.spec.num_mtp_layers = static_cast<std::int64_t>(generator() % 3);
  if (generator() % 2 == 0) randomise_numerics(c.spec, seed);
  model::NumericPolicy& policy = c.step.policy;
  policy.parameters = policy.activations =
      pick(generator, std::array{DType::kFloat32, DType::kBFloat16, DType::kFloat16});
  policy.main_gradients = pick(generator, std::array{DType::kFloat32, DType::kBFloat16});
  const std::array states = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8};
  policy.first_moment = pick(generator, states);
  policy.second_moment = pick(generator, states);
  if (policy.parameters != DType::kFloat32)
    policy.master = pick(generator, std::array{DType::kFloat32, DType::kFloat16});
  if (policy.parameters != DType::kFloat32 && generator() % 2 == 0) policy.residual = DType::kFloat32;
  if (policy.parameters != DType::kFloat32 && generator() % 2 == 0) policy.logits = DType::kFloat32;
  c.optimizer.kind = pick(generator, std::array{model::OptimizerKind::kAdam, model::OptimizerKind::kSgd,
                                                model::OptimizerKind::kLion, model::OptimizerKind::kMuon,
                                                model::OptimizerKind::kAdaptiveMuon, model::OptimizerKind::kSoap});
  c.step.loss_fusion = pick(generator, std::array{model::LossFusion::kFused, model::LossFusion::kUnfused});
  c.step.micro_batch = random_batch(seed);
  using enum model::LayerRecompute;
  if (generator() % 2 == 0) {
    for (std::int64_t layer = 0; layer < c.spec.num_layers() + c.spec.num_mtp_layers; ++layer) {
      c.step.recompute.layers.push_back(pick(generator, std::array{kNone, kAllButInput}));
    }
  } else {
    for (const model::RecomputeModule module :
         {model::RecomputeModule::kCoreAttention, model::RecomputeModule::kMlaUpProjection,
          model::RecomputeModule::kMoe, model::RecomputeModule::kMlp, model::RecomputeModule::kSharedExperts}) {
      if (generator() % 2 == 0) c.step.recompute.modules.push_back(module);
    }
  }
  if (generator() % 2 == 0) add_indexer(c.spec, seed);
  if (seed % 5 == 3) {
    add_streams(c.spec, seed);
    c.step.policy.residual.reset();
  }
  return c;
}

}  // namespace primus::test
