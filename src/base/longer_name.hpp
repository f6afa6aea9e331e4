#pragma once
// The name that a shorter word was meant to be: "mixtral" for "mixtral_8x7B_v0.1".
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace primus {

/// The shortest candidate of which `name` is the beginning or the end, up to a '-', '_' or '.'; at least three letters.
std::optional<std::string> nearest_longer_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace primus
