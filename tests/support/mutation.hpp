#pragma once
// Damaged text for tests of parsers.
#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <string_view>

namespace primus::test {

/// One to four small injuries: a byte changed, a part removed, doubled or cut off, or one of `pieces`, which the parser
/// minds, put in.
inline std::string mutated(std::string text, std::mt19937& random, std::span<const std::string_view> pieces) {
  const auto below = [&](std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
  };
  for (std::size_t i = 1 + below(4); i > 0 && !text.empty(); --i) {
    const std::size_t at = below(text.size());
    const std::size_t size = std::min(text.size() - at, 1 + below(12));
    switch (below(5)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.erase(at, size);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size()), size));
        break;
      case 3:
        text.resize(at);
        break;
      default:
        text.insert(at, pieces[below(pieces.size())]);
    }
  }
  return text;
}

}  // namespace primus::test
