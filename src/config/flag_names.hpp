#pragma once
// Flags that turn a key off under a name of their own, as Megatron's command line spells them.
#include <string_view>

namespace primus::config {

struct Key;

/// The key that "no_bf16", "disable_bias_linear" or "no_rope_fusion" turns off; nullptr if the name is none of that
/// kind. Names are in snake case.
const Key* key_turned_off_by(std::string_view flag);

}  // namespace primus::config
