#pragma once
// Helpers for writing SVG text.
#include <string>
#include <string_view>

namespace primus::view {

/// Text safe inside an element or a quoted attribute; characters that XML forbids become spaces.
std::string escaped(std::string_view text);

/// Rough width of a text at a font size, for laying out what is not measured before it is drawn.
double text_width(std::string_view text, double font_size);

}  // namespace primus::view
