#pragma once
// Cutting a document into sentences.
#include <string_view>
#include <vector>

namespace primus::data {

/// The sentences of a text, which together are the text: each ends behind its closing marks and the white space after
/// them, or at an empty line.
std::vector<std::string_view> sentences(std::string_view text);

}  // namespace primus::data
