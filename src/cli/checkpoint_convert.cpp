// checkpoint import, export, upcycle: one folder of weights from another.
#include <fmt/format.h>

#include "base/error.hpp"
#include "checkpoint/upcycle.hpp"
#include "cli/app.hpp"
#include "cli/checkpoint_common.hpp"
#include "cli/terminal.hpp"
#include "config/layer_pattern.hpp"
#include "config/parse.hpp"

namespace primus::cli {
namespace {

namespace fs = std::filesystem;

bool stops_before_writing(const ConvertOptions& options, const LaunchOptions& launch) {
  return options.dry_run || launch.action == Action::kDryRun;
}

/// The run that would start from the folder is called after it.
std::string name_of(const std::string& folder) {
  fs::path path(folder);
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

// ---- import ----

int run_import(std::span<const std::string> words, const LaunchOptions& launch) {
  ConvertOptions options;
  CLI::App app("Make a checkpoint of a Hugging Face model: config.json becomes an experiment.",
               "primus-cli checkpoint import");
  add_convert_options(app, options);
  app.footer(
      "Models of config.json's model_type deepseek_v2, deepseek_v3, mixtral, qwen3_moe, gpt_oss (bf16 form)\n"
      "and llama. Only safetensors are read, never pickled files. DIR/experiment.yaml is what\n"
      "`primus-cli train pretrain --config` starts from, with data, a tokenizer and --load DIR.\n"
      "example\n  primus-cli checkpoint import --from hf/Mixtral-8x7B-v0.1 --to ckpt/mixtral --dtype bf16");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const checkpoint::WriteOptions write = write_options(options);
  checkpoint::check_target(write.to);
  const checkpoint::StoredModel stored = checkpoint::open_hugging_face(options.from);
  const ResolvedModel resolved = resolve_model(stored.experiment, name_of(options.to), "import");
  checkpoint::check_parameters(stored.weights->parameters(),
                               checkpoint::parameters_of(model::build_model_spec(resolved.experiment)), options.from,
                               "the resolved experiment");
  const checkpoint::WritePlan plan = checkpoint::plan_checkpoint(*stored.weights, write);
  ConvertReport report{"import", &options, architecture_of(stored), &plan, stored.notes};
  if (!stops_before_writing(options, launch)) {
    ProgressBar bar("import");
    checkpoint::write_checkpoint(*stored.weights, write, plan, resolved.run, stored,
                                 [&](std::int64_t done, std::int64_t all) { bar.show(done, all); });
    report.is_done = true;
  }
  print_report(report, launch);
  return 0;
}

// ---- export ----

int run_export(std::span<const std::string> words, const LaunchOptions& launch) {
  ConvertOptions options;
  CLI::App app("Make a Hugging Face model of a checkpoint: config.json and safetensors.",
               "primus-cli checkpoint export");
  add_convert_options(app, options);
  app.footer(
      "A checkpoint that was imported keeps its config.json's special tokens and its tokenizer's files.\n"
      "Settings that no config.json of the model's architecture can express are errors that name them.\n"
      "example\n  primus-cli checkpoint export --from ckpt/mixtral --to hf/mixtral --dtype bf16");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const checkpoint::WriteOptions write = write_options(options);
  checkpoint::check_target(write.to);
  const checkpoint::StoredModel stored = checkpoint::open_model(options.from);
  const checkpoint::ExportPlan plan = checkpoint::plan_export(stored, write);
  ConvertReport report{"export", &options, plan.config.json.value("model_type", ""), &plan.write, stored.notes};
  report.notes.insert(report.notes.end(), plan.notes.begin(), plan.notes.end());
  if (!stops_before_writing(options, launch)) {
    ProgressBar bar("export");
    checkpoint::write_hugging_face(stored, write, plan,
                                   [&](std::int64_t done, std::int64_t all) { bar.show(done, all); });
    report.is_done = true;
  }
  print_report(report, launch);
  return 0;
}

// ---- upcycle ----

struct UpcycleWords {
  ConvertOptions convert;
  std::int64_t num_experts = 0;
  std::int64_t top_k = 2;
  std::int64_t granularity = 1;
  std::string layers = "1";
  checkpoint::UpcycleOptions options;
};

void add_upcycle_options(CLI::App& app, UpcycleWords& read) {
  add_convert_options(app, read.convert);
  app.add_option("--num-experts", read.num_experts, "Experts of a layer")->required()->type_name("N");
  app.add_option("--topk", read.top_k, "Experts of a token")->type_name("K")->capture_default_str();
  app.add_option("--granularity", read.granularity, "Shards of the dense MLP, an expert each")
      ->type_name("G")
      ->capture_default_str();
  app.add_option("--moe-layer-freq", read.layers, "Layers that get experts, as in '([0]*1+[1]*3)'")
      ->type_name("PATTERN")
      ->capture_default_str();
  app.add_option("--noise-std", read.options.noise_std, "Noise on the experts, in standard deviations of the matrix")
      ->type_name("S")
      ->capture_default_str();
  app.add_option("--drop-fraction", read.options.drop_fraction, "Part of each expert's units that is drawn anew")
      ->type_name("F")
      ->capture_default_str();
  app.add_option("--seed", read.options.seed, "Of routers, noise and drops")->type_name("N")->capture_default_str();
}

void check(const UpcycleWords& read) {
  std::vector<Problem> problems;
  const auto require = [&](bool holds, const char* key, const char* expected, const std::string& found) {
    if (!holds)
      problems.push_back(
          {.file = "command line", .key = key, .message = "is out of range", .expected = expected, .found = found});
  };
  require(read.num_experts >= 1, "--num-experts", "at least 1", std::to_string(read.num_experts));
  require(read.granularity >= 1, "--granularity", "at least 1", std::to_string(read.granularity));
  require(read.top_k >= 1 && read.top_k <= read.num_experts, "--topk", "1 to --num-experts",
          std::to_string(read.top_k));
  require(read.options.noise_std >= 0.0, "--noise-std", "at least 0", std::to_string(read.options.noise_std));
  require(read.options.drop_fraction >= 0.0 && read.options.drop_fraction <= 1.0, "--drop-fraction", "0 to 1",
          std::to_string(read.options.drop_fraction));
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

/// The dense experiment with experts. Throws ConfigError.
config::Experiment with_experts(const checkpoint::StoredModel& dense, const UpcycleWords& read) {
  config::Experiment experiment = dense.experiment;
  const auto set = [&](const char* key, config::Value value) {
    experiment.set(key, std::move(value), {config::Layer::kExperiment, "checkpoint upcycle", 0});
  };
  const config::Value layers =
      config::parse_int(read.layers) ? config::parse_scalar(read.layers) : config::Value{read.layers};
  try {
    config::expand_layer_pattern(layers, dense.spec.num_layers());
  } catch (const UserError& error) {
    throw ConfigError({{.file = "command line", .key = "--moe-layer-freq", .message = error.what()}});
  }
  set("num_experts", {read.num_experts});
  set("moe_router_topk", {read.top_k});
  set("moe_layer_freq", layers);
  set("moe_ffn_hidden_size", {dense.spec.dense_ffn_hidden_size / read.granularity});
  set("moe_router_pre_softmax", {false});
  set("moe_router_load_balancing_type", {std::string("none")});
  set("moe_aux_loss_coeff", {0.0});
  set("moe_grouped_gemm", {true});
  set("moe_token_dispatcher_type", {std::string("alltoall")});
  return experiment;
}

int run_upcycle(std::span<const std::string> words, const LaunchOptions& launch) {
  UpcycleWords read;
  CLI::App app("Make a model with experts of a dense one: every expert starts as a copy of the MLP.",
               "primus-cli checkpoint upcycle");
  add_upcycle_options(app, read);
  app.footer(
      "Without noise and drops the new model computes what the dense one does, whatever the router says.\n"
      "example\n  primus-cli checkpoint upcycle --from ckpt/llama --to ckpt/llama-8x --num-experts 8 --topk 2");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  check(read);
  const checkpoint::WriteOptions write = write_options(read.convert);
  checkpoint::check_target(write.to);
  checkpoint::StoredModel dense = checkpoint::open_model(read.convert.from);
  if (dense.spec.dense_ffn_hidden_size % read.granularity != 0) {
    throw ConfigError({{.file = "command line",
                        .key = "--granularity",
                        .message = "does not divide the dense MLP's width",
                        .expected = fmt::format("a divisor of {}", dense.spec.dense_ffn_hidden_size),
                        .found = std::to_string(read.granularity)}});
  }
  const config::Experiment experiment = with_experts(dense, read);
  const model::ModelSpec spec = model::build_model_spec(experiment);
  const std::unique_ptr<checkpoint::Weights> weights = checkpoint::upcycle(dense, spec, read.options);
  const ResolvedModel resolved = resolve_model(experiment, name_of(read.convert.to), "upcycle");
  const checkpoint::WritePlan plan = checkpoint::plan_checkpoint(*weights, write);
  ConvertReport report{"upcycle", &read.convert, architecture_of(dense), &plan, dense.notes};
  dense.source_config.reset();  // it describes the dense model
  if (!stops_before_writing(read.convert, launch)) {
    ProgressBar bar("upcycle");
    checkpoint::write_checkpoint(*weights, write, plan, resolved.run, dense,
                                 [&](std::int64_t done, std::int64_t all) { bar.show(done, all); });
    report.is_done = true;
  }
  print_report(report, launch);
  return 0;
}

void add_plain_options(CLI::App& app) {
  static ConvertOptions unused;
  add_convert_options(app, unused);
}

}  // namespace

const Command kCheckpointImport = {"checkpoint",
                                   "import",
                                   "--from DIR --to DIR",
                                   "a Hugging Face model to a checkpoint",
                                   Starts::kNothing,
                                   Rest::kRefuse,
                                   "",
                                   add_plain_options,
                                   run_import};

const Command kCheckpointExport = {"checkpoint",
                                   "export",
                                   "--from DIR --to DIR",
                                   "a checkpoint to a Hugging Face model",
                                   Starts::kNothing,
                                   Rest::kRefuse,
                                   "",
                                   add_plain_options,
                                   run_export};

const Command kCheckpointUpcycle = {"checkpoint",
                                    "upcycle",
                                    "--from DIR --to DIR --num-experts N",
                                    "a dense model to one with experts",
                                    Starts::kNothing,
                                    Rest::kRefuse,
                                    "",
                                    [](CLI::App& app) {
                                      static UpcycleWords unused;
                                      add_upcycle_options(app, unused);
                                    },
                                    run_upcycle};

}  // namespace primus::cli
