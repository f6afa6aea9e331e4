#include "cli/view_memory.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/projection_report.hpp"
#include "view/memory_timeline.hpp"
#include "view/stacked_bars.hpp"

namespace primus::cli {
namespace {

using projection::Category;
using projection::RankMemory;

double gib(std::int64_t num_bytes) {
  return static_cast<double>(num_bytes) / 0x1p30;
}

std::string rank_label(const RankMemory& rank) {
  return fmt::format("rank {}", rank.pipeline_rank);
}

/// "TP 1, CP 2, PP 24 x 4, EP 8": what a picture's second line says.
std::string layout_text(const Projected& projected) {
  const layout::GridSizes& sizes = projected.inputs.grid.sizes();
  const int chunks = projected.inputs.stages.num_chunks();
  return fmt::format("{}; TP {}, CP {}, PP {}{}, EP {}; {}", counted(sizes.world, "rank"), sizes.tensor, sizes.context,
                     sizes.pipeline, chunks > 1 ? fmt::format(" x {} chunks", chunks) : "", sizes.expert,
                     schedule::info(projected.inputs.schedule.algorithm).name);
}

/// Bars of text, a row a rank.
std::string bars_text(const Projected& projected, const std::optional<projection::Hardware>& device) {
  constexpr std::string_view kLetters = "PGOArdcwf";
  constexpr double kColumns = 72.0;
  double most = device ? gib(device->memory_bytes) : 0.0;
  for (const RankMemory& rank : projected.memory.ranks) most = std::max(most, gib(rank.total()));
  std::string text = fmt::format("memory of {} (GiB); {}\n", projected.name, layout_text(projected));
  for (int i = 0; i < projection::kNumCategories; ++i) {
    text += fmt::format("{}{} {}", i == 0 ? "" : "  ", kLetters[static_cast<std::size_t>(i)],
                        projection::name(static_cast<Category>(i)));
  }
  text += "\n";
  for (const RankMemory& rank : projected.memory.ranks) {
    std::string bar;
    double sum = 0.0;
    for (int i = 0; i < projection::kNumCategories; ++i) {
      sum += gib(rank.bytes(static_cast<Category>(i)));
      bar.resize(static_cast<std::size_t>(sum / most * kColumns + 0.5), kLetters[static_cast<std::size_t>(i)]);
    }
    text += fmt::format("{:>4} {:<{}} {:>7}\n", rank.pipeline_rank, bar, static_cast<int>(kColumns),
                        gib_text(rank.total()));
  }
  if (!device) return text;
  const std::string limit = fmt::format("{} {} GiB", device->name, gib_text(device->memory_bytes));
  const auto column = static_cast<std::size_t>(gib(device->memory_bytes) / most * kColumns + 0.5);
  return text + std::string(5 + column, ' ') + "^ " + limit + "\n";
}

/// The whole step where that is not too much to draw, else as much of it as the projection walks: groups of
/// micro-batches repeat, so that the rest would show the same again.
schedule::Schedule drawn_table(const Projected& projected) {
  constexpr std::int64_t kMostPasses = 20'000;
  schedule::Request request = projected.inputs.schedule;
  const std::int64_t own = num_micro_batches(projected);
  if (own * request.num_ranks * request.num_chunks <= kMostPasses) {
    request.num_micro_batches = static_cast<int>(own);
    if (!schedule::fault_of(request)) return schedule::build(request);
  }
  return schedule::build(projected.inputs.schedule);
}

/// The step that the experiment's schedule makes of the model's FLOPs.
schedule::Timeline step_of(const Projected& projected, const schedule::Schedule& table) {
  return schedule::simulate(table, schedule::model_costs(projected.inputs.spec, projected.inputs.stages, {}));
}

std::vector<schedule::Held> held_by(const RankMemory& rank, const schedule::Schedule& table,
                                    const schedule::Timeline& timeline) {
  const auto index = static_cast<std::size_t>(rank.pipeline_rank);
  return projection::held_activations(table.ranks[index], timeline.ranks[index].spans, rank.chunks);
}

view::MemoryTimeline timeline_of(const Projected& projected) {
  const schedule::Schedule table = schedule::build(projected.inputs.schedule);
  const schedule::Timeline step = step_of(projected, table);
  const std::int64_t own =
      config::batch_plan(projected.resolution.experiment, projected.resolution.world.size).value().accumulation;
  const int drawn = table.shape.num_micro_batches;
  view::MemoryTimeline timeline{.title = fmt::format("Activations of {} over a step", projected.name),
                                .subtitle = layout_text(projected) + "; GiB, each rank's most behind its band",
                                .unit = "GiB",
                                .x_label = "time; 1 is a rank's forward in the mean, stages by their FLOPs",
                                .bands = {}};
  if (drawn < own) timeline.subtitle += fmt::format("; {} of {} micro-batches", drawn, format_count(own));
  for (const RankMemory& rank : projected.memory.ranks) {
    view::MemoryBand band{rank_label(rank), {}};
    for (const schedule::Held& held : held_by(rank, table, step)) {
      band.points.push_back({held.time, held.amount / 0x1p30});
    }
    timeline.bands.push_back(std::move(band));
  }
  return timeline;
}

std::string memory_bars(const Projected& projected, const std::optional<projection::Hardware>& device) {
  view::BarChart chart{.title = fmt::format("Memory of {} by pipeline rank", projected.name),
                       .subtitle = layout_text(projected),
                       .unit = "GiB",
                       .series = {},
                       .bars = {},
                       .limit = {}};
  for (int i = 0; i < projection::kNumCategories; ++i) {
    chart.series.emplace_back(projection::name(static_cast<Category>(i)));
  }
  for (const RankMemory& rank : projected.memory.ranks) {
    view::StackedBar bar{rank_label(rank), {}};
    for (int i = 0; i < projection::kNumCategories; ++i) {
      bar.values.push_back(gib(rank.bytes(static_cast<Category>(i))));
    }
    chart.bars.push_back(std::move(bar));
  }
  if (device) chart.limit = view::BarLimit{device->name, gib(device->memory_bytes)};
  return view::stacked_bars_svg(chart);
}

struct MemoryViewOptions {
  ProjectionOptions projection;
  std::string picture;
  AnswerOptions answer;
};

const std::vector<std::string> kFormats = {"text", "svg", "html", "png", "json"};

void add_options(CLI::App& app, MemoryViewOptions& options) {
  add_config_option(app, options.projection.read);
  add_projection_options(app, options.projection);
  app.add_option("--picture", options.picture, "bars by rank, or activations in time (default: bars; a page has both)")
      ->type_name("bars|time")
      ->check(CLI::IsMember({"bars", "time"}));
  add_answer_options(app, options.answer, kFormats);
}

/// Activations of every rank over a step, in bytes.
Json timeline_json(const Projected& projected) {
  Json json = {{"time_unit", "forwards of a rank in the mean"}, {"ranks", Json::array()}};
  const schedule::Schedule table = drawn_table(projected);
  const schedule::Timeline timeline = step_of(projected, table);
  json["micro_batches"] = table.shape.num_micro_batches;
  for (const RankMemory& rank : projected.memory.ranks) {
    Json times = Json::array();
    Json bytes = Json::array();
    for (const schedule::Held& held : held_by(rank, table, timeline)) {
      times.push_back(held.time);
      bytes.push_back(static_cast<std::int64_t>(held.amount));
    }
    json["ranks"].push_back({{"pipeline_rank", rank.pipeline_rank}, {"time", times}, {"bytes", bytes}});
  }
  return json;
}

std::string answer(const MemoryViewOptions& options, const Projected& projected, const std::string& format) {
  const auto device = device_of(options.projection);
  const bool is_time = options.picture == "time";
  if (format == "json") {
    Json json = memory_json(projected, {.rank = {}, .all_ranks = false, .device = device});
    if (is_time) json["timeline"] = timeline_json(projected);
    return json.dump(is_time ? -1 : 2) + "\n";
  }
  if (format == "html") {
    view::PicturePage page = memory_page(projected, device,
                                         is_time                   ? MemoryPictures::kTime
                                         : options.picture.empty() ? MemoryPictures::kBoth
                                                                   : MemoryPictures::kBars);
    page.tables.push_back(stage_table(projected, RowsOf::kStages));
    return view::picture_page(page);
  }
  constexpr int kColumns = 72;
  if (format == "text") {
    return is_time ? view::memory_timeline_text(timeline_of(projected), kColumns) : bars_text(projected, device);
  }
  return is_time ? view::memory_timeline_svg(timeline_of(projected)) : memory_bars(projected, device);
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  MemoryViewOptions options;
  CLI::App app("Draw the projected memory: bars by pipeline rank, and activations over a step.",
               "primus-cli view memory");
  add_options(app, options);
  app.footer(
      "examples\n  primus-cli view memory --config exp.yaml --gpu MI355X\n"
      "  primus-cli view memory --config exp.yaml --picture time --out memory.png\n"
      "  primus-cli view memory --config exp.yaml --out memory.html");
  if (parse_options(app, words, Rest::kReturn, options.projection.read.overrides) == Parsed::kHelpShown) return 0;
  const std::string format = chosen_format(app, options.answer, kFormats, launch);
  device_of(options.projection);
  write_answer(answer(options, project(options.projection, launch), format), options.answer, format, launch);
  return 0;
}

}  // namespace

view::PicturePage memory_page(const Projected& projected, const std::optional<projection::Hardware>& device,
                              MemoryPictures pictures) {
  view::PicturePage page;
  page.title = fmt::format("Memory of {}", projected.name);
  page.facts = setting_lines(projected);
  if (device) page.facts.emplace_back("verdict", verdict(projected.memory.worst().total(), *device));
  if (pictures != MemoryPictures::kTime) page.pictures.push_back(memory_bars(projected, device));
  if (pictures != MemoryPictures::kBars) {
    page.pictures.push_back(view::memory_timeline_svg(timeline_of(projected)));
  }
  return page;
}

view::PageTable stage_table(const Projected& projected, RowsOf rows) {
  view::PageTable table;
  table.title = rows == RowsOf::kRanks ? "By rank (GiB)" : "By pipeline rank (GiB)";
  table.head = {"rank", "layers", "number of parameters"};
  for (int i = 0; i < projection::kNumCategories; ++i) {
    table.head.emplace_back(projection::name(static_cast<Category>(i)));
  }
  table.head.emplace_back("total");
  const auto add = [&](std::int64_t number, const RankMemory& rank) {
    std::vector<std::string> row = {fmt::format("rank {}", number), layers_text(rank),
                                    format_count(rank.num_parameters())};
    for (int i = 0; i < projection::kNumCategories; ++i) {
      row.push_back(gib_text(rank.bytes(static_cast<Category>(i))));
    }
    row.push_back(gib_text(rank.total()));
    table.rows.push_back(std::move(row));
  };
  if (rows == RowsOf::kStages) {
    for (const RankMemory& rank : projected.memory.ranks) add(rank.pipeline_rank, rank);
    return table;
  }
  for (std::int64_t rank = 0; rank < projected.inputs.grid.sizes().world; ++rank) add(rank, stage_of(projected, rank));
  return table;
}

const Command kViewMemory = {"view",
                             "memory",
                             "--config FILE",
                             "projected memory, drawn",
                             Starts::kNothing,
                             Rest::kReturn,
                             "",
                             [](CLI::App& app) {
                               static MemoryViewOptions unused;
                               add_options(app, unused);
                             },
                             run};

}  // namespace primus::cli
