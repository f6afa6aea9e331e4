#pragma once
// A whole model with its optimizer and step runner, and global batches for it.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "engine/step_runner.hpp"
#include "nn/mtp_input.hpp"
#include "nn/specs.hpp"
#include "ops/allocator.hpp"
#include "schedule/algorithms.hpp"
#include "support/tensors.hpp"

namespace primus::test {

/// A global batch of B sequences.
struct Data {
  Tensor ids_BS, labels_BS, mask_BS;
  double num_tokens() const { return std::max(mask_BS.sum().item<double>(), 1.0); }
};

inline Data random_data(const model::ModelSpec& spec, model::BatchShape batch, std::mt19937_64& generator) {
  Data data;
  data.ids_BS = random_int({batch.num_sequences, batch.seq_length}, at::kLong, 0, spec.vocab_size, generator);
  data.labels_BS = random_int({batch.num_sequences, batch.seq_length}, at::kLong, 0, spec.vocab_size, generator);
  data.mask_BS = random_int({batch.num_sequences, batch.seq_length}, at::kDouble, 0, 3, generator).clamp_max(1.0);
  return data;
}

/// A model with its parameters, optimizer and runner.
struct Rig {
  Rig(const model::ModelSpec& model_spec, const engine::StepSettings& settings,
      const model::OptimizerSpec& optimizer_spec, at::Device device = at::kCPU)
      : spec(model_spec),
        micro_batch(settings.micro_batch),
        store(model::training_parameters(spec), settings.policy, 5, device),
        model(spec, settings.policy, settings.loss_fusion, store),
        optimizer(store, settings.policy, optimizer_spec),
        runner(spec, settings, model, store, optimizer),
        statistics(ops::to_aten(settings.policy.statistics)) {}
  Rig(const model::ModelSpec& model_spec, const model::NumericPolicy& policy, model::LossFusion fusion,
      model::BatchShape batch, at::Device device = at::kCPU)
      : Rig(model_spec,
            {.policy = policy,
             .loss_fusion = fusion,
             .micro_batch = batch,
             .clip_grad = 0.0,
             .recompute = {},
             .loss_scale = {}},
            {}, device) {}

  std::vector<nn::MicroBatchInput> cut(const Data& data, std::int64_t sequences) const {
    std::vector<nn::MicroBatchInput> micro_batches;
    for (std::int64_t begin = 0; begin < data.ids_BS.size(0); begin += sequences) {
      micro_batches.push_back(
          {.ids_T = data.ids_BS.narrow(0, begin, sequences).reshape({-1}).to(store.device()),
           .loss = {.label_T = data.labels_BS.narrow(0, begin, sequences).reshape({-1}).to(store.device()),
                    .mask_T = data.mask_BS.narrow(0, begin, sequences).reshape({-1}).to(statistics).to(store.device()),
                    .inverse_num_tokens = 1.0 / data.num_tokens()},
           .document_T = {},
           .depths = {}});
    }
    return micro_batches;
  }

  /// One step at learning rate 0: gradients are left, weights are not moved.
  engine::StepResult step(const Data& data, std::int64_t sequences, double learning_rate = 0.0) {
    const schedule::Schedule table =
        schedule::build({.num_micro_batches = static_cast<int>(data.ids_BS.size(0) / sequences)});
    return step_with(data, sequences, table.actions({0}), learning_rate);
  }

  /// The same with actions of the test's own.
  engine::StepResult step_with(const Data& data, std::int64_t sequences, const std::vector<schedule::Action>& actions,
                               double learning_rate = 0.0) {
    std::vector<nn::MicroBatchInput> micro_batches = cut(data, sequences);
    std::vector<double> depth_counts =
        nn::add_depths(micro_batches, {.num_sequences = sequences, .seq_length = micro_batch.seq_length},
                       spec.num_mtp_layers, spec.mtp_loss_scale);
    return runner.run(actions,
                      {.micro_batches = micro_batches,
                       .num_tokens = data.num_tokens(),
                       .depth_num_tokens = std::move(depth_counts),
                       .first_sample = first_sample,
                       .rates = {.learning_rate = learning_rate, .weight_decay = 0.1, .end_learning_rate = {}}});
  }

  model::ModelSpec spec;
  model::BatchShape micro_batch;
  nn::ParameterStore store;
  nn::Model model;
  engine::Optimizer optimizer;
  engine::StepRunner runner;
  at::ScalarType statistics;
  std::int64_t first_sample = 0;
};

/// A forward pass left what `declaration` says, category by category, and nothing besides: whatever a layer keeps
/// without declaring it shows in the total, under whichever scope it was allocated.
inline void expect_held_as_declared(const ops::MemoryReport& before, const ops::MemoryReport& after,
                                    const model::SavedDeclaration& declaration) {
  std::int64_t declared[model::kNumSavedCategories] = {};
  declaration.add_by_category(declared);
  for (int category = 0; category < model::kNumSavedCategories; ++category) {
    const ops::MemoryTag tag = ops::saved_tag(static_cast<model::SavedCategory>(category));
    EXPECT_EQ(after.held(tag) - before.held(tag), declared[category]) << ops::name(tag);
  }
  EXPECT_EQ(after.total_bytes - before.total_bytes, declaration.size_bytes()) << "no workspace outlives forward";
}

inline double worst_difference(const nn::ParameterStore& a, const nn::ParameterStore& b) {
  double largest_norm = 0.0;
  for (const auto& parameter : b.all()) {
    if (parameter->main_grad.defined())
      largest_norm = std::max(largest_norm, parameter->main_grad.norm().item<double>());
  }
  double worst = 0.0;
  for (std::size_t i = 0; i < a.all().size(); ++i) {
    const Tensor& expected = b.all()[i]->main_grad;
    if (!expected.defined()) continue;
    // A gradient that is zero by mathematics (a gate that is always 1) is rounding noise on both sides.
    const double noise = (expected.scalar_type() == at::kDouble ? 1e-13 : 1e-6) * largest_norm;
    const bool is_noise = expected.norm().item<double>() < noise && a.all()[i]->main_grad.norm().item<double>() < noise;
    if (!is_noise) worst = std::max(worst, relative_error(a.all()[i]->main_grad, expected));
  }
  return worst;
}

}  // namespace primus::test
