// view layout: which layer lives on which rank, and how evenly the work is shared.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/projection_common.hpp"
#include "model/architecture.hpp"
#include "model/flops.hpp"
#include "model/parameters.hpp"
#include "view/picture_page.hpp"
#include "view/stage_picture.hpp"

namespace primus::cli {
namespace {

using view::BlockKind;
using view::StageRow;

struct LayoutViewOptions {
  ProjectionOptions projection;
  AnswerOptions answer;
};

const std::vector<std::string> kFormats = {"text", "svg", "html", "png", "json"};

void add_options(CLI::App& app, LayoutViewOptions& options) {
  add_config_option(app, options.projection.read);
  add_world_option(app, options.projection.read.world_size);
  add_answer_options(app, options.answer, kFormats);
}

std::vector<view::StageBlock> blocks_of(const model::ModelSpec& spec, const model::StageContent& content) {
  std::vector<view::StageBlock> blocks;
  if (content.embedding == model::Part::kPresent) blocks.push_back({BlockKind::kEmbedding});
  for (int layer = content.first_layer; layer < content.first_layer + content.num_layers; ++layer) {
    blocks.push_back({spec.kind(layer) == model::LayerKind::kMoe ? BlockKind::kMoe : BlockKind::kDense, layer});
  }
  for (int depth = 0; depth < content.num_mtp_layers; ++depth) blocks.push_back({BlockKind::kDepth});
  if (content.output == model::Part::kPresent) blocks.push_back({BlockKind::kOutput});
  return blocks;
}

std::vector<StageRow> rows_of(const Planned& planned) {
  std::vector<StageRow> rows;
  const std::vector<std::int64_t> parameters = projection::parameters_by_stage(planned.inputs);
  for (int rank = 0; rank < planned.inputs.stages.num_ranks(); ++rank) {
    StageRow row;
    row.label = fmt::format("rank {}", rank);
    row.parameters = static_cast<double>(parameters[static_cast<std::size_t>(rank)]);
    for (const model::StageContent& content : planned.inputs.stages.on_rank(rank)) {
      row.chunks.push_back(blocks_of(planned.inputs.spec, content));
      row.flops += static_cast<double>(model::stage_training_flops_per_token(planned.inputs.spec, content));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<double> column(const std::vector<StageRow>& rows, double StageRow::*value) {
  std::vector<double> values;
  for (const StageRow& row : rows) values.push_back(row.*value);
  return values;
}

std::string subtitle(const Planned& planned) {
  return fmt::format("{}, {}; {}", counted(planned.inputs.stages.num_ranks(), "pipeline rank"),
                     schedule::info(planned.inputs.schedule.algorithm).name,
                     config::to_short_text(layout::pipeline_layout(planned.resolution.experiment)));
}

/// Copies of the word embedding, which are not among a rank's parameters: "pipeline rank 15 holds ... again".
std::string copies_text(const Planned& planned) {
  const std::vector<int> holders = planned.inputs.stages.embedding_ranks(planned.inputs.spec.output_weight);
  std::string ranks;
  for (const int rank : holders) {
    const std::vector<model::StageContent> chunks = planned.inputs.stages.on_rank(rank);
    const bool owns = std::any_of(chunks.begin(), chunks.end(), [](const model::StageContent& chunk) {
      return chunk.embedding == model::Part::kPresent;
    });
    if (!owns) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (ranks.empty()) return "";
  return fmt::format("held again, in no rank's number: the word embedding, on rank {}\n", ranks);
}

/// What is not in the figures, and what no run builds yet.
std::string remarks(const config::Resolution& resolution) {
  std::string text;
  for (const model::ArchitecturePart& part : model::uncounted_parts(resolution.experiment)) {
    text += fmt::format("not counted: {}\n", part.name);
  }
  const std::string planned = planned_text(resolution);
  return planned.empty() ? text : text + fmt::format("a real train refuses today: {}\n", planned);
}

std::string text_of(const Planned& planned, const std::vector<StageRow>& rows) {
  const std::vector<double> parameters = column(rows, &StageRow::parameters);
  const std::vector<double> flops = column(rows, &StageRow::flops);
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  };
  std::string text = fmt::format("stages of {}: {}\n", planned.name,
                                 config::to_short_text(layout::pipeline_layout(planned.resolution.experiment)));
  text +=
      fmt::format("{:>5}  {:<36} {:>12} {:>8} {:>14} {:>8}\n", "rank", "layers", "parameters", "", "FLOPs a token", "");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::string layers = layers_text(planned.inputs.stages.on_rank(static_cast<int>(i)));
    if (layers.size() > 36) layers = layers.substr(0, 33) + "...";
    text += fmt::format("{:>5}  {:<36} {:>12} {:>+6.1f} % {:>14} {:>+6.1f} %\n", i, layers,
                        format_short_count(parameters[i]), 100.0 * (parameters[i] / mean(parameters) - 1.0),
                        format_short_count(flops[i]), 100.0 * (flops[i] / mean(flops) - 1.0));
  }
  return text +
         fmt::format("the largest lies {:.1f} % above the mean in parameters, {:.1f} % in FLOPs\n",
                     view::imbalance_percent(parameters), view::imbalance_percent(flops)) +
         fmt::format("parameters are those of one rank of a stage; the model has {}\n",
                     format_count(model::count_parameters(planned.inputs.spec).total)) +
         copies_text(planned) + remarks(planned.resolution);
}

Json json_of(const Planned& planned, const std::vector<StageRow>& rows) {
  Json json = {{"ok", true}, {"experiment", planned.name}};
  json["layout"] = config::to_text(layout::pipeline_layout(planned.resolution.experiment));
  json["parameter_imbalance_percent"] = view::imbalance_percent(column(rows, &StageRow::parameters));
  json["flops_imbalance_percent"] = view::imbalance_percent(column(rows, &StageRow::flops));
  json["parameters"] = model::count_parameters(planned.inputs.spec).total;
  json["ranks"] = Json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Json chunks = Json::array();
    for (const model::StageContent& content : planned.inputs.stages.on_rank(static_cast<int>(i))) {
      chunks.push_back({{"embedding", content.embedding == model::Part::kPresent},
                        {"first_layer", content.first_layer},
                        {"layers", content.num_layers},
                        {"prediction_depths", content.num_mtp_layers},
                        {"output", content.output == model::Part::kPresent}});
    }
    json["ranks"].push_back({{"pipeline_rank", i},
                             {"parameters", static_cast<std::int64_t>(rows[i].parameters)},
                             {"flops_per_token", static_cast<std::int64_t>(rows[i].flops)},
                             {"chunks", std::move(chunks)}});
  }
  return json;
}

std::string page_of(const Planned& planned, const std::string& picture, const std::vector<StageRow>& rows) {
  view::PicturePage page;
  page.title = fmt::format("Stages of {}", planned.name);
  page.facts = setting_lines(planned);
  page.pictures = {picture};
  view::PageTable& table = page.tables.emplace_back();
  table.head = {"rank", "layers", "parameters of one rank", "FLOPs a token"};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    table.rows.push_back({rows[i].label, layers_text(planned.inputs.stages.on_rank(static_cast<int>(i))),
                          format_count(static_cast<std::int64_t>(rows[i].parameters)),
                          format_count(static_cast<std::int64_t>(rows[i].flops))});
  }
  return view::picture_page(page);
}

std::string answer(const Planned& planned, const std::string& format) {
  const std::vector<StageRow> rows = rows_of(planned);
  if (format == "json") return json_of(planned, rows).dump(2) + "\n";
  if (format == "text") return text_of(planned, rows);
  const std::string picture = view::stage_picture_svg(
      {.title = fmt::format("Stages of {}", planned.name), .subtitle = subtitle(planned), .rows = rows});
  return format == "html" ? page_of(planned, picture, rows) : picture;
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  LayoutViewOptions options;
  CLI::App app("Draw which layer lives on which pipeline rank, with each rank's parameters and FLOPs.",
               "primus-cli view layout");
  add_options(app, options);
  app.footer(
      "examples\n  primus-cli view layout --config exp.yaml\n"
      "  primus-cli view layout --config exp.yaml --out layout.html\n"
      "  primus-cli view layout --config exp.yaml --pipeline_model_parallel_layout 'Et*3|(tt|)*28,t|m,L'");
  if (parse_options(app, words, Rest::kReturn, options.projection.read.overrides) == Parsed::kHelpShown) return 0;
  const std::string format = chosen_format(app, options.answer, kFormats, launch);
  write_answer(
      answer(plan(options.projection.read.config, options.projection, options.projection.read.overrides, launch),
             format),
      options.answer, format, launch);
  return 0;
}

}  // namespace

const Command kViewLayout = {"view",
                             "layout",
                             "--config FILE",
                             "which layer lives on which rank",
                             Starts::kNothing,
                             Rest::kReturn,
                             "",
                             [](CLI::App& app) {
                               static LayoutViewOptions unused;
                               add_options(app, unused);
                             },
                             run};

}  // namespace primus::cli
