#pragma once
// Somebody who looks at a training step's tensors while they exist: for dumps and traces. Nobody does by default, and
// looking changes nothing. Legend: T tokens of the micro-batch, H hidden, E experts, K top_k.
#include <string>

#include "ops/dtype.hpp"

namespace primus::nn {

/// What a router has decided for a micro-batch.
struct Routing {
  int layer = 0;       // prediction depths are numbered behind the decoder's layers
  int repetition = 0;  // of a layer that is applied several times in a pass
  const at::Tensor& x_TH;
  const at::Tensor& logits_TE;
  const at::Tensor& index_TK;      // int32
  const at::Tensor& num_tokens_E;  // int32, choices: before any is dropped
};

/// Called by the step of the thread that runs it, in training's own passes alone: not when forward runs again inside
/// backward, not in evaluation.
class Observer {
 public:
  virtual ~Observer() = default;

  /// The step's passes begin, again if it is computed twice.
  virtual void begin_step() {}
  /// What follows belongs to this micro-batch of the step.
  virtual void begin_micro_batch(int /*micro_batch*/) {}
  virtual void activation(const std::string& /*name*/, const at::Tensor& /*values*/) {}
  /// Of the step's loss with respect to the tensor that `activation` was given under this name.
  virtual void gradient(const std::string& /*name*/, const at::Tensor& /*values*/) {}
  virtual void routing(const Routing& /*routing*/) {}
  /// All main gradients are summed up and no weight has moved yet.
  virtual void gradients_ready() {}
};

}  // namespace primus::nn
