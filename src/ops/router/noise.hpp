#pragma once
// Random numbers of the router, keyed by the token's global index: a token meets the same ones however the global batch
// is cut into micro-batches (decision 12). Legend: T tokens, H width.
#include "base/philox.hpp"
#include "ops/dtype.hpp"

namespace primus::ops {

/// Element (t, h) takes the stream's number (first_token + t) · width + h.
struct TokenNoise {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::int64_t first_token = 0;
};

/// y_TH (+)= x_TH · u with u uniform in (1 − epsilon, 1 + epsilon). y may be x. Its own backward: the same factors
/// again.
void token_jitter(const Tensor& x_TH, const TokenNoise& noise, double epsilon, Tensor& y_TH, Write write);

/// y_TH = standard normal numbers, plus bias_H where it is defined.
void token_normal(const TokenNoise& noise, const Tensor& bias_H, Tensor& y_TH);

}  // namespace primus::ops
