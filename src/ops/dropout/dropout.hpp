#pragma once
// Dropout that keeps no mask: what is dropped follows from seed, stream and the element's global number, so that
// recomputation, cuts into micro-batches and layouts meet the same. Legend: T tokens, H width.
#include "ops/router/noise.hpp"

namespace primus::ops {

/// y_TH (+)= x_TH · (0 or 1 / (1 − probability)), zero with this probability. y may be x, or of a wider type than x.
/// Its own backward: the same elements once more.
void token_dropout(const Tensor& x_TH, const TokenNoise& noise, double probability, Tensor& y_TH, Write write);

/// Words of 32 random bits below it are dropped.
std::uint64_t dropout_threshold(double probability);

}  // namespace primus::ops
