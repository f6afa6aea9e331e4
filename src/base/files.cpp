#include "base/files.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.hpp"

namespace primus {

std::string read_file(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) throw UserError(fmt::format("{}: is a folder, not a file", path.string()));
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UserError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  std::ostringstream content;
  content << in.rdbuf();
  if (in.bad()) throw UserError(fmt::format("{}: reading failed: {}", path.string(), std::strerror(errno)));
  return std::move(content).str();
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = path.string() + fmt::format(".tmp{}", ::getpid());
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    if (!out) throw UserError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.flush();
    if (!out) throw UserError(fmt::format("{}: writing failed: {}", path.string(), std::strerror(errno)));
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) throw UserError(fmt::format("{}: cannot be replaced: {}", path.string(), error.message()));
}

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw UserError(fmt::format("{}: cannot be created: {}", path.string(), error.message()));
}

}  // namespace primus
