#pragma once
// SVG to PNG, by the program rsvg-convert.
#include <filesystem>
#include <string_view>

namespace primus::view {

/// Write `svg` as a PNG file, `scale` pixels for each of its own. Throws UserError if rsvg-convert (Debian:
/// librsvg2-bin) is not there or fails.
void write_png(std::string_view svg, const std::filesystem::path& file, double scale = 1.0);

}  // namespace primus::view
