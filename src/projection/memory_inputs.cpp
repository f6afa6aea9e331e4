#include "projection/memory_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "config/rules.hpp"

namespace primus::projection {
namespace {

using config::Experiment;

model::Sharding model_sharding(const Experiment& experiment, const layout::GridSizes& sizes, double imbalance) {
  using Sequence = model::Sharding::Sequence;
  return {.tensor = sizes.tensor,
          .context = sizes.context,
          .expert = sizes.expert,
          .expert_tensor = sizes.expert_tensor,
          .sequence = experiment.get_bool("sequence_parallel") ? Sequence::kByTensor : Sequence::kWhole,
          .imbalance = imbalance};
}

/// How much of the state is divided over the data ranks.
enum class Divided { kNothing, kOptimizer, kGradients, kParameters };

Divided divided_state(const Experiment& experiment) {
  if (experiment.get_bool("use_torch_fsdp2")) return Divided::kParameters;
  if (experiment.get_bool("use_megatron_fsdp") || experiment.get_bool("use_custom_fsdp")) {
    const std::string strategy = experiment.get_string("data_parallel_sharding_strategy");
    if (strategy == "optim_grads_params") return Divided::kParameters;
    if (strategy == "optim_grads") return Divided::kGradients;
    return strategy == "optim" ? Divided::kOptimizer : Divided::kNothing;
  }
  return experiment.get_bool("use_distributed_optimizer") ? Divided::kOptimizer : Divided::kNothing;
}

model::ResidentSharding resident_sharding(const Experiment& experiment, const layout::RankGrid& grid,
                                          double imbalance) {
  model::ResidentSharding sharding;
  sharding.model = model_sharding(experiment, grid.sizes(), imbalance);
  const Divided divided = divided_state(experiment);
  // Copies of the optimizer: each divides its state among fewer ranks.
  const std::int64_t copies = experiment.get_int("num_distributed_optimizer_instances");
  const auto within_copy = [&](std::int64_t ranks) { return ranks % copies == 0 ? ranks / copies : ranks; };
  const model::StateParts all = {.dense = within_copy(grid.group_size(layout::GroupKind::kDataContext)),
                                 .expert = within_copy(grid.group_size(layout::GroupKind::kExpertData))};
  if (divided >= Divided::kOptimizer) sharding.optimizer = all;
  if (divided >= Divided::kGradients) sharding.gradients = all;
  if (divided >= Divided::kParameters) sharding.parameters = all;
  return sharding;
}

ContextExchange context_exchange(const Experiment& experiment) {
  const std::vector<std::string> kinds = experiment.get_strings("cp_comm_type");
  const std::string kind = kinds.empty() ? "p2p" : kinds.front();
  if (kind == "all_gather") return ContextExchange::kGather;
  return kind == "p2p" ? ContextExchange::kRing : ContextExchange::kHeads;
}

/// The schedule, for as many micro-batches as decide what is in flight: from the warm-up on, groups repeat.
schedule::Request schedule_of(const Experiment& experiment, const layout::StageLayout& stages,
                              std::int64_t num_micro_batches) {
  schedule::Request request = schedule::request_of(experiment, stages, 1);
  const std::int64_t ranks = stages.num_ranks();
  const std::int64_t group = request.group == 0 ? ranks : request.group;
  const std::int64_t enough = group * (4 + (2 * ranks + group - 1) / group);
  request.num_micro_batches = static_cast<int>(std::min(num_micro_batches, enough));
  request.gather = schedule::ParameterGather::kAbsent;  // of no account for what is kept
  if (const auto fault = schedule::fault_of(request)) {
    throw UserError(fmt::format("{}: {} (expected {}, found {})", schedule::info(request.algorithm).name,
                                fault->message, fault->expected, fault->found),
                    ExitCode::kWrongInput);
  }
  return request;
}

OriginalsView originals_view(const Experiment& experiment) {
  using Attention = OriginalsView::Attention;
  using Recompute = OriginalsView::Recompute;
  return {.attention = experiment.get_bool("use_flash_attn") ? Attention::kFlash : Attention::kWholeScores,
          .recompute = experiment.is_null("recompute_layer_ids") ? Recompute::kByPlace : Recompute::kByNumber};
}

/// The key whose value is the farthest beyond what anybody uses.
std::string_view largest_size(const MemoryInputs& inputs) {
  struct Size {
    std::string_view key;
    std::int64_t value;
    std::int64_t usual;
  };
  const Size sizes[] = {{"micro_batch_size", inputs.micro_batch.num_sequences, 64},
                        {"seq_length", inputs.micro_batch.seq_length, 1'000'000},
                        {"padded_vocab_size", inputs.spec.padded_vocab_size, 1'000'000},
                        {"hidden_size", inputs.spec.hidden_size, 32'768},
                        {"num_layers", inputs.spec.num_layers(), 1000}};
  return std::max_element(std::begin(sizes), std::end(sizes),
                          [](const Size& a, const Size& b) {
                            return static_cast<double>(a.value) / static_cast<double>(a.usual) <
                                   static_cast<double>(b.value) / static_cast<double>(b.usual);
                          })
      ->key;
}

/// An estimate in floating point, so that whoever counts exactly cannot overflow: a bound on the activations in flight.
void require_countable(const Experiment& experiment, const MemoryInputs& inputs) {
  const model::ModelSpec& spec = inputs.spec;
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  double width =
      8.0 * real(spec.residual_width()) + 3.0 * real(spec.dense_ffn_hidden_size) + real(spec.padded_vocab_size);
  if (const auto* mla = std::get_if<model::MlaSpec>(&spec.attention)) {
    width += 4.0 * real(mla->num_heads) * real(mla->query_dim() + mla->v_head_dim) + real(mla->kv_lora_rank) +
             real(mla->q_lora_rank.value_or(0));
  } else {
    const auto& gqa = std::get<model::GqaSpec>(spec.attention);
    width += 4.0 * real(gqa.num_fused_heads()) * real(gqa.head_dim);
  }
  if (spec.moe) {
    // No more ranks send than exchange rows.
    const double counted_imbalance = std::min(inputs.sharding.model.imbalance, real(inputs.sharding.model.expert));
    const double rows = real(spec.moe->router.top_k) * counted_imbalance * real(inputs.sharding.model.expert_tensor);
    width += rows * (3.0 * real(spec.moe->ffn_hidden_size) + 6.0 * real(spec.hidden_size)) +
             3.0 * real(spec.moe->shared_ffn_hidden_size) + 3.0 * real(spec.moe->router.num_experts);
  }
  const double tokens = real(inputs.micro_batch.num_sequences) * real(inputs.micro_batch.seq_length);
  // On one rank: its largest chunk, as often as chunks may be in flight.
  const std::vector<int> by_stage = inputs.stages.layers_by_stage();
  const double layers = real(*std::max_element(by_stage.begin(), by_stage.end()) + spec.num_mtp_layers) + 1.0;
  constexpr double kBytes = 8.0;
  const double in_flight =
      std::max((2.0 * inputs.schedule.num_ranks + real(inputs.schedule.group)) * real(inputs.schedule.num_chunks),
               1.0 * inputs.schedule.max_in_flight);
  if (tokens * width * layers * kBytes * in_flight < 0x1p63) return;
  Problem problem = config::problem_at(experiment, largest_size(inputs), "");
  problem.message = "the activations of this run may take more than 2^63 bytes";
  problem.found = fmt::format("micro_batch_size {} x seq_length {}, hidden_size {}, a vocabulary of {}",
                              inputs.micro_batch.num_sequences, inputs.micro_batch.seq_length, spec.hidden_size,
                              spec.padded_vocab_size);
  throw ConfigError({std::move(problem)});
}

}  // namespace

std::optional<std::string> memory_gap(const model::ModelSpec& spec) {
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    if (model::has_saved_tensors(spec.mixer(layer))) continue;
    return fmt::format(
        "layer {} mixes its tokens by another way than attention, whose activations are not described yet", layer);
  }
  return std::nullopt;
}

MemoryInputs memory_inputs(const Experiment& experiment, std::int64_t world_size, double imbalance) {
  const auto batch = config::batch_plan(experiment, world_size);
  if (!batch) {
    Problem problem = config::problem_at(experiment, "global_batch_size", "");
    problem.message = "does not divide into micro-batches on this world";
    problem.found = std::to_string(experiment.get_int("global_batch_size"));
    throw ConfigError({std::move(problem)});
  }
  const layout::StageLayout stages = layout::stage_layout(experiment);
  return memory_inputs_on(experiment, world_size, imbalance, stages,
                          schedule_of(experiment, stages, batch->accumulation));
}

MemoryInputs memory_inputs_on(const Experiment& experiment, std::int64_t world_size, double imbalance,
                              const layout::StageLayout& stages, const schedule::Request& schedule) {
  if (!(imbalance >= 1.0 && imbalance <= 1e6)) {
    throw ConfigError({{.file = "command line",
                        .key = "--imbalance",
                        .message = "is no share of the balanced number of rows",
                        .expected = "1 (balanced) to 1,000,000",
                        .found = fmt::format("{}", imbalance)}});
  }
  layout::RankGrid grid = layout::rank_grid(experiment, world_size);
  MemoryInputs inputs{
      .spec = model::build_model_spec(experiment),
      .policy = model::gpu_policy(model::numeric_policy(experiment)),
      .optimizer = model::optimizer_spec(experiment),
      .recompute = {},
      .loss_fusion =
          experiment.get_bool("cross_entropy_loss_fusion") ? model::LossFusion::kFused : model::LossFusion::kUnfused,
      .micro_batch = {.num_sequences = experiment.get_int("micro_batch_size"),
                      .seq_length = experiment.get_int("seq_length")},
      .sharding = resident_sharding(experiment, grid, imbalance),
      .grid = grid,
      .stages = stages,
      .schedule = schedule,
      .context_exchange = context_exchange(experiment),
      .row_exchange = experiment.get_bool("use_turbo_deepep") ? RowExchange::kFixedBuffers : RowExchange::kAllToAll,
      .original = originals_view(experiment)};
  require_countable(experiment, inputs);
  inputs.recompute = model::recompute_spec(experiment, inputs.spec, stages.layers_by_stage());
  return inputs;
}

model::PassGradients gradients_of(const MemoryInputs& inputs) {
  const bool is_alone = inputs.grid.sizes().world == 1 && inputs.schedule.num_micro_batches == 1;
  return is_alone && inputs.scratch.device == model::OpDevice::kGpu ? model::PassGradients::kAsTheyCome
                                                                    : model::PassGradients::kResident;
}

MemoryInputs on_host(MemoryInputs inputs) {
  inputs.policy.master_form = model::MasterForm::kWhole;
  inputs.scratch.device = model::OpDevice::kHost;
  inputs.optimizer.host_fraction = 0.0;  // it is all in one memory
  return inputs;
}

double counted_imbalance(const MemoryInputs& inputs) {
  if (!inputs.spec.moe) return 1.0;
  const auto rows = [&](const model::Sharding& sharding) {
    const model::SavedDeclaration moe = model::moe_saved(inputs.spec, inputs.policy, inputs.micro_batch, 0, sharding);
    return static_cast<double>(moe.tensors[model::MoeSlot::kPreActivation].shape[0]);
  };
  model::Sharding balanced = inputs.sharding.model;
  balanced.imbalance = 1.0;
  return rows(inputs.sharding.model) / rows(balanced);
}

}  // namespace primus::projection
