#pragma once
// Options whose CUDA twin is not written yet: never a silent other result.
#include <string_view>

#include "base/error.hpp"

namespace primus::ops {

/// `key`: the key that asks for the option, as the user writes it.
[[noreturn]] inline void throw_not_on_gpu(std::string_view key) {
  throw UserError(fmt::format("{} is not built for a GPU yet: leave it out, or run with --device cpu", key),
                  ExitCode::kWrongInput);
}

}  // namespace primus::ops
