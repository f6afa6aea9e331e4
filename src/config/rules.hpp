#pragma once
// Rules between keys: one small function each, listed in one table. A rule reports problems, or changes what was
// merely inherited and leaves a note.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "config/experiment.hpp"

namespace primus::config {

/// A real train must be able to run; a plan is only looked at.
enum class Purpose { kTrain, kPlan };

/// Processes of the run and who said so (decision 3).
struct WorldSize {
  std::int64_t size = 1;
  std::string source;
};

/// Something that the user should know once: what a rule changed and why.
struct Note {
  std::string key;
  std::string text;
};

/// A value that is not built yet.
struct PlannedUse {
  std::string key;
  std::string value;
  Origin origin;
  std::string reason;
};

/// What every rule sees and may do.
class RuleContext {
 public:
  RuleContext(Experiment& experiment, Purpose purpose, WorldSize world, std::string experiment_file)
      : experiment_(experiment), purpose_(purpose), world_(std::move(world)), file_(std::move(experiment_file)) {}

  const Experiment& experiment() const { return experiment_; }
  Purpose purpose() const { return purpose_; }
  const WorldSize& world() const { return world_; }

  /// Report a fault at the place that set `key`.
  void report(std::string_view key, std::string message, std::string expected = "", std::string nearest = "");

  /// The same where what was found is not the key's own value.
  void report(std::string_view key, Problem what);
  void note(std::string_view key, std::string text) { notes_.push_back({std::string(key), std::move(text)}); }
  void plan(std::string_view key, std::string reason);

  /// Set a value on the rule's own account; says nothing.
  void set(std::string_view key, Value value);

  /// A user's switch needs `key` to be `value`. Explicit and different: an error. Inherited: it yields, with a note.
  void require(std::string_view key, const Value& value, std::string_view because);

  void enter(std::string_view rule) { rule_ = rule; }
  const std::vector<Problem>& problems() const { return problems_; }
  const std::vector<Note>& notes() const { return notes_; }
  const std::vector<PlannedUse>& planned() const { return planned_; }

 private:
  Experiment& experiment_;
  Purpose purpose_;
  WorldSize world_;
  std::string file_;
  std::string_view rule_;
  std::vector<Problem> problems_;
  std::vector<Note> notes_;
  std::vector<PlannedUse> planned_;
};

/// One rule of the table.
struct Rule {
  std::string_view name;
  std::string_view meaning;
  void (*apply)(RuleContext&);
};

/// All rules, in the order in which they run: those that set values before those that read them.
std::vector<Rule> all_rules();

/// Place of a setting as problems name it: file, line and full key.
Problem problem_at(const Experiment& experiment, std::string_view key, const std::string& experiment_file);

/// "lr 0.001 (experiment.yaml:12)": a setting with its place, for messages about two keys.
std::string setting_text(const Experiment& experiment, std::string_view key);

/// Smallest world in which the experiment's parallel sizes fit.
std::int64_t smallest_world(const Experiment& experiment);

/// How a global batch is made up.
struct BatchPlan {
  std::int64_t data_parallel = 1;
  std::int64_t accumulation = 1;  // micro-batches of one step on a rank
};

/// None if the world does not fit the parallel sizes or the batch does not divide.
std::optional<BatchPlan> batch_plan(const Experiment& experiment, std::int64_t world_size);

std::span<const Rule> data_rules();
std::span<const Rule> model_rules();
std::span<const Rule> moe_rules();
std::span<const Rule> parallel_rules();
std::span<const Rule> training_rules();
std::span<const Rule> turbo_rules();

}  // namespace primus::config
