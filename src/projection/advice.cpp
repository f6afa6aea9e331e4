#include "projection/advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "base/error.hpp"
#include "config/pipeline_layout.hpp"

namespace primus::projection {
namespace {

/// One change; nothing where it is no change or is not legal.
struct Change {
  std::optional<MemoryInputs> inputs;
  std::string words;
  std::string effect;
  bool is_layout = false;  // of ranks, not of what is kept
};

/// Among how many ranks a grid divides state.
model::StateParts data_parts(const layout::RankGrid& grid) {
  return {.dense = grid.group_size(layout::GroupKind::kDataContext),
          .expert = grid.group_size(layout::GroupKind::kExpertData)};
}

bool is_divided(const MemoryInputs& inputs) {
  return inputs.sharding.optimizer.dense > 1 || inputs.sharding.optimizer.expert > 1;
}

/// The inputs on a grid of other sizes, with state divided over its groups.
std::optional<MemoryInputs> on_grid(const MemoryInputs& inputs, const layout::GridSizes& sizes) {
  const std::int64_t dense = sizes.tensor * sizes.context * sizes.pipeline;
  const std::int64_t sparse = sizes.expert * sizes.expert_tensor * sizes.pipeline;
  if (sizes.world % dense != 0 || sizes.world % sparse != 0) return std::nullopt;
  MemoryInputs changed = inputs;
  changed.grid = layout::RankGrid(sizes);
  model::Sharding& sharding = changed.sharding.model;
  sharding.tensor = sizes.tensor;
  sharding.context = sizes.context;
  sharding.expert = sizes.expert;
  sharding.expert_tensor = sizes.expert_tensor;
  const model::StateParts all = data_parts(changed.grid);
  for (model::StateParts model::ResidentSharding::*part :
       {&model::ResidentSharding::parameters, &model::ResidentSharding::gradients,
        &model::ResidentSharding::optimizer}) {
    const model::StateParts& before = inputs.sharding.*part;
    if (before.dense > 1 || before.expert > 1) changed.sharding.*part = all;
  }
  // The same global batch over fewer or more data ranks.
  const double factor = static_cast<double>(inputs.grid.num_data()) / static_cast<double>(changed.grid.num_data());
  changed.schedule.num_micro_batches =
      std::max(1, static_cast<int>(static_cast<double>(inputs.schedule.num_micro_batches) * factor));
  return changed;
}

Change more_context(const MemoryInputs& inputs) {
  layout::GridSizes sizes = inputs.grid.sizes();
  sizes.context *= 2;
  const std::int64_t parts = 2 * sizes.context * inputs.sharding.model.sequence_parts();
  if (inputs.micro_batch.seq_length % parts != 0) return {};
  return {on_grid(inputs, sizes), fmt::format("--context_parallel_size {}", sizes.context),
          "keys and values travel between context ranks", true};
}

Change more_experts(const MemoryInputs& inputs) {
  layout::GridSizes sizes = inputs.grid.sizes();
  if (!inputs.spec.moe) return {};
  sizes.expert *= 2;
  if (inputs.spec.moe->router.num_experts % sizes.expert != 0) return {};
  return {on_grid(inputs, sizes), fmt::format("--expert_model_parallel_size {}", sizes.expert),
          "rows travel among more ranks", true};
}

Change more_tensor(const MemoryInputs& inputs) {
  layout::GridSizes sizes = inputs.grid.sizes();
  const model::ModelSpec& spec = inputs.spec;
  sizes.tensor *= 2;
  const auto* gqa = std::get_if<model::GqaSpec>(&spec.attention);
  const bool divides = spec.num_heads() % sizes.tensor == 0 && (!gqa || gqa->num_query_groups % sizes.tensor == 0) &&
                       spec.dense_ffn_hidden_size % sizes.tensor == 0 && spec.hidden_size % sizes.tensor == 0 &&
                       (!spec.moe || spec.moe->shared_ffn_hidden_size % sizes.tensor == 0) &&
                       inputs.micro_batch.seq_length % (2 * sizes.context * sizes.tensor) == 0;
  if (!divides) return {};
  auto changed = on_grid(inputs, sizes);
  if (changed) {
    changed->sharding.model.sequence = model::Sharding::Sequence::kByTensor;
    const std::int64_t multiple = inputs.vocab_multiple * sizes.tensor;
    if (multiple > 0) changed->spec.padded_vocab_size = (spec.vocab_size + multiple - 1) / multiple * multiple;
    if (changed->spec.padded_vocab_size % sizes.tensor != 0) return {};
  }
  return {std::move(changed),
          fmt::format("--tensor_model_parallel_size {} --sequence_parallel true --expert_tensor_parallel_size {}",
                      sizes.tensor, sizes.expert_tensor),
          "two exchanges more in each half of a layer", true};
}

/// Groups and counts of layers begin anew on each stage: on other stages, other layers would run again.
bool is_alike_on_every_stage(const model::RecomputeSpec& recompute) {
  return std::adjacent_find(recompute.layers.begin(), recompute.layers.end(), std::not_equal_to<>()) ==
         recompute.layers.end();
}

Change more_stages(const MemoryInputs& inputs) {
  layout::GridSizes sizes = inputs.grid.sizes();
  sizes.pipeline *= 2;
  const std::int64_t layers = inputs.spec.num_layers();
  const std::vector<int> by_stage = inputs.stages.layers_by_stage();
  const bool is_even = std::all_of(by_stage.begin(), by_stage.end(), [&](int count) { return count == by_stage[0]; });
  if (!is_even || layers % sizes.pipeline != 0 || inputs.stages.placement() == layout::StagePlacement::kV) return {};
  if (!is_alike_on_every_stage(inputs.recompute)) return {};
  // Chunks stay as small as they are, if they may.
  const std::int64_t chunks = std::max<std::int64_t>(1, inputs.stages.num_chunks() / 2);
  if (layers / sizes.pipeline % chunks != 0) return {};
  auto changed = on_grid(inputs, sizes);
  if (!changed) return {};
  changed->stages =
      layout::StageLayout(config::balanced_layout(layers, inputs.spec.num_mtp_layers, sizes.pipeline * chunks),
                          static_cast<int>(sizes.pipeline), layout::StagePlacement::kRoundRobin);
  schedule::Request& request = changed->schedule;
  const bool is_plain =
      request.algorithm == schedule::Algorithm::k1F1B || request.algorithm == schedule::Algorithm::kInterleaved;
  request.num_ranks = static_cast<int>(sizes.pipeline);
  request.num_chunks = static_cast<int>(chunks);
  request.algorithm = chunks > 1 ? schedule::Algorithm::kInterleaved : schedule::Algorithm::k1F1B;
  request.group = 0;
  if (!is_plain || schedule::fault_of(request)) return {};
  std::string words = fmt::format("--pipeline_model_parallel_size {}", sizes.pipeline);
  words += chunks > 1 ? fmt::format(" --num_virtual_stages_per_pipeline_rank {}", chunks)
                      : std::string(" --num_virtual_stages_per_pipeline_rank null");
  if (inputs.schedule.group != 0) words += " --microbatch_group_size_per_vp_stage null";
  return {std::move(changed), words, "a longer pipeline: more bubble", true};
}

Change smaller_micro_batch(const MemoryInputs& inputs) {
  if (inputs.micro_batch.num_sequences % 2 != 0) return {};
  MemoryInputs changed = inputs;
  changed.micro_batch.num_sequences /= 2;
  changed.schedule.num_micro_batches *= 2;
  return {std::move(changed), fmt::format("--micro_batch_size {}", inputs.micro_batch.num_sequences / 2),
          "smaller products"};
}

Change fused_loss(const MemoryInputs& inputs) {
  if (inputs.loss_fusion == model::LossFusion::kFused) return {};
  MemoryInputs changed = inputs;
  changed.loss_fusion = model::LossFusion::kFused;
  return {std::move(changed), "--cross_entropy_loss_fusion true --cross_entropy_fusion_impl te", "none"};
}

bool recomputes(const MemoryInputs& inputs) {
  return !inputs.recompute.layers.empty();
}

Change some_again(const MemoryInputs& inputs) {
  if (recomputes(inputs) || !inputs.recompute.modules.empty()) return {};
  MemoryInputs changed = inputs;
  const bool is_mla = std::holds_alternative<model::MlaSpec>(inputs.spec.attention);
  changed.recompute.modules = {model::RecomputeModule::kCoreAttention};
  if (is_mla) changed.recompute.modules.push_back(model::RecomputeModule::kMlaUpProjection);
  return {
      std::move(changed),
      fmt::format("--recompute_granularity selective --recompute_modules [core_attn{}]", is_mla ? ",mla_up_proj" : ""),
      "attention runs twice"};
}

Change experts_again(const MemoryInputs& inputs) {
  if (recomputes(inputs) || !inputs.spec.moe || inputs.recompute.has(model::RecomputeModule::kMoe)) return {};
  MemoryInputs changed = inputs;
  changed.recompute.modules.push_back(model::RecomputeModule::kMoe);
  std::string modules;
  for (const model::RecomputeModule module : changed.recompute.modules) {
    modules += (modules.empty() ? "" : ",") + std::string(model::name(module));
  }
  return {std::move(changed), fmt::format("--recompute_granularity selective --recompute_modules [{}]", modules),
          "routing, dispatch and experts run twice"};
}

Change all_again(const MemoryInputs& inputs) {
  if (recomputes(inputs)) return {};
  MemoryInputs changed = inputs;
  changed.recompute.modules.clear();
  changed.recompute.layers.assign(static_cast<std::size_t>(inputs.spec.num_layers() + inputs.spec.num_mtp_layers),
                                  model::LayerRecompute::kAllButInput);
  return {std::move(changed), "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1",
          "every layer runs twice: a third more arithmetic"};
}

/// Wants the distributed optimizer besides.
Change narrow_moments(const MemoryInputs& inputs, DType type) {
  if (size_bytes(inputs.policy.first_moment) <= size_bytes(type)) return {};
  MemoryInputs changed = inputs;
  changed.policy.first_moment = changed.policy.second_moment = type;
  std::string words =
      fmt::format("--use_precision_aware_optimizer true --exp_avg_dtype {0} --exp_avg_sq_dtype {0}", name(type));
  if (inputs.policy.main_gradients != DType::kFloat32) {
    words += fmt::format(" --main_grads_dtype {}", name(inputs.policy.main_gradients));
  }
  if (!is_divided(inputs)) {
    changed.sharding.optimizer = data_parts(inputs.grid);
    words += " --use_distributed_optimizer true";
  }
  return {std::move(changed), words, "coarser moments"};
}

Change narrow_gradients(const MemoryInputs& inputs) {
  if (size_bytes(inputs.policy.main_gradients) <= size_bytes(DType::kBFloat16)) return {};
  if (inputs.policy.parameters == DType::kFloat32) return {};
  MemoryInputs changed = inputs;
  changed.policy.main_gradients = DType::kBFloat16;
  return {std::move(changed), "--grad_reduce_in_bf16 true", "coarser sums over micro-batches"};
}

Change divided_state(const MemoryInputs& inputs) {
  if (is_divided(inputs) || inputs.grid.group_size(layout::GroupKind::kDataContext) == 1) return {};
  MemoryInputs changed = inputs;
  changed.sharding.optimizer = data_parts(inputs.grid);
  return {std::move(changed), "--use_distributed_optimizer true", "parameters are gathered each step"};
}

std::vector<Change> changes(const MemoryInputs& inputs) {
  return {more_context(inputs),
          more_tensor(inputs),
          more_experts(inputs),
          more_stages(inputs),
          fused_loss(inputs),
          some_again(inputs),
          experts_again(inputs),
          all_again(inputs),
          divided_state(inputs),
          narrow_gradients(inputs),
          narrow_moments(inputs, DType::kBFloat16),
          narrow_moments(inputs, DType::kFloat8),
          smaller_micro_batch(inputs)};
}

}  // namespace

std::vector<Remedy> remedies(const MemoryInputs& inputs, const MemoryProjection& projection) {
  const std::int64_t before = projection.worst().total();
  std::vector<Remedy> all;
  for (const Change& change : changes(inputs)) {
    if (!change.inputs) continue;
    const std::int64_t total = project_memory(*change.inputs).worst().total();
    // A change of layout is told even where it does not help: it is what people try.
    if (total >= before && !change.is_layout) continue;
    all.push_back({change.words, total, before - total, change.effect});
  }
  std::stable_sort(all.begin(), all.end(), [](const Remedy& a, const Remedy& b) { return a.saved > b.saved; });
  return all;
}

}  // namespace primus::projection
