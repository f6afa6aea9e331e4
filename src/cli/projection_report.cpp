#include "cli/projection_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "base/visible.hpp"
#include "cli/projection_tree.hpp"
#include "cli/terminal.hpp"
#include "cli/view_memory.hpp"
#include "projection/unmodelled.hpp"
#include "projection/verdict.hpp"

namespace primus::cli {
namespace {

using projection::Category;
using projection::MemoryInputs;
using projection::RankMemory;
using projection::Remedy;

projection::Advice advice_for(const Projected& projected) {
  return projection::advise(projected.resolution.experiment, projected.inputs, projected.memory);
}

std::string title(std::string_view text) {
  return coloured(text, Colour::kBold, stdout) + "\n";
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
                     rank.in_flight(), gib_text(rank.transient()), gib_text(rank.bytes(Category::kFramework)),
                     gib_text(rank.total()));
}

/// The bytes of a rank that holds another stage's embedding again are more than its parameters explain.
std::string copies_line(const Projected& projected) {
  std::string ranks;
  std::int64_t count = 0;
  for (const RankMemory& rank : projected.memory.ranks) {
    if (rank.copies.num_parameters == 0) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank.pipeline_rank);
    count = rank.copies.num_parameters;
  }
  if (ranks.empty()) return "";
  return fmt::format(
      "  pipeline rank {} holds the word embedding again: {} parameters, in its bytes but not in params\n", ranks,
      format_count(count));
}

/// What no device holds.
std::string host_line(const Projected& projected) {
  std::int64_t most = 0;
  for (const RankMemory& rank : projected.memory.ranks) most = std::max(most, rank.resident().optimizer_on_host);
  if (most == 0) return "";
  return fmt::format("  the host's memory holds up to {} GiB of the optimizer's state for each rank, beside these\n",
                     gib_text(most));
}

std::string table(const Projected& projected, const ReportRequest& request) {
  std::string text = title(request.all_ranks ? "by rank (GiB)" : "by pipeline rank (GiB)") + table_head();
  if (request.all_ranks) {
    for (std::int64_t rank = 0; rank < projected.inputs.grid.sizes().world; ++rank) {
      text += table_row(rank, stage_of(projected, rank));
    }
    return text + copies_line(projected) + host_line(projected);
  }
  for (const RankMemory& rank : projected.memory.ranks) text += table_row(rank.pipeline_rank, rank);
  return text + copies_line(projected) + host_line(projected);
}

std::string tree(const Projected& projected, const ReportRequest& request) {
  const RankMemory& rank = chosen(projected, request);
  std::string text = title(rank_title(projected, request) + " (GiB)");
  for (const TreeRow& row : component_tree(rank)) {
    const std::string indented = std::string(static_cast<std::size_t>(2 * row.depth), ' ') + row.label;
    text += fmt::format("  {:<30} {:>9}", indented, gib_text(row.bytes));
    text += row.remark.empty() ? "\n" : "   " + row.remark + "\n";
  }
  return text;
}

std::string coloured_verdict(const Projected& projected, const ReportRequest& request) {
  if (!request.device) return "";
  const RankMemory& worst = projected.memory.worst();
  const projection::Fit fit = projection::fit_of(worst, request.device->memory_bytes);
  const Colour colour = fit == projection::Fit::kFits     ? Colour::kGreen
                        : fit == projection::Fit::kBarely ? Colour::kYellow
                                                          : Colour::kRed;
  return coloured(verdict(worst, *request.device), colour, stdout) + "\n";
}

std::string contributor_lines(const RankMemory& rank) {
  std::string text = title("largest contributors");
  for (const Contributor& one : largest_contributors(rank)) {
    text += fmt::format("  {:<30} {:>9}   {:.0f} %\n", one.name, gib_text(one.bytes), one.percent(rank));
  }
  return text;
}

std::string signed_gib(std::int64_t bytes) {
  return bytes < 0 ? "-" + gib_text(-bytes) : gib_text(bytes);
}

bool fits(const Remedy& remedy, const ReportRequest& request) {
  return request.device && remedy.total <= request.device->memory_bytes;
}

std::string remedy_lines(const projection::Advice& advice, const ReportRequest& request) {
  std::string text;
  if (!advice.remedies.empty()) text += title("what would help (GiB saved on the largest rank, and its new total)");
  for (const Remedy& remedy : advice.remedies) {
    text += fmt::format("  {:>7} -> {:>6}{}  {}\n", signed_gib(remedy.saved), gib_text(remedy.total),
                        fits(remedy, request) ? " fits"
                        : request.device      ? "     "
                                              : "",
                        remedy.text());
  }
  if (!advice.others.empty()) text += title("what would not");
  for (const projection::NoRemedy& other : advice.others) {
    text += fmt::format("  {}\n      {}\n", other.words, visible(other.why));
  }
  return text;
}

Json resident_json(const model::ResidentBytes& bytes) {
  return {{"parameters", bytes.parameters}, {"gradients", bytes.main_gradients}, {"optimizer", bytes.optimizer}};
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
  json["counted_imbalance"] = projection::counted_imbalance(inputs);
  return json;
}

}  // namespace

const RankMemory& stage_of(const Projected& projected, std::int64_t rank) {
  const std::int64_t pipeline = projected.inputs.grid.place(rank).pipeline;
  return projected.memory.ranks.at(static_cast<std::size_t>(pipeline));
}

const RankMemory& chosen(const Projected& projected, const ReportRequest& request) {
  return request.rank ? stage_of(projected, *request.rank) : projected.memory.worst();
}

std::string rank_title(const Projected& projected, const ReportRequest& request) {
  if (!request.rank) return fmt::format("largest: pipeline rank {}", projected.memory.worst().pipeline_rank);
  const layout::RankPlace place = projected.inputs.grid.place(*request.rank);
  return fmt::format("rank {}: tensor {}, context {}, data {}, pipeline {}; expert {}, expert data {}", *request.rank,
                     place.tensor, place.context, place.data, place.pipeline, place.expert, place.expert_data);
}

std::string verdict(std::int64_t total, const projection::Hardware& device) {
  const std::int64_t room = device.memory_bytes - total;
  const bool fits = room >= 0;
  return fmt::format("{}: {} of {} GiB on {}, {} GiB {}", fits ? "fits" : "does not fit", gib_text(total),
                     gib_text(device.memory_bytes), visible(device.name), gib_text(std::abs(room)),
                     fits ? "left" : "too much");
}

std::string verdict(const RankMemory& rank, const projection::Hardware& device) {
  const projection::Fit fit = projection::fit_of(rank, device.memory_bytes);
  if (fit != projection::Fit::kBarely) return verdict(rank.total(), device);
  return fmt::format("{}: {} of {} GiB on {}, {} GiB left; the estimates may be wrong by {}", projection::name(fit),
                     gib_text(rank.total()), gib_text(device.memory_bytes), visible(device.name),
                     gib_text(device.memory_bytes - rank.total()), gib_text(projection::uncertainty(rank)));
}

std::string memory_text(const Projected& projected, const ReportRequest& request) {
  std::string text = title(fmt::format("memory of {}", visible(projected.name)));
  for (const auto& [label, line] : setting_lines(projected)) text += fmt::format("  {:<11}{}\n", label, line);
  text += table(projected, request) + tree(projected, request) + contributor_lines(chosen(projected, request));
  text += remedy_lines(advice_for(projected), request);
  return text + coloured_verdict(projected, request);
}

std::string category_name(Category category) {
  std::string name(projection::name(category));
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

std::string memory_report_page(const Projected& projected, const ReportRequest& request) {
  view::PicturePage page = memory_page(projected, request.device, MemoryPictures::kBoth);
  page.tables.push_back(stage_table(projected, request.all_ranks ? RowsOf::kRanks : RowsOf::kStages));
  const RankMemory& rank = chosen(projected, request);
  view::PageTable parts{
      .title = rank_title(projected, request), .head = {"part", "GiB", ""}, .rows = {}, .text_from = 2};
  for (const TreeRow& row : component_tree(rank)) {
    parts.rows.push_back(
        {std::string(static_cast<std::size_t>(4 * row.depth), ' ') + row.label, gib_text(row.bytes), row.remark});
  }
  view::PageTable largest{.title = "Largest contributors", .head = {"part", "GiB", "%"}, .rows = {}};
  for (const Contributor& one : largest_contributors(rank)) {
    largest.rows.push_back({one.name, gib_text(one.bytes), fmt::format("{:.0f}", one.percent(rank))});
  }
  view::PageTable help{.title = "What would help (GiB saved on the largest rank, and its new total)",
                       .head = {"overrides", "saved", "total", "it costs"},
                       .rows = {},
                       .text_from = 3};
  const projection::Advice advice = advice_for(projected);
  for (const Remedy& remedy : advice.remedies) {
    help.rows.push_back({remedy.text(), signed_gib(remedy.saved), gib_text(remedy.total), remedy.effect});
  }
  view::PageTable others{.title = "What would not", .head = {"overrides", "why"}, .rows = {}, .text_from = 1};
  for (const projection::NoRemedy& other : advice.others) others.rows.push_back({other.words, other.why});
  for (view::PageTable* table : {&parts, &largest, &help, &others}) page.tables.push_back(std::move(*table));
  return view::picture_page(page);
}

Json rank_json(const RankMemory& rank) {
  Json json = {{"pipeline_rank", rank.pipeline_rank}, {"layers", rank.num_layers()},
               {"parameters", rank.num_parameters()}, {"copied_parameters", rank.copies.num_parameters},
               {"total_bytes", rank.total()},         {"host_bytes", rank.resident().optimizer_on_host}};
  for (int i = 0; i < projection::kNumCategories; ++i) {
    const auto category = static_cast<Category>(i);
    json["bytes"][category_name(category)] = rank.bytes(category);
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
  json["planned"] = Json::array();
  for (const config::PlannedUse& use : projected.resolution.planned) json["planned"].push_back(use.key);
  json["not_counted"] = Json::array();
  for (const projection::Unmodelled& setting : projection::unmodelled(projected.resolution.experiment)) {
    json["not_counted"].push_back({{"key", setting.key}, {"counted_as", setting.counted_as}});
  }
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
    json["verdict"] = projection::name(projection::fit_of(worst, request.device->memory_bytes));
    json["uncertainty_bytes"] = projection::uncertainty(worst);
  }
  json["contributors"] = Json::array();
  for (const Contributor& one : largest_contributors(chosen(projected, request))) {
    json["contributors"].push_back({{"name", one.name}, {"bytes", one.bytes}});
  }
  json["remedies"] = Json::array();
  const projection::Advice advice = advice_for(projected);
  for (const Remedy& remedy : advice.remedies) {
    Json entry = {{"overrides", remedy.text()}, {"saved_bytes", remedy.saved}, {"total_bytes", remedy.total}};
    entry["cost"] = remedy.effect;
    if (request.device) entry["fits"] = fits(remedy, request);
    json["remedies"].push_back(std::move(entry));
  }
  json["no_remedies"] = Json::array();
  for (const projection::NoRemedy& other : advice.others) {
    json["no_remedies"].push_back({{"overrides", other.words}, {"why", other.why}});
  }
  return json;
}

std::string memory_csv(const Projected& projected, const ReportRequest& request) {
  std::string text = "rank,pipeline_rank,layers,parameters";
  for (int i = 0; i < projection::kNumCategories; ++i) {
    text += "," + category_name(static_cast<Category>(i)) + "_bytes";
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
