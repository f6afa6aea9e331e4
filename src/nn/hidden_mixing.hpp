#pragma once
// What a prediction depth reads where hidden states are mixed in training: for each token one of the parts before it,
// drawn at random, at the place whose state predicts the same token. Legend: T tokens, H hidden, J parts.
#include "nn/model_input.hpp"

namespace primus::nn {

class HiddenMixing {
 public:
  /// `depth` ≥ 1 chooses among depth + 1 parts: the decoder (0) and the depths before. Keyed by the tokens' global
  /// numbers.
  HiddenMixing(int depth, const MicroBatchInput& input, const StepContext& step);

  /// part_of(j): the hidden states [T, H] of part j. The newest part's where the drawn one has no state for the token.
  Tensor mixed(const std::function<Tensor(int)>& part_of) const;
  /// Adds the rows of dmixed_TH to the gradients of the parts that they came from; an undefined one is made first.
  void distribute(const Tensor& dmixed_TH, std::vector<Tensor>& dparts) const;

 private:
  /// Tokens that read part j, and the tokens of part j that they read; int64.
  struct Rows {
    Tensor target, source;
  };
  std::vector<Rows> rows_J_;
};

}  // namespace primus::nn
