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
};

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

}  // namespace primus::nn
