#pragma once
// Values that are one number or a list of numbers.
#include <vector>

#include "config/value.hpp"

namespace primus::config {

/// The numbers of a kRealList value; a single number counts as a list of one, null as none.
std::vector<double> numbers_of(const Value& value);

}  // namespace primus::config
