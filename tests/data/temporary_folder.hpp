#pragma once
// A folder for one test.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/indexed_writer.hpp"

namespace primus::data {

/// Exists as long as the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::path(testing::TempDir()) / "primus_data_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

  /// Names of everything inside, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
      result.push_back(std::filesystem::relative(entry.path(), path_).string());
    }
    std::sort(result.begin(), result.end());
    return result;
  }

 private:
  std::filesystem::path path_;
};

/// Writes a data set whose token p of sequence s is `base + 1000 * s + p`.
inline void write_counting(const std::string& prefix, const std::vector<std::int64_t>& lengths, std::int64_t base = 0) {
  IndexedWriter writer(prefix, TokenType::kInt32);
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(lengths[s]));
    for (std::size_t p = 0; p < tokens.size(); ++p) {
      tokens[p] = base + 1000 * static_cast<std::int64_t>(s) + static_cast<std::int64_t>(p);
    }
    writer.add_sequence(tokens);
    writer.end_document();
  }
  writer.finish();
}

/// The message of the UserError that `action` throws; fails the test if it throws none.
template <typename Action>
std::string user_error(const Action& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no UserError";
  return {};
}

}  // namespace primus::data
