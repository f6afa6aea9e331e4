#pragma once
// The loss curve of a run, from its metrics.jsonl.
#include <cstddef>
#include <filesystem>
#include <optional>

namespace primus::cli {

/// What a run's metrics say about its loss.
struct LossSummary {
  std::size_t num_points = 0;
  std::optional<double> first;
  std::optional<double> last;
  std::optional<double> last_held_out;
};

/// Draw `metrics` to `picture`. Lines hold `iteration` with `lm_loss` (training) or `eval_loss` (held out), and may
/// hold `unigram_loss` and `bigram_loss`, drawn as levels. Throws UserError if there is no loss in the file.
LossSummary draw_loss_curve(const std::filesystem::path& metrics, const std::filesystem::path& picture);

}  // namespace primus::cli
