#pragma once
// The two tiers of long tests: a short one that every run has, and the full counts of PRIMUS_SOAK=1 (make test SOAK=1).
#include <cstdlib>

namespace primus::test {

/// Rounds of a test in the tier that is asked for.
inline int rounds(int in_short, int in_soak) {
  const char* soak = std::getenv("PRIMUS_SOAK");
  return soak != nullptr && *soak != '\0' ? in_soak : in_short;
}

}  // namespace primus::test
