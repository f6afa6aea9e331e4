#include "train/log_lines.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.hpp"
#include "base/visible.hpp"

namespace primus::train {

std::string time_text(std::time_t time) {
  std::tm local{};
  ::localtime_r(&time, &local);
  char text[32];
  std::strftime(text, sizeof text, kTimeFormat, &local);
  return text;
}

void append_to_file(const std::filesystem::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::app);
  out << text << std::flush;
  if (!out) throw UserError(fmt::format("{}: cannot be written: {}", visible(path.string()), std::strerror(errno)));
}

}  // namespace primus::train
