#pragma once
// Model FLOPs of a training step: Megatron's count with causal attention halved (semantics.md 5.2; decision 15).
// Recompute and the router are never counted.
#include "model/model_spec.hpp"
#include "model/stage_content.hpp"

namespace primus::model {

/// Forward FLOPs of one token in each part; training counts three times as many.
struct FlopsPerToken {
  std::int64_t attention_linear = 0;
  std::int64_t attention_core = 0;  // causal half
  std::int64_t dense_mlp = 0;
  std::int64_t experts = 0;
  std::int64_t shared_experts = 0;
  std::int64_t hyper_connections = 0;  // around the layers' halves
  std::int64_t output = 0;             // with what makes one hidden state of several streams

  std::int64_t forward() const {
    return attention_linear + attention_core + dense_mlp + experts + shared_experts + hyper_connections + output;
  }
  std::int64_t training() const { return 3 * forward(); }
};

/// The main model at spec.seq_length; MTP is not part of it, and parts that architecture.hpp calls not counted neither.
FlopsPerToken flops_per_token(const ModelSpec& spec);

/// What the multi-token prediction depths add to flops_per_token(spec).training().
std::int64_t mtp_training_flops_per_token(const ModelSpec& spec);

/// What one stage computes for a token in training: its layers, the output layer and prediction depths that it holds.
/// Over all stages they add up to the model's and the depths'.
std::int64_t stage_training_flops_per_token(const ModelSpec& spec, const StageContent& content);

}  // namespace primus::model
