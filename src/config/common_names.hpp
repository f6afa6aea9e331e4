#pragma once
// Names that other systems and papers use for what a key here says.
#include <string_view>

namespace primus::config {

/// "seq_length" for "seq_len", "micro_batch_size or global_batch_size" for "batch"; empty if the name is none of them.
std::string_view key_of_common_name(std::string_view name);

}  // namespace primus::config
