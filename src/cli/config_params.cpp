// config params: how many parameters a model has, and where.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "cli/app.hpp"
#include "cli/config_common.hpp"
#include "cli/terminal.hpp"
#include "model/architecture.hpp"
#include "model/flops.hpp"
#include "model/model_spec.hpp"
#include "model/parameters.hpp"

namespace primus::cli {
namespace {

struct ParamsOptions {
  ReadOptions read;
  std::string preset;
  bool by_layer = false;
};

void add_options(CLI::App& app, ParamsOptions& options) {
  auto* config = app.add_option("--config,--exp", options.read.config, "Experiment file")->type_name("FILE.yaml");
  app.add_option("--preset", options.preset, "Model preset, with its tokenizer's own vocabulary")
      ->type_name("NAME")
      ->excludes(config);
  app.add_flag("--by-layer", options.by_layer, "Each layer by itself");
  add_format_option(app, options.read.format, {"text", "json"});
}

/// Layers first to last (inclusive) that are alike.
struct LayerRun {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t num_parameters = 0;  // of each
  model::LayerKind kind = model::LayerKind::kDense;
};

std::string_view kind_text(model::LayerKind kind) {
  return kind == model::LayerKind::kMoe ? "MoE" : "dense";
}

std::vector<LayerRun> layer_runs(const model::ModelSpec& spec) {
  std::vector<LayerRun> runs;
  for (std::int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    std::int64_t count = 0;
    for (const auto& parameter : model::layer_parameters(spec, static_cast<int>(layer)))
      count += parameter.num_elements();
    const model::LayerKind kind = spec.layers[static_cast<std::size_t>(layer)];
    if (!runs.empty() && runs.back().num_parameters == count && runs.back().kind == kind) {
      runs.back().last = layer;
    } else {
      runs.push_back({layer, layer, count, kind});
    }
  }
  return runs;
}

/// Whose vocabulary it is: the answer to "why does this count differ from the published one?".
std::string vocabulary_source(const config::Experiment& experiment) {
  const config::Origin& origin = experiment.setting("vocab_size").origin;
  const std::string tokenizer = experiment.get_optional_string("tokenizer_type").value_or("no tokenizer");
  const auto model = experiment.get_optional_string("tokenizer_model");
  if (origin.layer != config::Layer::kRule) return "vocab_size, " + origin_text(origin);
  return model ? fmt::format("{} of {}", tokenizer, visible(*model)) : tokenizer;
}

struct Counts {
  model::ModelSpec spec;
  model::ParameterCount count;
  std::int64_t mtp_depth = 0;  // parameters of one depth
  std::int64_t flops = 0;      // of the main model, a token in training
  std::int64_t mtp_flops = 0;  // of all depths
  std::int64_t closed_form = 0;
  std::vector<model::ArchitecturePart> uncounted;
};

Counts count(const config::Experiment& experiment) {
  Counts counts;
  counts.spec = model::build_model_spec(experiment);
  counts.count = model::count_parameters(counts.spec);
  if (counts.spec.num_mtp_layers > 0) {
    counts.mtp_depth = model::count_mtp_parameters(counts.spec);
    counts.mtp_flops = model::mtp_training_flops_per_token(counts.spec);
  }
  counts.flops = model::flops_per_token(counts.spec).training();
  counts.closed_form = model::closed_form_active_parameters(counts.spec);
  counts.uncounted = model::uncounted_parts(experiment);
  return counts;
}

void print_row(std::string_view label, std::int64_t value) {
  fmt::print("  {:<16} {:>22}  {:>8}\n", label, format_count(value), format_short_count(static_cast<double>(value)));
}

void print_text(const Counts& counts, const config::Experiment& experiment, const ParamsOptions& options) {
  const model::ModelSpec& spec = counts.spec;
  const std::string& name = options.preset.empty() ? options.read.config : options.preset;
  fmt::print("{}\n", coloured("parameters of " + name, Colour::kBold, stdout));
  print_row("total", counts.count.total);
  print_row("active a token", counts.count.active);
  print_row("  inner layers", counts.count.active_without_embedding);
  print_row("  closed form", counts.closed_form);
  fmt::print("{}\n", coloured("by component", Colour::kBold, stdout));
  for (int i = 0; i < model::kNumComponents; ++i) {
    if (counts.count.by_component[i] > 0)
      print_row(model::name(static_cast<model::Component>(i)), counts.count.by_component[i]);
  }
  if (options.by_layer) {
    fmt::print("{}\n", coloured("by layer", Colour::kBold, stdout));
    for (const LayerRun& run : layer_runs(spec)) {
      const std::string layers =
          run.first == run.last ? std::to_string(run.first) : fmt::format("{}-{}", run.first, run.last);
      print_row(fmt::format("{} {}{}", layers, kind_text(run.kind), run.first == run.last ? "" : ", each"),
                run.num_parameters);
    }
  }
  if (counts.mtp_depth > 0) {
    fmt::print("{}\n", coloured("apart from the above: multi-token prediction", Colour::kBold, stdout));
    print_row(counted(spec.num_mtp_layers, "depth"), counts.mtp_depth * spec.num_mtp_parameter_sets());
  }
  for (const model::ArchitecturePart& part : counts.uncounted)
    fmt::print("not counted {} ({}): its shapes are not known here; totals are lower bounds\n", part.name, part.key);
  fmt::print("vocabulary  {} ({}), padded to {}\n", format_count(spec.vocab_size), vocabulary_source(experiment),
             format_count(spec.padded_vocab_size));
  fmt::print("closed form L·(H² + k·3HF) + 2VH, the figure stated for the synthetic models\n");
  fmt::print("FLOPs       {} a token in training at {} tokens (causal attention counted half){}\n",
             format_count(counts.flops), format_count(spec.seq_length), counts.mtp_depth > 0 ? ", main model" : "");
  if (counts.mtp_depth > 0) {
    fmt::print("            {} more for multi-token prediction ({}), {} together\n", format_count(counts.mtp_flops),
               counted(spec.num_mtp_layers, "depth"), format_count(counts.flops + counts.mtp_flops));
  }
}

Json counts_json(const Counts& counts, const config::Experiment& experiment, const ParamsOptions& options) {
  const model::ModelSpec& spec = counts.spec;
  Json json = {{"ok", true}, {"total", counts.count.total}, {"active", counts.count.active}};
  json["active_without_embedding"] = counts.count.active_without_embedding;
  json["active_closed_form"] = counts.closed_form;
  json["not_counted"] = Json::array();
  for (const model::ArchitecturePart& part : counts.uncounted) json["not_counted"].push_back(part.name);
  json["by_component"] = Json::object();
  for (int i = 0; i < model::kNumComponents; ++i) {
    json["by_component"][std::string(model::name(static_cast<model::Component>(i)))] = counts.count.by_component[i];
  }
  json["mtp"] = {{"depths", spec.num_mtp_layers},
                 {"parameters", counts.mtp_depth * spec.num_mtp_parameter_sets()},
                 {"flops_per_token", counts.mtp_flops}};
  json["vocabulary"] = {
      {"size", spec.vocab_size}, {"padded", spec.padded_vocab_size}, {"source", vocabulary_source(experiment)}};
  json["flops_per_token"] = counts.flops;
  json["seq_length"] = spec.seq_length;
  if (!options.by_layer) return json;
  json["by_layer"] = Json::array();
  for (const LayerRun& run : layer_runs(spec)) {
    for (std::int64_t layer = run.first; layer <= run.last; ++layer)
      json["by_layer"].push_back({{"layer", layer}, {"kind", kind_text(run.kind)}, {"parameters", run.num_parameters}});
  }
  return json;
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  ParamsOptions options;
  CLI::App app("Count a model's parameters exactly; nothing is allocated.", "primus-cli config params");
  add_options(app, options);
  app.footer(
      "examples\n  primus-cli config params --preset deepseek_v2_lite\n"
      "  primus-cli config params --config exp.yaml --by-layer --num_layers 4\n"
      "  primus-cli config params --preset deepseek_v3 --seq_length 8192 --format json | jq .total");
  if (parse_options(app, words, Rest::kReturn, options.read.overrides) == Parsed::kHelpShown) return 0;
  if (options.read.config.empty() == options.preset.empty()) {
    const std::vector<std::string>& rest = options.read.overrides;
    const bool is_file = !rest.empty() && rest.front().ends_with(".yaml") && !rest.front().starts_with("-");
    throw ConfigError({{.file = "command line",
                        .message = "--config or --preset is missing",
                        .expected = "one of them",
                        .nearest = is_file ? fmt::format("write --config {}", rest.front()) : ""}});
  }
  const config::Experiment experiment = options.preset.empty()
                                            ? read_experiment(options.read.config, options.read, launch).experiment
                                            : read_preset(options.preset, options.read.overrides);
  const Counts counts = count(experiment);
  if (format_of(options.read.format) == Format::kJson || launch.format == Format::kJson) {
    print_json(counts_json(counts, experiment, options));
  } else {
    print_text(counts, experiment, options);
  }
  return 0;
}

}  // namespace

const Command kConfigParams = {"config",
                               "params",
                               "--config FILE | --preset NAME",
                               "parameters, total and active",
                               Starts::kNothing,
                               Rest::kReturn,
                               "",
                               [](CLI::App& app) {
                                 static ParamsOptions unused;
                                 add_options(app, unused);
                               },
                               run};

}  // namespace primus::cli
