#include "cli/view_memory.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/projection_report.hpp"
#include "view/memory_timeline.hpp"
#include "view/picture_page.hpp"
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

view::PageTable page_table(const Projected& projected) {
  view::PageTable table;
  table.head = {"rank", "layers", "parameters"};
  for (int i = 0; i < projection::kNumCategories; ++i) {
    table.head.emplace_back(projection::name(static_cast<Category>(i)));
  }
  table.head.emplace_back("total, GiB");
  for (const RankMemory& rank : projected.memory.ranks) {
    std::vector<std::string> row = {rank_label(rank), layers_text(rank), format_count(rank.num_parameters())};
    for (int i = 0; i < projection::kNumCategories; ++i) {
      row.push_back(gib_text(rank.bytes(static_cast<Category>(i))));
    }
    row.push_back(gib_text(rank.total()));
    table.rows.push_back(std::move(row));
  }
  return table;
}

struct MemoryViewOptions {
  ProjectionOptions projection;
  std::string picture = "bars";
  std::string out;
};

void add_options(CLI::App& app, MemoryViewOptions& options) {
  add_config_option(app, options.projection.read);
  add_projection_options(app, options.projection);
  app.add_option("--picture", options.picture, "Which one as svg: bars by rank, or time over a step")
      ->type_name("bars|time")
      ->check(CLI::IsMember({"bars", "time"}));
  app.add_option("--out", options.out, "File to write instead of standard output")->type_name("FILE");
  add_format_option(app, options.projection.read.format, {"text", "svg", "html", "json"});
}

std::string answer(const MemoryViewOptions& options, const Projected& projected, const LaunchOptions& launch) {
  const std::string& format = options.projection.read.format;
  const auto device = device_of(options.projection);
  if (format == "json" || launch.format == Format::kJson) {
    return memory_json(projected, {.rank = {}, .all_ranks = false, .device = device}).dump(2) + "\n";
  }
  if (format == "html") return memory_page(projected, device);
  if (format == "text") return bars_text(projected, device);
  return options.picture == "time" ? memory_over_a_step(projected) : memory_bars(projected, device);
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  MemoryViewOptions options;
  CLI::App app("Draw the projected memory: bars by pipeline rank, and activations over a step.",
               "primus-cli view memory");
  add_options(app, options);
  app.footer(
      "examples\n  primus-cli view memory --config exp.yaml --gpu MI355X\n"
      "  primus-cli view memory --config exp.yaml --format svg --out memory.svg && rsvg-convert memory.svg -o m.png\n"
      "  primus-cli view memory --config exp.yaml --format html --out memory.html");
  if (parse_options(app, words, Rest::kReturn, options.projection.read.overrides) == Parsed::kHelpShown) return 0;
  device_of(options.projection);
  write_answer(answer(options, project(options.projection, launch), launch), options.out);
  return 0;
}

}  // namespace

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

std::string memory_over_a_step(const Projected& projected) {
  view::MemoryTimeline timeline{.title = fmt::format("Activations of {} over a step", projected.name),
                                .subtitle = layout_text(projected) + "; GiB, each rank's most behind its band",
                                .unit = "GiB",
                                .x_label = "time in forwards of one chunk (a backward takes two)",
                                .bands = {}};
  const schedule::Order order = projection::step_order(projected.inputs);
  const auto times = schedule::timed(schedule::shape_of(projected.inputs.schedule), order, schedule::unit_durations());
  for (const RankMemory& rank : projected.memory.ranks) {
    const auto index = static_cast<std::size_t>(rank.pipeline_rank);
    const auto points = projection::activation_timeline(order[index], rank);
    const auto& passes = times[index];
    view::MemoryBand band{rank_label(rank), {}};
    for (std::size_t i = 0; i < points.size(); ++i) {
      band.points.push_back({passes[i].start, gib(points[i].peak)});
      band.points.push_back({passes[i].end, gib(points[i].held)});
    }
    timeline.bands.push_back(std::move(band));
  }
  return view::memory_timeline_svg(timeline);
}

std::string memory_page(const Projected& projected, const std::optional<projection::Hardware>& device) {
  view::PicturePage page;
  page.title = fmt::format("Memory of {}", projected.name);
  page.facts = setting_lines(projected);
  if (device) {
    const std::int64_t total = projected.memory.worst().total();
    page.facts.emplace_back(
        "verdict", fmt::format("{}: {} of {} GiB on {}", total <= device->memory_bytes ? "fits" : "does not fit",
                               gib_text(total), gib_text(device->memory_bytes), device->name));
  }
  page.pictures = {memory_bars(projected, device), memory_over_a_step(projected)};
  page.table = page_table(projected);
  return view::picture_page(page);
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
