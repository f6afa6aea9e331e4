#pragma once
// Without torch headers: kernels include it, too.

namespace primus::ops {

/// What an op does with the content of its output.
enum class Write { kOverwrite, kAccumulate };

}  // namespace primus::ops
