#pragma once
// Resolving experiments against two small presets of the test's own, so that messages have known places.
#include <string>
#include <vector>

#include "config/resolve.hpp"
#include "config/test_folder.hpp"

namespace primus::config {

/// A folder with presets `plain` (module) and `tiny` (model) and one experiment file.
class ResolveFixture {
 public:
  ResolveFixture();

  /// Lines of an experiment's overrides; the rest of the file is fixed.
  void write_overrides(const std::string& lines) { write_experiment(experiment_with(lines)); }
  void write_experiment(const std::string& text) { file_ = folder_.write("exp.yaml", text); }
  static std::string experiment_with(const std::string& lines);

  Resolution resolve(const std::vector<std::string>& overrides = {}, Purpose purpose = Purpose::kPlan,
                     std::int64_t world_size = 0) const;

  /// One problem a line, without the folder's name; empty if the experiment resolves.
  std::string problems(const std::vector<std::string>& overrides = {}, Purpose purpose = Purpose::kPlan,
                       std::int64_t world_size = 0) const;

  /// One note a line: "key: text".
  static std::string notes(const Resolution& resolution);

  const test::TestFolder& folder() const { return folder_; }

 private:
  test::TestFolder folder_;
  test::ScopedVariable presets_;
  std::string file_;
};

}  // namespace primus::config
