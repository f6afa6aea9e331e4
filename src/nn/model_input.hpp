#pragma once
// What a model reads of a micro-batch. Legend: T tokens of the micro-batch.
#include "nn/layer.hpp"

namespace primus::nn {

/// What the loss needs of a micro-batch.
struct LossInput {
  Tensor label_T;  // int64
  Tensor mask_T;   // fp32 or fp64: 1 for a token that counts, 0 for one that does not
  /// 1 / number of counting tokens of the whole step: the step's loss is one global mean, however it is cut up (D4).
  double inverse_num_tokens = 1.0;
  Tensor grad_T = {};  // what loss_gradient gives, where it was made before (a recorded step); else undefined
};

/// The factor on each token's gradient.
inline Tensor loss_gradient(const LossInput& input, double loss_scale) {
  return input.grad_T.defined() ? input.grad_T : input.mask_T.mul(input.inverse_num_tokens * loss_scale);
}

/// What a depth reads of a micro-batch: the ids shifted so that place t holds the token depth + 1 places on, and the
/// loss's labels and mask shifted alike.
struct DepthInput {
  Tensor ids_T;
  LossInput loss;
};

/// One micro-batch: ids and labels int64 [T], row by row of its sequences.
struct MicroBatchInput {
  Tensor ids_T;
  LossInput loss;
  Tensor positions_T = {};              // int64, in each token's document; undefined: in its sequence
  Tensor first_key_BS = {};             // int32, first token that each one sees; undefined: the sequence's
  Tensor document_T = {};               // int64 number of each token's document; undefined: each sequence is one
  std::vector<DepthInput> depths = {};  // by add_depths (mtp_input.hpp)
};

/// Calls visit(tensor) for what the data gives of a micro-batch, in a fixed order, undefined tensors too.
template <typename Input, typename Visit>
void for_each_tensor(Input& input, const Visit& visit) {
  const auto visit_loss = [&](auto& loss) {
    visit(loss.label_T);
    visit(loss.mask_T);
  };
  visit(input.ids_T);
  visit_loss(input.loss);
  visit(input.positions_T);
  visit(input.first_key_BS);
  visit(input.document_T);
  for (auto& depth : input.depths) {
    visit(depth.ids_T);
    visit_loss(depth.loss);
  }
}

}  // namespace primus::nn
