#pragma once
// Masters in two halves (master_bits.hpp) on the host.
#include <bit>

#include "ops/adamw/master_bits.hpp"
#include "ops/dtype.hpp"

namespace primus::ops {

/// Weight and low bits, as bits.
struct Halves {
  std::uint16_t* weight;
  std::uint16_t* low;

  float master(std::int64_t i) const { return std::bit_cast<float>(master_bits(weight[i], low[i])); }
  void set(std::int64_t i, float master) const {
    const auto bits = std::bit_cast<std::uint32_t>(master);
    weight[i] = weight_bits(bits);
    low[i] = static_cast<std::uint16_t>(bits);
  }
};

/// The types, sizes and device of two tensors that hold masters together must fit.
void check_halves(const Tensor& weight, const Tensor& low_bits);

/// Of tensors on the host.
Halves halves_of(const Tensor& weight, const Tensor& low_bits);

}  // namespace primus::ops
