#pragma once
// A whole model in fp64 against the reference, and what its forward pass holds against its declaration.
#include "nn/layer_run.hpp"
#include "nn/rig.hpp"

namespace primus::test {

/// Behind forward there is what is declared, and behind backward nothing.
inline void expect_passes_hold_what_is_declared(Rig& rig, const nn::MicroBatchInput& input, const nn::StepContext& step,
                                                const model::SavedDeclaration& declaration) {
  nn::Saved saved(declaration);
  const ops::MemoryReport before = ops::memory_report();
  rig.model.forward(input, saved, step);
  expect_held_as_declared(before, ops::memory_report(), declaration);
  rig.model.backward(input, saved, step);
  EXPECT_EQ(ops::memory_report().total_bytes, before.total_bytes);
}

inline void expect_model_matches_autograd(const model::ModelSpec& spec, model::BatchShape batch,
                                          const PackedDocuments& documents, std::mt19937_64& generator) {
  const Data data = random_data(spec, batch, generator);
  Rig rig(spec, model::float64_policy(), model::LossFusion::kFused, batch);
  disturb(rig.store, 8);
  std::vector<nn::MicroBatchInput> input = rig.cut(data, batch.num_sequences);
  if (documents.position_BS.defined()) input[0].positions_T = documents.position_BS.flatten();
  input[0].first_key_BS = documents.first_key_BS;
  const schedule::Schedule table = schedule::build({.num_micro_batches = 1});
  const engine::StepResult result =
      rig.runner.run(table.actions({0}), {.micro_batches = input, .num_tokens = data.num_tokens()});
  const ReferenceParameters p = reference_parameters(rig.store);
  const ReferenceLoss expected = reference_model(data.ids_BS, data.labels_BS, data.mask_BS, spec, p, documents);
  (expected.loss_sum / data.num_tokens() + expected.aux_loss).backward();
  const double loss = expected.loss_sum.item<double>() / data.num_tokens();
  EXPECT_LE(std::abs(result.loss - loss), 1e-12 * std::abs(loss));
  std::string worst;
  EXPECT_LE(worst_gradient_error(rig.store, p, &worst), 1e-9) << worst;

  const model::SavedDeclaration declaration =
      model::model_saved(spec, model::float64_policy(), batch, model::LossFusion::kFused);
  const nn::StepContext step = step_context(spec, batch, documents, at::kDouble, nn::WeightGradTiming::kWithBackward);
  expect_passes_hold_what_is_declared(rig, input[0], step, declaration);
}

/// Cuts of one global batch of four sequences into micro-batches give one loss and one gradient.
inline void expect_micro_batches_agree(model::ModelSpec spec, std::int64_t seq_length, std::mt19937_64& generator) {
  spec.moe->router.losses = {};  // of a micro-batch each
  constexpr std::int64_t kSequences = 4;
  const Data data = random_data(spec, {kSequences, seq_length}, generator);
  Rig whole(spec, model::float64_policy(), model::LossFusion::kFused, {kSequences, seq_length});
  const double loss = whole.step(data, kSequences).loss;
  for (const std::int64_t sequences : {1, 2}) {
    Rig cut(spec, model::float64_policy(), model::LossFusion::kFused, {sequences, seq_length});
    EXPECT_LE(std::abs(cut.step(data, sequences).loss - loss), 1e-12 * std::abs(loss));
    EXPECT_LE(worst_difference(cut.store, whole.store), 1e-10) << sequences;
  }
}

/// A step's loss and every gradient of it, auxiliary losses and prediction depths among them, against autograd.
inline void expect_step_matches_autograd(const model::ModelSpec& spec, model::BatchShape batch,
                                         std::mt19937_64& generator) {
  const Data data = random_data(spec, batch, generator);
  Rig rig(spec, model::float64_policy(), model::LossFusion::kFused, batch);
  const engine::StepResult result = rig.step(data, batch.num_sequences);
  const ReferenceParameters p = reference_parameters(rig.store);
  const ReferenceLoss expected = reference_model(data.ids_BS, data.labels_BS, data.mask_BS, spec, p);
  expected.total(spec, data.num_tokens()).backward();
  const double loss = expected.loss_sum.item<double>() / data.num_tokens();
  EXPECT_LE(std::abs(result.loss - loss), 1e-12 * std::abs(loss));
  std::string worst;
  EXPECT_LE(worst_gradient_error(rig.store, p, &worst), 1e-9) << worst;
}

/// Evaluation in fp32 has the loss of training, and nothing is held behind it.
inline void expect_evaluation_is_trainings_forward(const model::ModelSpec& spec, model::BatchShape batch,
                                                   std::mt19937_64& generator) {
  const Data data = random_data(spec, batch, generator);
  Rig rig(spec, {}, model::LossFusion::kFused, batch);
  const engine::StepResult result = rig.step(data, batch.num_sequences);
  const std::vector<nn::MicroBatchInput> input = rig.cut(data, batch.num_sequences);
  const std::int64_t before = ops::memory_report().total_bytes;
  EXPECT_NEAR(rig.runner.evaluate(input[0]) / data.num_tokens(), result.loss, 1e-6 * result.loss);
  EXPECT_EQ(ops::memory_report().total_bytes, before);
}

}  // namespace primus::test
