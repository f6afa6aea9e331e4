#include "cli/projection_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "base/visible.hpp"
#include "cli/terminal.hpp"

namespace primus::cli {
namespace {

using projection::Category;
using projection::MemoryInputs;
using projection::RankMemory;
using projection::Remedy;

std::string title(std::string_view text) {
  return coloured(text, Colour::kBold, stdout) + "\n";
}

const RankMemory& stage_of(const Projected& projected, std::int64_t rank) {
  const std::int64_t pipeline = projected.inputs.grid.place(rank).pipeline;
  return projected.memory.ranks.at(static_cast<std::size_t>(pipeline));
}

/// What is told in detail: the rank that was asked for, or the largest.
const RankMemory& chosen(const Projected& projected, const ReportRequest& request) {
  return request.rank ? stage_of(projected, *request.rank) : projected.memory.worst();
}

std::int64_t transient(const RankMemory& rank) {
  return rank.bytes(Category::kRemade) + rank.bytes(Category::kDispatch) + rank.bytes(Category::kCommunication) +
         rank.bytes(Category::kWorkingSet);
}

std::string table_head() {
  return fmt::format("{:>6} {:<19} {:>7} {:>8} {:>9} {:>9} {:>11} {:>6} {:>9} {:>9} {:>8}\n", "rank", "layers",
                     "params", "weights", "gradients", "optimizer", "activations", "chunks", "transient", "framework",
                     "total");
}

std::string table_row(std::int64_t number, const RankMemory& rank) {
  std::string layers = layers_text(rank);
  if (layers.size() > 19) layers = layers.substr(0, 16) + "...";
  return fmt::format("{:>6} {:<19} {:>7} {:>8} {:>9} {:>9} {:>11} {:>6} {:>9} {:>9} {:>8}\n", number, layers,
                     format_short_count(static_cast<double>(rank.num_parameters())),
                     gib_text(rank.bytes(Category::kParameters)), gib_text(rank.bytes(Category::kGradients)),
                     gib_text(rank.bytes(Category::kOptimizer)), gib_text(rank.bytes(Category::kActivations)),
                     rank.in_flight(), gib_text(transient(rank)), gib_text(rank.bytes(Category::kFramework)),
                     gib_text(rank.total()));
}

std::string table(const Projected& projected, const ReportRequest& request) {
  std::string text = title(request.all_ranks ? "by rank (GiB)" : "by pipeline rank (GiB)") + table_head();
  if (request.all_ranks) {
    for (std::int64_t rank = 0; rank < projected.inputs.grid.sizes().world; ++rank) {
      text += table_row(rank, stage_of(projected, rank));
    }
    return text;
  }
  for (const RankMemory& rank : projected.memory.ranks) text += table_row(rank.pipeline_rank, rank);
  return text;
}

std::string tree_line(int depth, std::string_view label, std::int64_t bytes, const std::string& remark) {
  const std::string indented = std::string(static_cast<std::size_t>(2 * depth), ' ') + std::string(label);
  std::string line = fmt::format("  {:<30} {:>9}", indented, gib_text(bytes));
  if (!remark.empty()) line += "   " + remark;
  return line + "\n";
}

/// Components with their parameters and the bytes that these take in all.
std::string component_lines(const RankMemory& rank) {
  std::string text;
  for (int i = 0; i < model::kNumComponents; ++i) {
    const projection::ComponentMemory& component = rank.components[static_cast<std::size_t>(i)];
    if (component.bytes.total() == 0) continue;
    text += tree_line(1, model::name(static_cast<model::Component>(i)), component.bytes.total(),
                      fmt::format("{} parameters", format_count(component.num_parameters)));
  }
  if (rank.copies.num_parameters > 0) {
    text += tree_line(1, "embedding, copied", rank.copies.bytes.total(),
                      fmt::format("{} parameters of another stage", format_count(rank.copies.num_parameters)));
  }
  return text;
}

std::string activation_lines(const RankMemory& rank) {
  std::string text;
  for (int i = 0; i < model::kNumSavedCategories; ++i) {
    const auto category = static_cast<model::SavedCategory>(i);
    if (rank.saved(category) > 0) text += tree_line(1, model::name(category), rank.saved(category), "");
  }
  return text;
}

std::string tree(const Projected& projected, const ReportRequest& request) {
  const RankMemory& rank = chosen(projected, request);
  std::string text;
  if (request.rank) {
    const layout::RankPlace place = projected.inputs.grid.place(*request.rank);
    text += title(fmt::format("rank {}: tensor {}, context {}, data {}, pipeline {}; expert {}, expert data {} (GiB)",
                              *request.rank, place.tensor, place.context, place.data, place.pipeline, place.expert,
                              place.expert_data));
  } else {
    text += title(fmt::format("largest: pipeline rank {} (GiB)", rank.pipeline_rank));
  }
  const model::ResidentBytes resident = rank.resident();
  text += tree_line(0, "resident", resident.total(),
                    fmt::format("weights {}, gradients {}, optimizer {}", gib_text(resident.parameters),
                                gib_text(resident.main_gradients), gib_text(resident.optimizer)));
  text += component_lines(rank);
  text += tree_line(
      0, "activations in flight", rank.bytes(Category::kActivations),
      fmt::format("{} at {} of micro-batch {}, chunk {}", counted(rank.in_flight(), "chunk activation"),
                  schedule::name(rank.peak_pass.kind), rank.peak_pass.micro_batch.value, rank.peak_pass.chunk.value));
  text += activation_lines(rank);
  if (rank.remade > 0) text += tree_line(0, "made again", rank.remade, "while the largest part runs backward");
  text += tree_line(0, "dispatch and permute", rank.working.dispatch, "");
  text += tree_line(0, "communication", rank.working.communication, "");
  text += tree_line(0, "working set", rank.working.compute, "estimate");
  text += tree_line(0, "framework", rank.framework.total(),
                    fmt::format("measured: context {}, {}", gib_text(rank.framework.context),
                                counted(rank.framework.num_communicators, "communicator")));
  return text + tree_line(0, "total", rank.total(), "");
}

std::string verdict(const Projected& projected, const ReportRequest& request) {
  if (!request.device) return "";
  const std::int64_t total = projected.memory.worst().total();
  const std::int64_t room = request.device->memory_bytes - total;
  const bool fits = room >= 0;
  const std::string text =
      fmt::format("{}: {} of {} GiB on {}, {} GiB {}", fits ? "fits" : "does not fit", gib_text(total),
                  gib_text(request.device->memory_bytes), visible(request.device->name), gib_text(std::abs(room)),
                  fits ? "left" : "too much");
  return coloured(text, fits ? Colour::kGreen : Colour::kRed, stdout) + "\n";
}

struct Contributor {
  std::string name;
  std::int64_t bytes = 0;
};

std::vector<Contributor> contributors(const RankMemory& rank) {
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
  std::stable_sort(all.begin(), all.end(),
                   [](const Contributor& a, const Contributor& b) { return a.bytes > b.bytes; });
  return all;
}

std::string contributor_lines(const RankMemory& rank) {
  std::string text = title("largest contributors");
  constexpr std::size_t kShown = 5;
  const std::vector<Contributor> all = contributors(rank);
  for (std::size_t i = 0; i < std::min(kShown, all.size()); ++i) {
    if (all[i].bytes == 0) break;
    text += fmt::format("  {:<30} {:>9}   {:.0f} %\n", all[i].name, gib_text(all[i].bytes),
                        100.0 * static_cast<double>(all[i].bytes) / static_cast<double>(rank.total()));
  }
  return text;
}

bool fits(const Remedy& remedy, const ReportRequest& request) {
  return request.device && remedy.total <= request.device->memory_bytes;
}

std::string remedy_lines(const std::vector<Remedy>& remedies, const ReportRequest& request) {
  if (remedies.empty()) return "";
  std::string text = title("what would help (GiB saved on the largest rank, and its new total)");
  for (const Remedy& remedy : remedies) {
    const std::string saved = remedy.saved < 0 ? "-" + gib_text(-remedy.saved) : gib_text(remedy.saved);
    text += fmt::format("  {:>7} -> {:>6}{}  {}\n", saved, gib_text(remedy.total),
                        fits(remedy, request) ? " fits"
                        : request.device      ? "     "
                                              : "",
                        remedy.words);
  }
  return text;
}

Json resident_json(const model::ResidentBytes& bytes) {
  return {{"parameters", bytes.parameters}, {"gradients", bytes.main_gradients}, {"optimizer", bytes.optimizer}};
}

std::string underscored(std::string_view text) {
  std::string name(text);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

Json inputs_json(const Projected& projected) {
  const MemoryInputs& inputs = projected.inputs;
  const layout::GridSizes& sizes = inputs.grid.sizes();
  Json json = {{"world_size", sizes.world}, {"tensor", sizes.tensor}, {"context", sizes.context}};
  json["data"] = inputs.grid.num_data();
  json["pipeline"] = sizes.pipeline;
  json["chunks"] = inputs.stages.num_chunks();
  json["expert"] = sizes.expert;
  json["expert_tensor"] = sizes.expert_tensor;
  json["expert_data"] = inputs.grid.num_expert_data();
  json["schedule"] = schedule::info(inputs.schedule.algorithm).name;
  json["micro_batch_size"] = inputs.micro_batch.num_sequences;
  json["seq_length"] = inputs.micro_batch.seq_length;
  json["imbalance"] = inputs.sharding.model.imbalance;
  return json;
}

}  // namespace

std::string memory_text(const Projected& projected, const ReportRequest& request) {
  std::string text = title(fmt::format("memory of {}", visible(projected.name)));
  for (const auto& [label, line] : setting_lines(projected)) text += fmt::format("  {:<11}{}\n", label, line);
  text += table(projected, request) + tree(projected, request) + contributor_lines(chosen(projected, request));
  text += remedy_lines(projection::remedies(projected.inputs, projected.memory), request);
  return text + verdict(projected, request);
}

Json rank_json(const RankMemory& rank) {
  Json json = {{"pipeline_rank", rank.pipeline_rank},
               {"layers", rank.num_layers()},
               {"parameters", rank.num_parameters()},
               {"copied_parameters", rank.copies.num_parameters},
               {"total_bytes", rank.total()}};
  for (int i = 0; i < projection::kNumCategories; ++i) {
    const auto category = static_cast<Category>(i);
    json["bytes"][underscored(projection::name(category))] = rank.bytes(category);
  }
  json["components"] = Json::object();
  for (int i = 0; i < model::kNumComponents; ++i) {
    const projection::ComponentMemory& component = rank.components[static_cast<std::size_t>(i)];
    if (component.bytes.total() == 0) continue;
    Json entry = resident_json(component.bytes);
    entry["count"] = component.num_parameters;
    json["components"][std::string(model::name(static_cast<model::Component>(i)))] = std::move(entry);
  }
  json["activations"] = Json::object();
  for (int i = 0; i < model::kNumSavedCategories; ++i) {
    const auto category = static_cast<model::SavedCategory>(i);
    if (rank.saved(category) > 0) json["activations"][std::string(model::name(category))] = rank.saved(category);
  }
  json["chunks"] = Json::array();
  for (const projection::ChunkMemory& chunk : rank.chunks) {
    json["chunks"].push_back({{"first_layer", chunk.content.first_layer},
                              {"layers", chunk.content.num_layers},
                              {"bytes_per_micro_batch", chunk.kept()},
                              {"in_flight", chunk.in_flight}});
  }
  return json;
}

Json memory_json(const Projected& projected, const ReportRequest& request) {
  Json json = {{"ok", true}, {"experiment", projected.name}, {"accounting", "ours"}};
  json["layout"] = inputs_json(projected);
  json["ranks"] = Json::array();
  if (request.rank) {
    json["rank"] = *request.rank;
    json["ranks"].push_back(rank_json(stage_of(projected, *request.rank)));
  } else {
    for (const RankMemory& rank : projected.memory.ranks) json["ranks"].push_back(rank_json(rank));
  }
  if (request.all_ranks) {
    json["pipeline_rank_of"] = Json::array();
    for (std::int64_t rank = 0; rank < projected.inputs.grid.sizes().world; ++rank) {
      json["pipeline_rank_of"].push_back(projected.inputs.grid.place(rank).pipeline);
    }
  }
  const RankMemory& worst = projected.memory.worst();
  json["largest"] = {{"pipeline_rank", worst.pipeline_rank}, {"total_bytes", worst.total()}};
  if (request.device) {
    json["device"] = {{"name", request.device->name}, {"memory_bytes", request.device->memory_bytes}};
    json["fits"] = worst.total() <= request.device->memory_bytes;
  }
  json["remedies"] = Json::array();
  for (const Remedy& remedy : projection::remedies(projected.inputs, projected.memory)) {
    Json entry = {{"overrides", remedy.words}, {"saved_bytes", remedy.saved}, {"total_bytes", remedy.total}};
    entry["cost"] = remedy.effect;
    if (request.device) entry["fits"] = fits(remedy, request);
    json["remedies"].push_back(std::move(entry));
  }
  return json;
}

std::string memory_csv(const Projected& projected, const ReportRequest& request) {
  std::string text = "rank,pipeline_rank,layers,parameters";
  for (int i = 0; i < projection::kNumCategories; ++i) {
    text += "," + underscored(projection::name(static_cast<Category>(i))) + "_bytes";
  }
  text += ",total_bytes\n";
  const auto row = [&](std::int64_t number, const RankMemory& rank) {
    text += fmt::format("{},{},{},{}", number, rank.pipeline_rank, rank.num_layers(), rank.num_parameters());
    for (int i = 0; i < projection::kNumCategories; ++i) {
      text += fmt::format(",{}", rank.bytes(static_cast<Category>(i)));
    }
    text += fmt::format(",{}\n", rank.total());
  };
  if (request.rank) {
    row(*request.rank, stage_of(projected, *request.rank));
  } else if (request.all_ranks) {
    for (std::int64_t rank = 0; rank < projected.inputs.grid.sizes().world; ++rank) {
      row(rank, stage_of(projected, rank));
    }
  } else {
    for (const RankMemory& rank : projected.memory.ranks) {
      row(projected.inputs.grid.first_rank_of_stage(rank.pipeline_rank), rank);
    }
  }
  return text;
}

}  // namespace primus::cli
