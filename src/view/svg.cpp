#include "view/svg.hpp"

namespace primus::view {

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

double text_width(std::string_view text, double font_size) {
  constexpr double kMeanAdvance = 0.56;
  double num_letters = 0.0;
  for (const char c : text) num_letters += (static_cast<unsigned char>(c) & 0xC0) == 0x80 ? 0.0 : 1.0;
  return num_letters * kMeanAdvance * font_size;
}

std::string picture_style(std::string_view light, std::string_view dark) {
  std::string style = R"(
  text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; font-size: 13px; fill: #1f2328; }
  .title { font-size: 19px; font-weight: 600; }
  .small { fill: #59636e; }
  .paper { fill: #ffffff; }
)";
  style += light;
  style += R"(  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9da7b3; } .paper { fill: #0d1117; })";
  style += dark;
  return style + "  }\n";
}

}  // namespace primus::view
