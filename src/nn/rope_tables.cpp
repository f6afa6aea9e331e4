#include "nn/rope_tables.hpp"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

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

/// YaRN: frequencies up to one dimension stay, from another on they are divided by the factor, between them mixed.
void scale_yarn(const model::RopeSpec& rope, std::vector<double>& frequencies) {
  const double last = static_cast<double>(rope.rotary_dim) - 1.0;
  const bool is_rounded = rope.rounded_range == model::Part::kPresent;
  const double fast = correction_dim(rope, rope.beta_fast);
  const double slow = correction_dim(rope, rope.beta_slow);
  const double low = std::clamp(is_rounded ? std::floor(fast) : fast, 0.0, last);
  const double high = std::clamp(is_rounded ? std::ceil(slow) : slow, 0.0, last);
  // Published implementations part equal bounds by a thousandth, so that the ramp stays defined.
  const double width = high == low ? 1e-3 : high - low;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
    frequencies[i] = ramp * frequencies[i] / rope.scaling_factor + (1.0 - ramp) * frequencies[i];
  }
}

/// Llama 3.1: wavelengths longer than the original length are stretched by the factor, those shorter than a quarter of
/// it stay, and between them the frequencies are mixed.
void scale_llama(const model::RopeSpec& rope, std::vector<double>& frequencies) {
  constexpr double kLowFactor = 1.0;
  constexpr double kHighFactor = 4.0;
  const auto length = static_cast<double>(rope.original_max_position);
  for (double& frequency : frequencies) {
    const double rotations = length * frequency / (2.0 * std::numbers::pi);
    const double kept = std::clamp((rotations - kLowFactor) / (kHighFactor - kLowFactor), 0.0, 1.0);
    frequency = (1.0 - kept) * frequency / rope.scaling_factor + kept * frequency;
  }
}

}  // namespace

std::vector<double> inverse_frequencies(const model::RopeSpec& rope) {
  const auto dim = static_cast<double>(rope.rotary_dim);
  std::vector<double> frequencies(static_cast<std::size_t>(rope.rotary_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(rope.base, -2.0 * static_cast<double>(i) / dim);
  }
  if (rope.type == model::RopeType::kYarn) scale_yarn(rope, frequencies);
  if (rope.type == model::RopeType::kLlama3) scale_llama(rope, frequencies);
  for (double& frequency : frequencies) frequency /= rope.interpolation;
  return frequencies;
}

RopeTables at_positions(const RopeTables& rope, const Tensor& positions_T) {
  return {rope.cos_SP.index_select(0, positions_T), rope.sin_SP.index_select(0, positions_T)};
}

RopeTables without_rotation(const RopeTables& rope) {
  return {at::ones_like(rope.cos_SP), at::zeros_like(rope.sin_SP)};
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

RopeTables entry_rope_tables(const model::ModelSpec& spec, std::int64_t seq_length, at::TensorOptions options) {
  if (spec.num_layers_of(model::MixerKind::kCompressed) == 0) return {};
  return rope_tables(spec.compressed.entry_rope, seq_length, options);
}

double softmax_scale(const model::RopeSpec& rope, std::int64_t query_dim) {
  const double plain = 1.0 / std::sqrt(static_cast<double>(query_dim));
  if (rope.type != model::RopeType::kYarn) return plain;
  const double factor = magnitude(rope.scaling_factor, rope.mscale_all_dim);
  return plain * factor * factor;
}

double softmax_scale(const model::ModelSpec& spec, std::int64_t query_dim) {
  const double scale = softmax_scale(spec.rope, query_dim);
  if (!spec.width_scaling) return scale;
  const auto size = static_cast<double>(query_dim);
  const model::WidthScaling& by_width = *spec.width_scaling;
  return scale * std::sqrt(size) * std::sqrt(by_width.base_head_dim) / std::pow(size, by_width.attention_power);
}

}  // namespace primus::nn
