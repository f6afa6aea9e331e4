#include "base/philox.hpp"

#include <cmath>
#include <numbers>

namespace primus {

double Philox::normal(std::uint64_t index) const {
  const std::array<std::uint32_t, 4> block = words(index / 4);
  const std::size_t pair = (index % 4) / 2 * 2;
  const double u = (block[pair] + 0.5) * 0x1.0p-32;
  const double v = (block[pair + 1] + 0.5) * 0x1.0p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 2.0 * std::numbers::pi * v;
  return index % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
}

}  // namespace primus
