#pragma once
// A clock for bounds in tests: it stands still while other programs hold the cores.
#include <ctime>

namespace primus::test {

/// Seconds of processor time that this process has used so far.
inline double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

}  // namespace primus::test
