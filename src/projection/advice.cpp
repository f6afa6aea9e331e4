#include "projection/advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <variant>

#include "base/error.hpp"
#include "config/key_table.hpp"
#include "config/variation.hpp"
#include "projection/changes.hpp"

namespace primus::projection {
namespace {

using Words = std::vector<std::string>;

/// A key without what stands before it: "--lr" and "modules.pre_trainer.overrides.lr" are lr.
std::string plain_key(const std::string& key) {
  return key.substr(key.find_last_of(".-") + 1);
}

std::string reason_of(const Problem& problem) {
  std::string text = fmt::format("{}: {}", plain_key(problem.key), problem.message);
  if (!problem.expected.empty()) text += fmt::format(" (expected {})", problem.expected);
  return text;
}

/// The value that a problem proposes for its key: "nearest: 4" or "at most 32".
std::optional<std::string> proposed_value(const Problem& problem) {
  for (const auto& [text, opening] :
       {std::pair(&problem.nearest, "nearest: "), std::pair(&problem.expected, "at most ")}) {
    if (!text->starts_with(opening)) continue;
    std::string value = text->substr(std::string_view(opening).size());
    if (value.find(' ') == std::string::npos) return value;
  }
  return std::nullopt;
}

/// A setting that must follow a change; none if it is not a way of computing or a detail of a switch.
std::optional<Words> companion(const Problem& problem, const Words& words) {
  const std::string key = plain_key(problem.key);
  const config::Key* row = config::find_key(key);
  const std::string option = "--" + key;
  if (!row || (row->impact == config::Impact::kMathematics && row->reading == config::Reading::kAlways)) {
    return std::nullopt;
  }
  if (std::find(words.begin(), words.end(), option) != words.end()) return std::nullopt;
  const auto value = proposed_value(problem);
  if (!value) return std::nullopt;
  return Words{option, *value};
}

/// Resolves and projects what is tried.
class Trial {
 public:
  Trial(const config::Experiment& experiment, double imbalance) : experiment_(experiment), imbalance_(imbalance) {}

  /// The remedy without its saving, or why it is none.
  std::variant<Remedy, std::string> run(Words words, std::int64_t world_size) const {
    constexpr int kMostCompanions = 3;
    std::string why;
    for (int i = 0; i <= kMostCompanions; ++i) {
      try {
        const config::Experiment changed = config::with_overrides(experiment_, words, {world_size, "what would help"});
        const std::int64_t total = project_memory(memory_inputs(changed, world_size, imbalance_)).worst().total();
        return Remedy{.words = std::move(words), .total = total};
      } catch (const ConfigError& error) {
        const Problem& problem = error.problems().front();
        // What companions do not mend is the reason.
        why = reason_of(problem);
        const auto more = companion(problem, words);
        if (!more) return why;
        words.insert(words.end(), more->begin(), more->end());
      } catch (const UserError& error) {
        return why.empty() ? error.what() : why;
      }
    }
    return why;
  }

 private:
  const config::Experiment& experiment_;
  double imbalance_ = 1.0;
};

/// The first way of a change that is legal: on this world or, for layouts, on twice as many ranks.
std::variant<Remedy, std::string> first_legal(const Trial& trial, const Change& change, std::int64_t world) {
  std::string why;
  for (const std::int64_t factor : {1, 2}) {
    if (factor > 1 && change.kind != Change::Kind::kLayout) break;
    for (std::size_t i = 0; i < change.ways.size(); ++i) {
      std::variant<Remedy, std::string> result = trial.run(change.ways[i], factor * world);
      if (auto* remedy = std::get_if<Remedy>(&result)) {
        if (factor > 1) remedy->world_size = factor * world;
        remedy->effect = change.effect;
        return result;
      }
      // On enough ranks the reason is the change's own.
      if (i == 0) why = std::get<std::string>(result);
    }
  }
  return why;
}

}  // namespace

std::string Remedy::text() const {
  std::string text = world_size == 0 ? "" : fmt::format("--world-size {}", world_size);
  for (const std::string& word : words) {
    const bool is_for_shells = word.find_first_of("|*(") != std::string::npos;
    text += text.empty() ? "" : " ";
    text += is_for_shells ? fmt::format("'{}'", word) : word;
  }
  return text;
}

Advice advise(const config::Experiment& experiment, const MemoryInputs& inputs, const MemoryProjection& projection) {
  const std::int64_t before = projection.worst().total();
  const Trial trial(experiment, inputs.sharding.model.imbalance);
  Advice advice;
  for (const Change& change : changes(inputs)) {
    std::variant<Remedy, std::string> result = first_legal(trial, change, inputs.grid.sizes().world);
    auto* remedy = std::get_if<Remedy>(&result);
    if (!remedy) {
      advice.others.push_back({Remedy{.words = change.ways.front()}.text(), std::get<std::string>(result)});
      continue;
    }
    remedy->saved = before - remedy->total;
    // A change of layout is told even where it does not help: it is what people try.
    if (remedy->saved <= 0 && change.kind != Change::Kind::kLayout) {
      advice.others.push_back({remedy->text(), "saves nothing here"});
      continue;
    }
    advice.remedies.push_back(std::move(*remedy));
  }
  std::stable_sort(advice.remedies.begin(), advice.remedies.end(),
                   [](const Remedy& a, const Remedy& b) { return a.saved > b.saved; });
  return advice;
}

}  // namespace primus::projection
