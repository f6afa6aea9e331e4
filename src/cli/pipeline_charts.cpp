#include "cli/pipeline_charts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/longer_name.hpp"
#include "base/text.hpp"
#include "cli/arguments.hpp"
#include "config/rules.hpp"
#include "model/architecture.hpp"
#include "projection/activations.hpp"
#include "schedule/from_experiment.hpp"
#include "view/pipeline_labels.hpp"
#include "view/pp_data.hpp"

namespace primus::cli {
namespace {

using schedule::Algorithm;
using schedule::Request;

[[noreturn]] void refuse(std::string key, std::string message, std::string expected = "", std::string found = "",
                         std::string nearest = "") {
  throw ConfigError({{.file = "command line",
                      .key = std::move(key),
                      .message = std::move(message),
                      .expected = std::move(expected),
                      .found = std::move(found),
                      .nearest = std::move(nearest)}});
}

/// One schedule to be simulated.
struct Plan {
  Request request;
  schedule::Costs costs;
  std::optional<projection::MemoryInputs> memory = std::nullopt;  // nothing: activations are counted, not weighed
  std::string note = "";                                          // what is not the experiment's own
};

/// The original's names of schedules, and words that are used for them.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"zbv-greedy-half", "v-half"}, {"zbv-greedy-min", "v-min"}, {"zb1p", "zero-bubble"},    {"zb-h1", "zero-bubble"},
    {"zb-v", "zbv-formatted"},     {"dualpipe", "dualpipe-v"},  {"vpp", "1f1b-interleaved"}};

[[noreturn]] void refuse_schedule(const std::string& name, std::span<const std::string_view> known) {
  std::string list;
  for (const std::string_view one : known) list += (list.empty() ? "" : ", ") + std::string(one);
  const std::string word = lower(name);
  const auto other =
      std::find_if(std::begin(kOtherNames), std::end(kOtherNames), [&](const auto& row) { return row.first == word; });
  auto nearest = nearest_name(name, known);
  if (!nearest) nearest = nearest_longer_name(name, known);
  if (other != std::end(kOtherNames)) nearest = std::string(other->second);
  std::string hint = nearest ? fmt::format("did you mean '{}'?", *nearest) : "";
  if (word == "all") hint = "several stand with commas between them";
  refuse("--schedule", fmt::format("unknown schedule '{}'", name), "one of " + list, "", hint);
}

std::vector<Algorithm> named_algorithms(const std::vector<std::string>& names) {
  std::vector<Algorithm> result;
  std::vector<std::string_view> known;
  for (const schedule::AlgorithmInfo& row : schedule::algorithms()) known.push_back(row.name);
  for (const std::string& name : names) {
    const schedule::AlgorithmInfo* row = schedule::find_algorithm(name);
    if (row == nullptr) refuse_schedule(name, known);
    if (std::find(result.begin(), result.end(), row->algorithm) != result.end())
      refuse("--schedule", fmt::format("{} is named twice", row->name), "each schedule once");
    result.push_back(row->algorithm);
  }
  return result;
}

/// Chunks on each rank: what the schedule prescribes, else what was asked for, else the experiment's.
int chunks_for(Algorithm algorithm, int asked, int own) {
  switch (schedule::info(algorithm).chunks) {
    case schedule::ChunkRule::kOne:
      return 1;
    case schedule::ChunkRule::kTwo:
      return 2;
    case schedule::ChunkRule::kMany:
      break;
  }
  return asked > 0 ? asked : own > 1 ? own : 2;
}

/// Whether a schedule runs as many chunks a rank as were asked for.
bool takes_chunks(Algorithm algorithm, int asked) {
  return schedule::info(algorithm).chunks == schedule::ChunkRule::kMany || chunks_for(algorithm, asked, 1) == asked;
}

/// Chunks that no drawn schedule has would be an option without effect.
void check_chunks(const std::vector<Algorithm>& chosen, int asked) {
  const bool is_taken =
      std::any_of(chosen.begin(), chosen.end(), [&](Algorithm algorithm) { return takes_chunks(algorithm, asked); });
  if (asked == 0 || is_taken) return;
  std::string names;
  for (const schedule::AlgorithmInfo& row : schedule::algorithms()) {
    if (takes_chunks(row.algorithm, asked)) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  }
  const int own = chunks_for(chosen.front(), 0, 1);
  refuse("--chunks", fmt::format("{} has {} a rank", schedule::info(chosen.front()).name, counted(own, "chunk")),
         fmt::format("{}, or --schedule {}", own, names), std::to_string(asked));
}

void check(const Request& request) {
  const auto fault = schedule::fault_of(request);
  if (!fault) return;
  const std::string_view name = schedule::info(request.algorithm).name;
  using About = schedule::ShapeFault::About;
  const char* key = fault->about == About::kMicroBatches ? "--micro-batches"
                    : fault->about == About::kRanks      ? "--stages"
                    : fault->about == About::kChunks     ? "--chunks"
                                                         : "--schedule";
  refuse(key, fmt::format("{}: {}", name, fault->message), fault->expected, fault->found, fault->nearest);
}

/// The formula holds where all of it is arithmetic.
std::optional<double> formula_for(const Request& request) {
  const bool has_one = request.algorithm == Algorithm::k1F1B || request.algorithm == Algorithm::kInterleaved;
  if (!has_one) return std::nullopt;
  return schedule::bubble_formula(schedule::shape_of(request));
}

/// Puts bytes (in GiB) in the place of counted activations.
void weigh(const schedule::Schedule& table, const schedule::Timeline& timeline, const projection::MemoryInputs& memory,
           view::PipelineChart& chart) {
  constexpr double kGib = 0x1p30;
  for (std::size_t rank = 0; rank < chart.ranks.size(); ++rank) {
    view::ChartRank& row = chart.ranks[rank];
    row.held = projection::held_activations(table.ranks[rank], timeline.ranks[rank].spans,
                                            projection::chunks_of(memory, static_cast<int>(rank)));
    double most = 0.0;
    for (schedule::Held& held : row.held) most = std::max(most, held.amount /= kGib);
    row.memory = most;
  }
}

void add_chart(DrawnPipeline& drawn, const schedule::Schedule& table, const Plan& plan, std::string name) {
  const schedule::Timeline timeline = schedule::simulate(table, plan.costs);
  view::PipelineChart chart = view::chart_of(table, timeline, std::move(name));
  if (plan.memory) weigh(table, timeline, *plan.memory, chart);
  chart.formula_bubble = formula_for(plan.request);
  drawn.picture.charts.push_back(std::move(chart));
  drawn.tables.push_back(table);
}

void simulate(DrawnPipeline& drawn, const Plan& plan, const PipelineOptions& options) {
  check(plan.request);
  const std::string name(schedule::info(plan.request.algorithm).name);
  add_chart(drawn, schedule::build(plan.request), plan, name);
  drawn.picture.charts.back().note = plan.note;
  if (!options.better) return;
  if (const auto better = schedule::build_better(plan.request)) {
    add_chart(drawn, *better, plan, name + ", a shorter order within the same memory");
    drawn.picture.charts.back().formula_bubble.reset();
    drawn.picture.charts.back().note = plan.note;
  } else {
    std::string& note = drawn.picture.charts.back().note;
    note += fmt::format("{}no shorter order is known within the same memory", note.empty() ? "" : "; ");
  }
}

schedule::Costs written_costs(const schedule::Shape& shape, const PipelineOptions& options) {
  const std::vector<double> times = options.times.empty() ? std::vector{1.0, 1.0, 1.0} : options.times;
  schedule::Costs costs = schedule::even_costs(shape, times[0], times[1], times[2]);
  costs.message = options.message;
  return costs;
}

/// What the times come from, and what memory means: sizes alone, or a model whose activations may be described.
enum class Basis { kSizes, kModel, kWeighedModel };

std::string basis_text(const PipelineOptions& options, Basis basis) {
  const bool has_model = basis != Basis::kSizes;
  std::string text;
  if (!options.times.empty()) {
    text = fmt::format("A rank's forward takes {}, its input gradients {}, its weight gradients {}",
                       view::figure(options.times[0]), view::figure(options.times[1]), view::figure(options.times[2]));
  } else if (has_model) {
    text = "1 is a rank's forward in the mean; stages by their FLOPs, causal attention counted half";
  } else {
    text = "1 is a rank's forward; input and weight gradients take as long";
  }
  text += options.message > 0.0 ? fmt::format("; a message takes {}", view::figure(options.message))
                                : "; messages take no time";
  if (has_model && options.times.empty()) {
    text += options.exchange > 0.0
                ? fmt::format("; a token exchange takes {} of its layer's forward", view::figure(options.exchange))
                : "; token exchanges take no time";
  }
  return text + ".";
}

void name_units(DrawnPipeline& drawn, const PipelineOptions& options, Basis basis) {
  const bool is_weighed = basis == Basis::kWeighedModel;
  drawn.picture.basis = basis_text(options, basis);
  drawn.picture.time_unit = options.times.empty() ? "forwards" : "units";
  drawn.picture.memory_unit = is_weighed ? "GiB" : "activations";
  if (is_weighed) drawn.picture.basis += " Memory: activations in flight, with what a pass makes again.";
}

DrawnPipeline draw_sizes(const PipelineOptions& options) {
  DrawnPipeline drawn;
  std::vector<Algorithm> chosen = named_algorithms(options.schedules);
  if (chosen.empty()) chosen.push_back(options.num_chunks > 1 ? Algorithm::kInterleaved : Algorithm::k1F1B);
  check_chunks(chosen, options.num_chunks);
  drawn.picture.title = fmt::format("Pipeline of {}, {}", counted(options.num_ranks, "rank"),
                                    counted(options.num_micro_batches, "micro-batch"));
  for (const Algorithm algorithm : chosen) {
    const Request request{.algorithm = algorithm,
                          .num_ranks = options.num_ranks,
                          .num_micro_batches = options.num_micro_batches,
                          .num_chunks = chunks_for(algorithm, options.num_chunks, 1)};
    check(request);
    const Plan plan{request, written_costs(schedule::shape_of(request), options)};
    simulate(drawn, plan, options);
  }
  name_units(drawn, options, Basis::kSizes);
  return drawn;
}

/// Said of layers that were spread for the picture and do not divide: training refuses them unless a layout is written.
std::string uneven_note(const config::Experiment& experiment, const layout::StageLayout& stages) {
  const config::PipelineLayout own = layout::pipeline_layout(experiment);
  if (own.num_stages() == stages.num_stages() || own.num_layers() % stages.num_stages() == 0) return "";
  return fmt::format("{} on {} are uneven: a run needs pipeline_model_parallel_layout",
                     counted(own.num_layers(), "layer"), counted(stages.num_stages(), "stage"));
}

/// The experiment's schedule, or another on the same model, ranks and micro-batches.
Plan plan_for(const config::Resolution& resolution, const model::ModelSpec& spec, int num_micro_batches,
              Algorithm algorithm, const PipelineOptions& options) {
  const config::Experiment& experiment = resolution.experiment;
  const auto own_chunks = static_cast<int>(config::virtual_pipeline_size(experiment));
  const bool is_own = algorithm == schedule::algorithm_of(experiment) && options.num_chunks == 0;
  const int num_chunks = is_own ? own_chunks : chunks_for(algorithm, options.num_chunks, own_chunks);
  const layout::StageLayout stages =
      is_own ? layout::stage_layout(experiment) : schedule::stages_for(experiment, algorithm, num_chunks);
  Plan plan{schedule::request_of(experiment, stages, num_micro_batches), {}};
  plan.request.algorithm = algorithm;
  plan.costs = options.times.empty()
                   ? schedule::model_costs(spec, stages, {.message = options.message, .exchange = options.exchange})
                   : written_costs(schedule::shape_of(plan.request), options);
  if (algorithm == Algorithm::kSearched && !plan.request.durations) {
    plan.request.durations = schedule::durations_of(plan.costs);
  }
  check(plan.request);
  plan.note = uneven_note(experiment, stages);
  if (!projection::memory_gap(spec)) {
    plan.memory = projection::memory_inputs_on(experiment, resolution.world.size, 1.0, stages, plan.request);
  }
  return plan;
}

DrawnPipeline draw_experiment(const PipelineOptions& options, const LaunchOptions& launch) {
  const config::Resolution resolution = read_experiment(options.read.config, options.read, launch);
  const config::Experiment& experiment = resolution.experiment;
  const model::ModelSpec spec = model::build_model_spec(experiment);
  const auto batches = config::batch_plan(experiment, resolution.world.size);
  PRIMUS_CHECK(batches, "the rules accepted a batch that does not divide");
  if (batches->accumulation > std::numeric_limits<int>::max()) {
    refuse("global_batch_size", "makes more micro-batches than can be drawn");
  }
  const auto num_micro_batches = static_cast<int>(batches->accumulation);
  DrawnPipeline drawn;
  drawn.picture.title = fmt::format("Pipeline of {}", experiment.exp_name);
  std::vector<Algorithm> chosen = named_algorithms(options.schedules);
  if (chosen.empty()) chosen.push_back(schedule::algorithm_of(experiment));
  check_chunks(chosen, options.num_chunks);
  for (const Algorithm algorithm : chosen) {
    simulate(drawn, plan_for(resolution, spec, num_micro_batches, algorithm, options), options);
  }
  const auto gap = projection::memory_gap(spec);
  name_units(drawn, options, gap ? Basis::kModel : Basis::kWeighedModel);
  if (gap) drawn.picture.basis += fmt::format(" Activations are counted, not weighed: {}.", *gap);
  for (const model::ArchitecturePart& part : model::uncounted_parts(experiment)) {
    drawn.picture.basis += fmt::format(" {} is not counted.", part.name);
  }
  drawn.planned = planned_text(resolution);
  return drawn;
}

DrawnPipeline draw_data(const PipelineOptions& options) {
  DrawnPipeline drawn;
  for (const std::string& folder : options.data) {
    view::PpData data = view::read_pp_data(folder, options.iteration);
    if (drawn.picture.charts.empty()) {
      drawn.picture.time_unit = data.units.time;
      drawn.picture.memory_unit = data.units.memory;
    } else if (data.units.time != drawn.picture.time_unit || data.units.memory != drawn.picture.memory_unit) {
      refuse("--data", fmt::format("{} is in other units than {}", folder, options.data.front()),
             fmt::format("{} and {}", drawn.picture.time_unit, drawn.picture.memory_unit),
             fmt::format("{} and {}", data.units.time, data.units.memory));
    }
    data.chart.name += fmt::format(", iteration {}", data.iteration);
    drawn.picture.charts.push_back(std::move(data.chart));
  }
  drawn.picture.title = "Pipeline as it ran";
  drawn.picture.basis = "Times from the start of the iteration, as the ranks wrote them; idle is what no pass covers.";
  return drawn;
}

void check_sources(const PipelineOptions& options) {
  const bool has_sizes = options.num_ranks > 0 || options.num_micro_batches > 0;
  const int sources = (options.read.config.empty() ? 0 : 1) + (options.data.empty() ? 0 : 1) + (has_sizes ? 1 : 0);
  if (sources == 1 && has_sizes && (options.num_ranks == 0 || options.num_micro_batches == 0)) {
    refuse(options.num_ranks == 0 ? "--stages" : "--micro-batches", "is missing", "integer >= 1");
  }
  if (sources != 1) {
    refuse("", sources == 0 ? "--config, --data or --stages is missing" : "several sources of one picture",
           "one of --config, --data, --stages with --micro-batches");
  }
  if (options.read.config.empty() && !options.read.overrides.empty()) {
    const std::string& word = options.read.overrides.front();
    refuse("", fmt::format("unexpected '{}'", word), "", "",
           word == "--" ? "leave it out: it stands between a mode and its command only" : "overrides need --config");
  }
  if (!options.data.empty() && (!options.schedules.empty() || !options.times.empty() || options.better ||
                                options.num_chunks > 0 || options.message > 0.0 || options.exchange > 0.0)) {
    refuse("--data", "draws what ran: there is nothing to simulate",
           "no --schedule, --chunks, --times, --message, --exchange or --better");
  }
  if (!options.times.empty() &&
      std::all_of(options.times.begin(), options.times.end(), [](double t) { return t <= 0.0; })) {
    refuse("--times", "nothing takes any time", "at least one above 0", "0,0,0");
  }
  if (options.data.empty() && !options.iteration.empty()) refuse("--iteration", "chooses among the files of --data");
  if (options.exchange > 0.0 && (options.read.config.empty() || !options.times.empty())) {
    refuse("--exchange", "is a share of a layer's work: it needs --config, without --times");
  }
}

}  // namespace

DrawnPipeline draw_pipeline(const PipelineOptions& options, const LaunchOptions& launch) {
  check_sources(options);
  if (!options.data.empty()) return draw_data(options);
  return options.read.config.empty() ? draw_sizes(options) : draw_experiment(options, launch);
}

}  // namespace primus::cli
