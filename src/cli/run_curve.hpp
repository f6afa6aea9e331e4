#pragma once
// The curves of runs, from their metrics.jsonl.
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace primus::cli {

/// What a run's metrics say about its loss.
struct LossSummary {
  std::string run;  // name of its folder
  std::size_t num_points = 0;
  std::optional<double> first;
  std::optional<double> last;
  std::optional<double> last_held_out;
  std::optional<double> last_load;  // of the busiest expert, over the mean
};

/// What is drawn: of one run training and held-out loss together, of several one curve each.
enum class Drawn { kLoss, kTraining, kHeldOut, kExpertLoad };

/// Draw `metrics` to `picture`, a curve a run. Lines hold `iteration` with `lm_loss` (training), `eval_loss` (held out)
/// or `expert_load`, and may hold `unigram_loss` and `bigram_loss`, drawn as levels. Throws UserError if a file holds
/// nothing of what is asked for.
std::vector<LossSummary> draw_curves(const std::vector<std::filesystem::path>& metrics, Drawn drawn,
                                     const std::filesystem::path& picture);

}  // namespace primus::cli
