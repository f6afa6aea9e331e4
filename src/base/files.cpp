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

namespace {

void write_stream(std::ofstream& out, const std::filesystem::path& path, std::string_view content) {
  if (!out) throw UserError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.flush();
  if (!out) throw UserError(fmt::format("{}: writing failed: {}", path.string(), std::strerror(errno)));
}

}  // namespace

void write_file(const std::filesystem::path& path, std::string_view content) {
  std::error_code ignored;
  const std::filesystem::file_status target = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(target) && !std::filesystem::is_regular_file(target) &&
      !std::filesystem::is_directory(target)) {
    // A device or a pipe takes the text; a file put in its place would take the device away from everybody.
    std::ofstream out(path, std::ios::binary);
    return write_stream(out, path, content);
  }
  const std::filesystem::path temporary = path.string() + fmt::format(".tmp{}", ::getpid());
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    write_stream(out, path, content);
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
