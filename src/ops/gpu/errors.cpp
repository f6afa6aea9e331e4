#include "base/error.hpp"
#include "ops/gpu/runtime.hpp"

namespace primus::gpu {

void throw_error(const char* file, int line, const char* call, const char* reason) {
  detail::throw_internal(file, line, call, reason);
}

}  // namespace primus::gpu
