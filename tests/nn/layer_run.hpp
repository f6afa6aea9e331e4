#pragma once
// One layer of a model, forwards and backwards, and how its gradients compare with the reference's.
#include <gtest/gtest.h>

#include "nn/reference.hpp"
#include "nn/rope_tables.hpp"
#include "nn/transformer_layer.hpp"
#include "support/tensors.hpp"

namespace primus::test {

inline model::NumericPolicy policy_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? model::float64_policy() : model::NumericPolicy{};
}

/// A step of a micro-batch of packed documents.
inline nn::StepContext step_context(const model::ModelSpec& spec, model::BatchShape batch,
                                    const PackedDocuments& packed, at::ScalarType dtype, nn::WeightGradTiming timing) {
  nn::StepContext step{.weight_grad = timing, .batch = batch};
  step.rope = nn::rope_tables(spec.rope, batch.seq_length, dtype);
  step.entry_rope = nn::entry_rope_tables(spec, batch.seq_length, dtype);
  if (packed.position_BS.defined()) {
    step.rope = nn::at_positions(step.rope, packed.position_BS.flatten());
    if (step.entry_rope.cos_SP.defined()) {
      step.entry_rope = nn::at_positions(step.entry_rope, packed.position_BS.flatten());
    }
  }
  step.first_key_BS = packed.first_key_BS;
  step.ids_T = packed.ids_T;
  step.aux_scale = 0.5;
  return step;
}

struct LayerRun {
  Tensor y_TH, dx_TH;
  std::unique_ptr<nn::ParameterStore> store;
};

/// Weights that are not what initialisation makes of them: norms around one, biases and sinks that matter. Tables of
/// experts stay.
inline void disturb(nn::ParameterStore& store, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  for (const auto& parameter : store.all()) {
    const model::InitKind init = parameter->descriptor.init.kind;
    if (init == model::InitKind::kNormal || init == model::InitKind::kDistinct) continue;
    parameter->weight.add_(random_normal(parameter->descriptor.shape, parameter->weight.scalar_type(), generator, 0.3));
  }
}

inline LayerRun run_layer(const model::ModelSpec& spec, int layer, model::BatchShape batch,
                          const PackedDocuments& packed, at::ScalarType dtype, nn::WeightGradTiming timing,
                          const Tensor& x_TH, const Tensor& dy_TH) {
  const model::NumericPolicy policy = policy_of(dtype);
  LayerRun run;
  run.store = std::make_unique<nn::ParameterStore>(model::layer_parameters(spec, layer), policy, 99);
  disturb(*run.store, 7);
  nn::TransformerLayer transformer(spec, policy, layer, *run.store);
  nn::Saved saved(model::layer_saved(spec, policy, batch, layer));
  const nn::StepContext step = step_context(spec, batch, packed, dtype, timing);
  saved.allocate(model::LayerSlot::kInput).copy_(x_TH);
  run.y_TH = poisoned({batch.num_tokens(), spec.residual_width()}, dtype);
  transformer.forward(saved, step, run.y_TH);
  run.dx_TH = transformer.backward(dy_TH.clone(), saved, step);
  if (timing == nn::WeightGradTiming::kDeferred) transformer.weight_grad(saved);
  return run;
}

/// Weight gradients in an action of their own are the same bits as those of the backward pass.
inline void expect_deferred_gradients_equal(const model::ModelSpec& spec, model::BatchShape batch,
                                            const PackedDocuments& documents, std::mt19937_64& generator) {
  const Tensor x = random_normal({batch.num_tokens(), spec.residual_width()}, at::kFloat, generator);
  const Tensor dy = random_normal({batch.num_tokens(), spec.residual_width()}, at::kFloat, generator);
  const LayerRun now = run_layer(spec, 0, batch, documents, at::kFloat, nn::WeightGradTiming::kWithBackward, x, dy);
  const LayerRun later = run_layer(spec, 0, batch, documents, at::kFloat, nn::WeightGradTiming::kDeferred, x, dy);
  EXPECT_TRUE(at::equal(now.y_TH, later.y_TH));
  EXPECT_TRUE(at::equal(now.dx_TH, later.dx_TH));
  for (std::size_t i = 0; i < now.store->all().size(); ++i) {
    const nn::Parameter& parameter = *now.store->all()[i];
    if (!parameter.main_grad.defined()) continue;
    EXPECT_TRUE(at::equal(parameter.main_grad, later.store->all()[i]->main_grad)) << parameter.descriptor.name;
  }
}

/// Largest error of a gradient in fp32, relative to its norm or, where the terms of a sum cancel (one sink's gradient
/// is a sum over all tokens; a decay's the difference of what the rows before and behind it say), to a hundredth of the
/// layer's largest. In fp64 every gradient stands alone.
inline double worst_rounding(const nn::ParameterStore& store, const ReferenceParameters& reference,
                             std::string* worst) {
  double largest_norm = 0.0;
  for (const auto& [name, leaf] : reference) {
    if (leaf.grad().defined()) largest_norm = std::max(largest_norm, leaf.grad().norm().item<double>());
  }
  double largest = 0.0;
  for (const auto& parameter : store.all()) {
    const Tensor& expected = reference.at(parameter->descriptor.name).grad();
    if (!parameter->main_grad.defined() || !expected.defined()) continue;
    const double norm = std::max(expected.norm().item<double>(), 0.01 * largest_norm);
    const double error = parameter->main_grad.to(at::kDouble).sub(expected).norm().item<double>() / norm;
    if (error <= largest) continue;
    largest = error;
    *worst = parameter->descriptor.name;
  }
  return largest;
}

/// A layer's output, input gradient and weight gradients against fp64 autograd, in fp64 and in fp32.
inline void expect_layer_matches_autograd(const model::ModelSpec& spec, int layer, model::BatchShape batch,
                                          const PackedDocuments& documents, std::mt19937_64& generator) {
  SCOPED_TRACE(fmt::format("layer {}", layer));
  const std::int64_t width = spec.residual_width();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const Tensor x = random_normal({batch.num_tokens(), width}, dtype, generator);
    const Tensor dy = random_normal({batch.num_tokens(), width}, dtype, generator);
    const LayerRun run = run_layer(spec, layer, batch, documents, dtype, nn::WeightGradTiming::kWithBackward, x, dy);
    const ReferenceParameters p = reference_parameters(*run.store);
    const Tensor x64 = leaf64(x);
    Tensor aux = at::zeros({}, at::kDouble);
    const Tensor y64 =
        reference_layer(x64.view({batch.num_sequences, batch.seq_length, width}), spec, layer, p, &aux, documents);
    ((y64.view(dy.sizes()) * dy.to(at::kDouble)).sum() + aux * 0.5).backward();
    EXPECT_LE(relative_error(run.y_TH, y64.view(dy.sizes())), tolerance(dtype));
    EXPECT_LE(relative_error(run.dx_TH, x64.grad()), tolerance(dtype));
    std::string worst;
    if (dtype == at::kDouble) {
      EXPECT_LE(worst_gradient_error(*run.store, p, &worst), tolerance(dtype)) << worst;
    } else {
      EXPECT_LE(worst_rounding(*run.store, p, &worst), tolerance(dtype)) << worst;
    }
  }
}

}  // namespace primus::test
