#pragma once
// Helpers for writing SVG text.
#include <string>
#include <string_view>

namespace primus::view {

/// Text safe inside an element or a quoted attribute; characters that XML forbids become spaces.
std::string escaped(std::string_view text);

/// Rough width of a text at a font size, for laying out what is not measured before it is drawn.
double text_width(std::string_view text, double font_size);

/// The style sheet of a picture: text, title and paper as all have them, and `light`, rules of its own; then both for
/// dark pages.
std::string picture_style(std::string_view light, std::string_view dark);

}  // namespace primus::view
