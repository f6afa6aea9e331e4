#include "nn/rope_tables.hpp"

#include <numbers>

namespace primus::nn {
namespace {

/// m(s, k) of decision 13.
double magnitude(double scale, double mscale) {
  return scale <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

/// The (fractional) pair whose wavelength fits `rotations` times into the original length.
double correction_dim(const model::RopeSpec& rope, double rotations) {
  const auto dim = static_cast<double>(rope.rotary_dim);
  const auto length = static_cast<double>(rope.original_max_position);
  return dim * std::log(length / (2.0 * std::numbers::pi * rotations)) / (2.0 * std::log(rope.base));
}

}  // namespace

std::vector<double> inverse_frequencies(const model::RopeSpec& rope) {
  const auto dim = static_cast<double>(rope.rotary_dim);
  std::vector<double> frequencies(static_cast<std::size_t>(rope.rotary_dim / 2));
  const double last = dim - 1.0;
  const double low = std::clamp(std::floor(correction_dim(rope, rope.beta_fast)), 0.0, last);
  const double high = std::clamp(std::ceil(correction_dim(rope, rope.beta_slow)), 0.0, last);
  // Published implementations part equal bounds by a thousandth, so that the ramp stays defined.
  const double width = high == low ? 1e-3 : high - low;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double plain = std::pow(rope.base, -2.0 * static_cast<double>(i) / dim);
    frequencies[i] = plain;
    if (rope.type == model::RopeType::kYarn) {
      const double ramp = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
      frequencies[i] = ramp * plain / rope.scaling_factor + (1.0 - ramp) * plain;
    }
  }
  return frequencies;
}

RopeTables rope_tables(const model::RopeSpec& rope, std::int64_t seq_length, at::TensorOptions options) {
  const std::vector<double> frequencies = inverse_frequencies(rope);
  const auto pairs = static_cast<std::int64_t>(frequencies.size());
  const double scale = rope.type == model::RopeType::kYarn ? magnitude(rope.scaling_factor, rope.mscale) /
                                                                 magnitude(rope.scaling_factor, rope.mscale_all_dim)
                                                           : 1.0;
  Tensor cos_SP = at::empty({seq_length, pairs}, at::kDouble);
  Tensor sin_SP = at::empty({seq_length, pairs}, at::kDouble);
  auto* cos_values = cos_SP.data_ptr<double>();
  auto* sin_values = sin_SP.data_ptr<double>();
  for (std::int64_t position = 0; position < seq_length; ++position) {
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<std::size_t>(pair)];
      cos_values[position * pairs + pair] = scale * std::cos(angle);
      sin_values[position * pairs + pair] = scale * std::sin(angle);
    }
  }
  return {cos_SP.to(options), sin_SP.to(options)};
}

double softmax_scale(const model::RopeSpec& rope, std::int64_t query_dim) {
  const double plain = 1.0 / std::sqrt(static_cast<double>(query_dim));
  if (rope.type != model::RopeType::kYarn) return plain;
  const double factor = magnitude(rope.scaling_factor, rope.mscale_all_dim);
  return plain * factor * factor;
}

}  // namespace primus::nn
