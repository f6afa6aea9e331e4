#pragma once
#include <string>
#include <string_view>

namespace primus {

/// The text with its control characters as \x1b, so that no terminal acts on them and YAML reads them back.
std::string visible(std::string_view text);

}  // namespace primus
