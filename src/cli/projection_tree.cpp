#include "cli/projection_tree.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "cli/projection_common.hpp"

namespace primus::cli {
namespace {

using projection::Category;
using projection::RankMemory;

/// Components with their parameters and the bytes that these take in all.
void add_components(const RankMemory& rank, std::vector<TreeRow>& rows) {
  for (int i = 0; i < model::kNumComponents; ++i) {
    const projection::ComponentMemory& component = rank.components[static_cast<std::size_t>(i)];
    if (component.bytes.total() == 0) continue;
    rows.push_back({1, std::string(model::name(static_cast<model::Component>(i))), component.bytes.total(),
                    fmt::format("{} parameters", format_count(component.num_parameters))});
  }
  if (rank.copies.num_parameters == 0) return;
  rows.push_back({1, "embedding, copied", rank.copies.bytes.total(),
                  fmt::format("{} parameters of another stage", format_count(rank.copies.num_parameters))});
}

void add_activations(const RankMemory& rank, std::vector<TreeRow>& rows) {
  for (int i = 0; i < model::kNumSavedCategories; ++i) {
    const auto category = static_cast<model::SavedCategory>(i);
    if (rank.saved(category) > 0) {
      rows.push_back({1, std::string(model::name(category)), rank.saved(category), ""});
    }
  }
}

}  // namespace

std::vector<TreeRow> component_tree(const RankMemory& rank) {
  std::vector<TreeRow> rows;
  const model::ResidentBytes resident = rank.resident();
  rows.push_back({0, "resident", resident.total() - rank.gradients_to_come,
                  fmt::format("weights {}, gradients {}, optimizer {}", gib_text(resident.parameters),
                              gib_text(rank.bytes(Category::kGradients)), gib_text(resident.optimizer))});
  add_components(rank, rows);
  if (rank.gradients_to_come > 0) {
    rows.push_back({1, "gradients to come", -rank.gradients_to_come, "allocated as backward reaches them"});
  }
  rows.push_back(
      {0, "activations in flight", rank.bytes(Category::kActivations),
       fmt::format("{} at {} of micro-batch {}, chunk {}", counted(rank.in_flight(), "chunk activation"),
                   schedule::name(rank.peak_pass.kind), rank.peak_pass.micro_batch.value, rank.peak_pass.chunk.value)});
  add_activations(rank, rows);
  if (rank.given_back > 0) rows.push_back({1, "given back", -rank.given_back, "by the backward pass, at the peak"});
  if (rank.remade > 0) rows.push_back({0, "made again", rank.remade, "while the largest part runs backward"});
  rows.push_back(
      {0, "dispatch and permute", rank.working.dispatch, "declared, where this and the working set together are most"});
  rows.push_back({0, "communication", rank.working.communication, "estimate"});
  rows.push_back({0, "working set", rank.working.compute, "declared: the layers' tensors of a pass, and their ops'"});
  rows.push_back({0, "framework", rank.framework.total(),
                  fmt::format("measured: context {}, {}", gib_text(rank.framework.context),
                              counted(rank.framework.num_communicators, "communicator"))});
  rows.push_back({0, "total", rank.total(), ""});
  return rows;
}

std::vector<Contributor> largest_contributors(const RankMemory& rank) {
  std::vector<Contributor> all;
  for (int i = 0; i < model::kNumSavedCategories; ++i) {
    const auto category = static_cast<model::SavedCategory>(i);
    all.push_back({fmt::format("activations: {}", model::name(category)), rank.saved(category)});
  }
  for (int i = 0; i < model::kNumComponents; ++i) {
    const model::ResidentBytes& bytes = rank.components[static_cast<std::size_t>(i)].bytes;
    const std::string_view component = model::name(static_cast<model::Component>(i));
    all.push_back({fmt::format("weights: {}", component), bytes.parameters});
    all.push_back({fmt::format("gradients: {}", component), bytes.main_gradients});
    all.push_back({fmt::format("optimizer: {}", component), bytes.optimizer});
  }
  for (const Category category : {Category::kRemade, Category::kDispatch, Category::kCommunication,
                                  Category::kWorkingSet, Category::kFramework}) {
    all.push_back({std::string(projection::name(category)), rank.bytes(category)});
  }
  std::erase_if(all, [](const Contributor& one) { return one.bytes == 0; });
  std::stable_sort(all.begin(), all.end(),
                   [](const Contributor& a, const Contributor& b) { return a.bytes > b.bytes; });
  constexpr std::size_t kShown = 5;
  all.resize(std::min(kShown, all.size()));
  return all;
}

}  // namespace primus::cli
