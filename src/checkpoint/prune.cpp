#include "checkpoint/prune.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/damage.hpp"
#include "checkpoint/new_folder.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;

/// The first damage that reading all of it meets; nothing: it is whole.
std::optional<std::string> damage_of(const fs::path& folder) {
  try {
    const std::vector<std::string> found = find_damage(CheckpointReader(folder), [](std::int64_t, std::int64_t) {});
    return found.empty() ? std::nullopt : std::optional(found.front());
  } catch (const UserError& error) {
    return error.what();
  }
}

std::int64_t bytes_under(const fs::path& folder) {
  std::int64_t num_bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    const auto size = entry.is_regular_file(error) ? entry.file_size(error) : 0;
    if (!error) num_bytes += static_cast<std::int64_t>(size);
  }
  return num_bytes;
}

}  // namespace

PrunePlan plan_prune(const CheckpointRoot& root, const Retention& retention) {
  PrunePlan plan;
  const std::vector<std::int64_t> steps = root.iterations();
  for (auto step = steps.rbegin(); step != steps.rend() && !plan.newest_whole; ++step) {
    const auto damage = damage_of(root.folder(*step));
    if (damage) {
      plan.damaged.push_back(*damage);
    } else {
      plan.newest_whole = *step;
    }
  }
  if (!plan.newest_whole) {
    std::string why;
    for (const std::string& damage : plan.damaged) why += "\n  " + damage;
    throw UserError(fmt::format("{}: no checkpoint is whole, so none is removed{}", root.path().string(), why));
  }
  plan.removed = to_remove(steps, retention);
  std::erase_if(plan.removed, [&](std::int64_t step) { return step == *plan.newest_whole || step == root.latest(); });
  std::ranges::set_difference(steps, plan.removed, std::back_inserter(plan.kept));
  for (const std::int64_t step : plan.removed) plan.removed_bytes += bytes_under(root.folder(step));
  plan.left_overs = root.left_overs();
  return plan;
}

void prune(const CheckpointRoot& root, const PrunePlan& plan) {
  for (const std::int64_t step : plan.removed) remove_folder(root.folder(step));
  root.remove_left_overs();
}

}  // namespace primus::checkpoint
