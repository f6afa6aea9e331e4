#include "cli/projection_common.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "config/loader.hpp"
#include "projection/unmodelled.hpp"

namespace primus::cli {
namespace {

using projection::MemoryInputs;

std::string type_text(DType type) {
  return std::string(name(type));
}

/// What a rule keeps beside the master copy.
std::string moments_text(model::OptimizerKind kind, const model::NumericPolicy& policy) {
  const std::string first = type_text(policy.first_moment);
  if (!model::has_second_moment(kind)) return first + " momentum";
  const std::string second = type_text(policy.second_moment);
  std::string text = first == second ? first + " moments" : fmt::format("{} and {} moments", first, second);
  if (kind == model::OptimizerKind::kSoap) text += fmt::format(" with their bases in {}", type_text(policy.statistics));
  return text;
}

std::string masters_text(const model::NumericPolicy& policy) {
  if (!policy.has_master_copy()) return "no masters, ";
  const bool is_beside = policy.master_form == model::MasterForm::kBesideWeight;
  return fmt::format("{} masters{}, ", type_text(policy.master), is_beside ? " as the 16 bits that weights lack" : "");
}

std::string state_text(const MemoryInputs& inputs) {
  const model::NumericPolicy& policy = inputs.policy;
  std::string text =
      fmt::format("{} weights, {} gradients, ", type_text(policy.parameters), type_text(policy.main_gradients));
  text += masters_text(policy);
  const model::OptimizerSpec& optimizer = inputs.optimizer;
  text += moments_text(optimizer.kind, policy);
  if (model::moves_matrices(optimizer.kind))
    text += fmt::format(" of matrices, {} of the rest", moments_text(optimizer.scalar_kind, policy));
  const auto divided = [&](std::string_view what, const model::StateParts& parts) {
    if (parts.dense == 1 && parts.expert == 1) return;
    text += fmt::format("; {} divided over {} ranks, experts' over {}", what, parts.dense, parts.expert);
  };
  divided("parameters", inputs.sharding.parameters);
  divided("gradients", inputs.sharding.gradients);
  divided("optimizer", inputs.sharding.optimizer);
  return text;
}

std::string recompute_text(const MemoryInputs& inputs) {
  const model::RecomputeSpec& recompute = inputs.recompute;
  if (recompute.layers.empty() && recompute.modules.empty()) return "nothing runs again";
  std::int64_t whole = 0;
  for (const model::LayerRecompute layer : recompute.layers) whole += layer != model::LayerRecompute::kNone ? 1 : 0;
  if (whole > 0) return fmt::format("{} run again in backward", counted(whole, "whole layer"));
  std::string text;
  for (const model::RecomputeModule module : recompute.modules) {
    text += (text.empty() ? "" : ", ") + std::string(model::name(module));
  }
  return text + " run again in backward";
}

std::string routing_text(const MemoryInputs& inputs) {
  const double asked = inputs.sharding.model.imbalance;
  if (asked == 1.0) return "balanced: every expert gets as many rows";
  // Rows are whole: a ratio a row above what was asked for is no bound.
  const double counted = projection::counted_imbalance(inputs);
  if (counted >= asked) return fmt::format("the busiest rank's experts get {} times their share", asked);
  return fmt::format(
      "the busiest rank's experts get {:.4g} times their share (of {} asked for): no more rows can exist", counted,
      asked);
}

std::string schedule_text(const MemoryInputs& inputs, std::int64_t num_micro_batches) {
  return fmt::format("{}, {} x {}; {} of {} x {} tokens", schedule::info(inputs.schedule.algorithm).name,
                     counted(inputs.stages.num_ranks(), "rank"), counted(inputs.stages.num_chunks(), "chunk"),
                     counted(num_micro_batches, "micro-batch"), inputs.micro_batch.num_sequences,
                     format_count(inputs.micro_batch.seq_length));
}

}  // namespace

void add_projection_options(CLI::App& app, ProjectionOptions& options) {
  add_world_option(app, options.read.world_size);
  app.add_option("--gpu", options.gpu, "Device whose memory it must fit, by name")->type_name("NAME");
  app.add_option("--hbm", options.hbm, "Memory of a device instead")->type_name("SIZE");
  app.add_option("--imbalance", options.imbalance, "Rows of the busiest rank's experts over the mean (default 1)")
      ->type_name("X");
}

void refuse_ours_only(const CLI::App& app, const std::string& accounting) {
  if (accounting == "ours") return;
  for (const char* option : {"--rank", "--all-ranks", "--imbalance"}) {
    const CLI::Option* known = app.get_option_no_throw(option);
    if (!known || known->count() == 0) continue;
    throw ConfigError({{.file = "command line",
                        .key = option,
                        .message = fmt::format("--accounting {} knows no such thing", accounting),
                        .expected = "it with --accounting ours only"}});
  }
}

Planned plan(const std::string& file, const ProjectionOptions& options, std::vector<std::string> overrides,
             const LaunchOptions& launch) {
  ReadOptions read = options.read;
  read.overrides = std::move(overrides);
  config::Resolution resolution = read_experiment(file, read, launch);
  MemoryInputs inputs = projection::memory_inputs(resolution.experiment, resolution.world.size, options.imbalance);
  std::string name = resolution.experiment.exp_name;
  return {std::move(name), std::move(resolution), std::move(inputs)};
}

Projected project(const std::string& file, const ProjectionOptions& options, std::vector<std::string> overrides,
                  const LaunchOptions& launch) {
  Planned planned = plan(file, options, std::move(overrides), launch);
  projection::MemoryProjection memory = projection::project_memory(planned.inputs);
  return {std::move(planned), std::move(memory)};
}

Projected project(const ProjectionOptions& options, const LaunchOptions& launch) {
  return project(options.read.config, options, options.read.overrides, launch);
}

std::optional<projection::Hardware> device_of(const ProjectionOptions& options) {
  if (!options.gpu.empty() && !options.hbm.empty()) {
    throw ConfigError(
        {{.file = "command line", .key = "--hbm", .message = "--gpu says it already", .expected = "one of them"}});
  }
  if (!options.gpu.empty()) {
    return projection::find_hardware(projection::read_hardware(config::preset_folder() / "hardware"), options.gpu,
                                     "--gpu");
  }
  if (options.hbm.empty()) return std::nullopt;
  return projection::Hardware{
      .name = "a device", .vendor = "", .memory_bytes = projection::parse_memory_size(options.hbm, "--hbm")};
}

std::int64_t num_micro_batches(const Planned& planned) {
  const auto batch = config::batch_plan(planned.resolution.experiment, planned.resolution.world.size);
  PRIMUS_CHECK(batch, "the rules accepted a batch that does not divide");
  return batch->accumulation;
}

std::string gib_text(std::int64_t num_bytes) {
  const double size = static_cast<double>(num_bytes) / 0x1p30;
  return fmt::format("{:.{}f}", size, size < 9.995 ? 2 : 1);
}

std::string layers_text(const projection::RankMemory& rank) {
  std::vector<model::StageContent> chunks;
  for (const projection::ChunkMemory& chunk : rank.chunks) chunks.push_back(chunk.content);
  return layers_text(chunks);
}

std::string layers_text(const std::vector<model::StageContent>& chunks) {
  std::string text;
  for (const model::StageContent& content : chunks) {
    std::string part = content.embedding == model::Part::kPresent ? "E" : "";
    if (content.num_layers == 1) part += fmt::format("{}{}", part.empty() ? "" : " ", content.first_layer);
    if (content.num_layers > 1) {
      part += fmt::format("{}{}-{}", part.empty() ? "" : " ", content.first_layer,
                          content.first_layer + content.num_layers - 1);
    }
    if (content.num_mtp_layers > 0) part += fmt::format("{}m", part.empty() ? "" : " ");
    if (content.output == model::Part::kPresent) part += part.empty() ? "L" : " L";
    text += (text.empty() ? "" : ",") + (part.empty() ? "-" : part);
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> setting_lines(const Planned& planned_run) {
  const MemoryInputs& inputs = planned_run.inputs;
  const layout::GridSizes& sizes = inputs.grid.sizes();
  std::vector<std::pair<std::string, std::string>> lines;
  lines.emplace_back("world", fmt::format("{} ({}): TP {} x CP {} x DP {} x PP {}", counted(sizes.world, "rank"),
                                          planned_run.resolution.world.source, sizes.tensor, sizes.context,
                                          inputs.grid.num_data(), sizes.pipeline));
  if (inputs.spec.moe) {
    lines.back().second += fmt::format("; experts ETP {} x EP {} x DP {}", sizes.expert_tensor, sizes.expert,
                                       inputs.grid.num_expert_data());
  }
  lines.emplace_back("schedule", schedule_text(inputs, num_micro_batches(planned_run)));
  lines.emplace_back("state", state_text(inputs));
  std::string loss = inputs.loss_fusion == model::LossFusion::kFused ? "; fused loss" : "; unfused loss";
  lines.emplace_back("recompute", recompute_text(inputs) + loss);
  if (inputs.spec.moe) lines.emplace_back("routing", routing_text(inputs));
  if (const std::string planned = planned_text(planned_run.resolution); !planned.empty()) {
    lines.emplace_back("planned", fmt::format("a real train refuses today: {}", planned));
  }
  for (const projection::Unmodelled& setting : projection::unmodelled(planned_run.resolution.experiment)) {
    lines.emplace_back("uncounted", fmt::format("{}: counted as {}", setting.key, setting.counted_as));
  }
  return lines;
}

}  // namespace primus::cli
