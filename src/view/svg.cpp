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

}  // namespace primus::view
