#pragma once
// Rules between keys: one small function each, listed in one table. A rule reports problems, or changes what was
// merely inherited and leaves a note.
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "config/experiment.hpp"
#include "config/pipeline_layout.hpp"

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
  std::string cause = "";  // the key whose value made the rule act, if there is one
};

/// A value that is not built yet.
struct PlannedUse {
  std::string key;
  std::string value;
  Origin origin;
  std::string reason;
};

/// A key and the value that a switch needs it to have.
struct Demand {
  std::string_view key;
  Value value;
  std::string way = "";  // out of a contradiction, where there is a better one than to leave out one of the two
};

/// What makes a rule act: a switch, which can be turned off again, or a fact such as the number of pipeline ranks.
enum class Nature { kSwitch, kFact };

/// A key that is in use, and the value that takes it out of use.
struct Alternative {
  std::string_view key;
  Value off;
};

/// What every rule sees and may do. Where two values contradict each other, the one from the stronger layer stands and
/// the other yields, with a note; two that the user wrote in one place are an error (decision 2).
class RuleContext {
 public:
  RuleContext(Experiment& experiment, Purpose purpose, WorldSize world, std::string experiment_file)
      : experiment_(experiment), purpose_(purpose), world_(std::move(world)), file_(std::move(experiment_file)) {}

  const Experiment& experiment() const { return experiment_; }
  Purpose purpose() const { return purpose_; }
  const WorldSize& world() const { return world_; }

  bool is_on(std::string_view key) const { return experiment_.get_bool(key); }
  bool is_null(std::string_view key) const { return experiment_.is_null(key); }
  std::int64_t integer(std::string_view key) const { return experiment_.get_int(key); }

  /// Did the user write the value, or was it set because of one that the user wrote?
  bool is_wanted(std::string_view key) const;

  /// The stronger of two values was written later: command line over experiment file over the files that it extends
  /// over presets over defaults. A value that a rule set is as strong as what made the rule set it.
  bool is_stronger(std::string_view key, std::string_view than) const { return strength(key) > strength(than); }

  /// An environment variable as the run will see it: the experiment's `env` stands over the process's own.
  std::optional<std::string> variable(const std::string& name) const;

  /// Report a fault at the place that set `key`.
  void report(std::string_view key, std::string message, std::string expected = "", std::string nearest = "");

  /// The same where what was found is not the key's own value.
  void report(std::string_view key, Problem what);
  void note(std::string_view key, std::string text, std::string_view cause = "") {
    notes_.push_back({std::string(key), std::move(text), std::string(cause)});
  }
  void plan(std::string_view key, std::string reason);

  /// Set a value on the rule's own account; says nothing.
  void set(std::string_view key, Value value);

  /// Something outside the experiment needs `key` to be `value`. Explicit and different: an error. Inherited: it
  /// yields, with a note.
  void require(std::string_view key, const Value& value, std::string_view because);

  /// The value of `cause` needs these. A weaker value yields to it; a stronger or equal one that the user wrote is an
  /// error; but a switch that was only inherited goes back to its default instead. False if it did.
  bool demand(std::string_view cause, const std::vector<Demand>& needs, Nature nature = Nature::kSwitch);

  /// Two keys of which one may be in use: the weaker one yields; of equals, the second is reported.
  void exclude(const Alternative& first, const Alternative& second);

  /// `cause` replaces the value of `key`, whoever wrote it, with a note: for values that name the same thing twice.
  void overrule(std::string_view key, const Value& value, std::string_view cause);

  void enter(std::string_view rule) { rule_ = rule; }
  const std::vector<Problem>& problems() const { return problems_; }
  const std::vector<Note>& notes() const { return notes_; }
  const std::vector<PlannedUse>& planned() const { return planned_; }

 private:
  int strength(std::string_view key) const;

  /// The key that the user wrote and that made rules set this one; the key itself if no rule did.
  std::string root_of(std::string_view key) const;

  Experiment& experiment_;
  Purpose purpose_;
  WorldSize world_;
  std::string file_;
  std::string_view rule_;
  std::map<std::string, int, std::less<>> strength_of_rule_values_;
  std::map<std::string, std::string, std::less<>> cause_of_rule_values_;
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

/// Rules of one area.
struct RuleGroup {
  std::string_view area;
  std::span<const Rule> rules;
};

/// All rules, in the order in which they run: those that set values before those that read them.
std::vector<RuleGroup> rule_groups();
std::vector<Rule> all_rules();

/// Place of a setting as problems name it: file, line and full key.
Problem problem_at(const Experiment& experiment, std::string_view key, const std::string& experiment_file);

/// "lr 0.001 (experiment.yaml:12)": a setting with its place, for messages about two keys.
std::string setting_text(const Experiment& experiment, std::string_view key);

/// "use_turbo_deepep" of a switch, "recompute_granularity full" of a key with a value: how notes name a cause.
std::string cause_text(const Experiment& experiment, std::string_view key);

/// Whether an inherited value gave way.
enum class Yielded { kNo, kYes };

/// An inherited pattern for more layers than the model has keeps the first ones: a model cut to its first layers, which
/// is what an author of a smaller num_layers means. A pattern that the user wrote, or one that is too short, stays.
Yielded cut_pattern(RuleContext& context, std::string_view key);

/// Divisor of `whole` that is nearest to `wanted`; both at least 1.
std::int64_t nearest_divisor(std::int64_t whole, std::int64_t wanted);

/// Sizes of the parallel groups. Without experts the expert sizes are 1.
struct ParallelSizes {
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t context = 1;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 1;

  std::int64_t dense() const { return tensor * context; }
  std::int64_t sparse() const { return expert * expert_tensor; }
};
ParallelSizes sizes_of(const Experiment& experiment);

/// Are the parallel sizes so small that their products can be computed? Nothing else may be asked before.
bool has_plausible_sizes(const Experiment& experiment);

/// Smallest world in which the experiment's parallel sizes fit.
std::int64_t smallest_world(const Experiment& experiment);

/// How a global batch is made up.
struct BatchPlan {
  std::int64_t data_parallel = 1;
  std::int64_t accumulation = 1;  // micro-batches of one step on a rank
};

/// None if the world does not fit the parallel sizes or the batch does not divide.
std::optional<BatchPlan> batch_plan(const Experiment& experiment, std::int64_t world_size);

/// The layout that the experiment writes, as a layout or as the older list of layers, with every prediction depth
/// in it; none if it writes neither, or one that the rules refuse.
std::optional<PipelineLayout> written_layout(const Experiment& experiment);

/// The stages that the layers are cut into: the layout or the older list that the experiment writes, or an even split
/// with the first and last counts and the accounting for embedding and loss; none where that does not divide.
std::optional<PipelineLayout> stages_of(const Experiment& experiment);

/// Do the stages of the experiment's schedule go down the ranks and up again?
bool is_v_shaped(const Experiment& experiment);

/// Model chunks on each pipeline rank, however the experiment spells it; 1: the schedule is not interleaved.
std::int64_t virtual_pipeline_size(const Experiment& experiment);

std::span<const Rule> communication_rules();
std::span<const Rule> data_rules();
std::span<const Rule> model_rules();
std::span<const Rule> moe_rules();
std::span<const Rule> output_rules();
std::span<const Rule> parallel_rules();
std::span<const Rule> pipeline_rules();
std::span<const Rule> precision_rules();
std::span<const Rule> recompute_rules();
std::span<const Rule> kind_rules();
std::span<const Rule> size_rules();
std::span<const Rule> training_rules();
std::span<const Rule> turbo_rules();

}  // namespace primus::config
