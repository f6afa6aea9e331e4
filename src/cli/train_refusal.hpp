#pragma once
// A train that is refused for its model names the model's parts, and not only the keys that ask for them.
#include "config/resolve.hpp"

namespace primus::cli {

/// resolve(); for a train also when the model has a part that no run builds. Throws ConfigError.
config::Resolution resolve_naming_parts(const config::ResolveRequest& request);

}  // namespace primus::cli
