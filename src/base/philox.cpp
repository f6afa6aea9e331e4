#include "base/philox.hpp"

#include <cmath>

namespace primus {
namespace {

struct StandardMath {
  static double sqrt(double x) { return std::sqrt(x); }
  static double log(double x) { return std::log(x); }
  static double cos(double x) { return std::cos(x); }
  static double sin(double x) { return std::sin(x); }
};

}  // namespace

double Philox::normal(std::uint64_t index) const {
  return normal_with<StandardMath>(index);
}

}  // namespace primus
