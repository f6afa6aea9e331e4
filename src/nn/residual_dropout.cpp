#include "nn/residual_dropout.hpp"

#include "ops/dropout/dropout.hpp"

namespace primus::nn {

void ResidualDropout::apply(const Tensor& x_TH, const StepContext& step, Tensor& y_TH, ops::Write write) const {
  if (is_on(step)) {
    const ops::TokenNoise noise{
        .seed = step.seed, .stream = repeated_stream(stream_, step), .first_token = step.first_token};
    return ops::token_dropout(x_TH, noise, probability_, y_TH, write);
  }
  if (write == ops::Write::kAccumulate) {
    y_TH.add_(x_TH);
  } else {
    y_TH.copy_(x_TH);
  }
}

}  // namespace primus::nn
