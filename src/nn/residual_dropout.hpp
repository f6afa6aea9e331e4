#pragma once
// Dropout between a part of the model and the residual stream.
#include <string_view>

#include "base/philox.hpp"
#include "nn/layer.hpp"

namespace primus::nn {

class ResidualDropout {
 public:
  /// `stream` names the part: its random numbers are keyed by it and by the elements' global numbers.
  ResidualDropout(double probability, std::string_view stream)
      : probability_(probability), stream_(stream_id(stream)) {}

  /// Evaluation drops nothing.
  bool is_on(const StepContext& step) const { return probability_ > 0.0 && step.mode != Mode::kEvaluation; }

  /// y_TH (+)= x_TH with elements dropped, or x_TH itself where nothing is. Backward is the same on gradients.
  void apply(const Tensor& x_TH, const StepContext& step, Tensor& y_TH, ops::Write write) const;

 private:
  double probability_;
  std::uint64_t stream_;
};

}  // namespace primus::nn
