#pragma once
// Reads tools/golden/*.txt.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace primus::data {

/// One `case` of a golden file: values by key, in words.
class GoldenCase {
 public:
  std::string name;

  bool has(const std::string& key) const { return values_.contains(key); }
  const std::vector<std::string>& words(const std::string& key) const { return values_.at(key).front(); }
  /// For keys that come several times: every line's words.
  const std::vector<std::vector<std::string>>& lines(const std::string& key) const { return values_.at(key); }
  /// Keys in the order of the lines.
  const std::vector<std::string>& order() const { return order_; }

  std::vector<std::int64_t> integers(const std::string& key) const {
    std::vector<std::int64_t> result;
    for (const std::string& word : words(key)) result.push_back(std::stoll(word));
    return result;
  }
  std::int64_t integer(const std::string& key) const { return integers(key).at(0); }

  /// Compares with the array printed under `key`, or with its hash.
  template <typename Values>
  void expect_array(const std::string& key, const Values& values) const {
    if (has(key)) {
      EXPECT_EQ(std::vector<std::int64_t>(values.begin(), values.end()), integers(key)) << name << ": " << key;
      return;
    }
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (const auto& value : values) {
      const auto wide = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
      for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (wide >> (8 * byte) & 0xFF)) * 0x100000001b3ULL;
    }
    EXPECT_EQ(std::to_string(hash), words(key + "_hash").at(0)) << name << ": " << key;
  }

  void add_line(const std::string& key, std::vector<std::string> line_words) {
    values_[key].push_back(std::move(line_words));
    order_.push_back(key);
  }

 private:
  std::map<std::string, std::vector<std::vector<std::string>>> values_;
  std::vector<std::string> order_;
};

/// The cases of a golden file whose names begin with `kind`; at least one.
inline std::vector<GoldenCase> golden_cases(const std::string& file, const std::string& kind) {
  std::ifstream in(std::string(PRIMUS_SOURCE_DIR) + "/tools/golden/" + file);
  EXPECT_TRUE(in) << file;
  std::vector<GoldenCase> cases;
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream text(line);
    std::string key;
    text >> key;
    if (key.empty() || key.front() == '#') continue;
    if (key == "case") {
      cases.emplace_back();
      cases.back().name = line.substr(5);
      continue;
    }
    std::vector<std::string> words;
    for (std::string word; text >> word;) words.push_back(word);
    cases.back().add_line(key, std::move(words));
  }
  std::erase_if(cases, [&kind](const GoldenCase& c) { return c.name.rfind(kind, 0) != 0; });
  EXPECT_FALSE(cases.empty()) << kind;
  return cases;
}

}  // namespace primus::data
