#include "projection/changes.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "config/pipeline_layout.hpp"

namespace primus::projection {
namespace {

using Words = std::vector<std::string>;
using Changes = std::vector<Change>;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string twice(std::int64_t size) {
  return std::to_string(2 * size);
}

void add_ranks(const MemoryInputs& inputs, Changes& all) {
  const layout::GridSizes& sizes = inputs.grid.sizes();
  constexpr auto kLayout = Change::Kind::kLayout;
  all.push_back(
      {{{"--context_parallel_size", twice(sizes.context)}}, "keys and values travel between context ranks", kLayout});
  Words tensor = {"--tensor_model_parallel_size", twice(sizes.tensor), "--sequence_parallel", "true"};
  if (inputs.spec.moe) {
    tensor = with(tensor, {"--expert_tensor_parallel_size", std::to_string(sizes.expert_tensor)});
  }
  all.push_back({{tensor}, "two exchanges more in each half of a layer", kLayout});
  if (inputs.spec.moe) {
    all.push_back({{{"--expert_model_parallel_size", twice(sizes.expert)}}, "rows travel among more ranks", kLayout});
  }
}

/// Chunks stay as small as they are, or become one a stage; a written layout gives way to an even one.
void add_stages(const MemoryInputs& inputs, Changes& all) {
  const std::int64_t ranks = 2 * inputs.grid.sizes().pipeline;
  Change change{{}, "a longer pipeline: more bubble", Change::Kind::kLayout};
  std::vector<std::int64_t> chunk_counts = {std::max<std::int64_t>(1, inputs.stages.num_chunks() / 2)};
  if (chunk_counts.front() > 1) chunk_counts.push_back(1);
  for (const std::int64_t chunks : chunk_counts) {
    Words words = {"--pipeline_model_parallel_size", std::to_string(ranks), "--num_virtual_stages_per_pipeline_rank",
                   chunks > 1 ? std::to_string(chunks) : "null"};
    if (inputs.schedule.group != 0) words = with(words, {"--microbatch_group_size_per_vp_stage", "null"});
    const std::string even =
        config::to_text(config::balanced_layout(inputs.spec.num_layers(), inputs.spec.num_mtp_layers, ranks * chunks));
    change.ways.push_back(words);
    change.ways.push_back(with(words, {"--pipeline_model_parallel_layout", "null"}));
    change.ways.push_back(with(words, {"--pipeline_model_parallel_layout", even}));
  }
  all.push_back(std::move(change));
}

Words run_again(const MemoryInputs& inputs, Words words) {
  const bool is_by_number = inputs.original.recompute == OriginalsView::Recompute::kByNumber;
  return is_by_number ? with(std::move(words), {"--recompute_layer_ids", "null"}) : words;
}

Words modules_again(const MemoryInputs& inputs, const std::vector<model::RecomputeModule>& modules) {
  std::string names;
  for (const model::RecomputeModule module : modules) {
    names += (names.empty() ? "" : ",") + std::string(model::name(module));
  }
  return run_again(inputs, {"--recompute_granularity", "selective", "--recompute_modules", "[" + names + "]"});
}

/// What runs again already is not proposed anew; some layers by number are replaced by all.
void add_recomputation(const MemoryInputs& inputs, Changes& all) {
  const std::vector<model::LayerRecompute>& layers = inputs.recompute.layers;
  const auto is_none = [](model::LayerRecompute layer) { return layer == model::LayerRecompute::kNone; };
  const bool is_partial = std::any_of(layers.begin(), layers.end(), is_none);
  if (layers.empty() && inputs.recompute.modules.empty()) {
    std::vector<model::RecomputeModule> modules = {model::RecomputeModule::kCoreAttention};
    if (std::holds_alternative<model::MlaSpec>(inputs.spec.attention)) {
      modules.push_back(model::RecomputeModule::kMlaUpProjection);
    }
    all.push_back({{modules_again(inputs, modules)}, "attention runs twice"});
  }
  if (layers.empty() && inputs.spec.moe && !inputs.recompute.has(model::RecomputeModule::kMoe)) {
    std::vector<model::RecomputeModule> modules = inputs.recompute.modules;
    modules.push_back(model::RecomputeModule::kMoe);
    all.push_back({{modules_again(inputs, modules)}, "routing, dispatch and experts run twice"});
  }
  if (layers.empty() || is_partial) {
    all.push_back({{run_again(inputs, {"--recompute_granularity", "full", "--recompute_method", "uniform",
                                       "--recompute_num_layers", "1"})},
                   "every layer runs twice: a third more arithmetic"});
  }
}

bool is_divided(const MemoryInputs& inputs) {
  return inputs.sharding.optimizer.dense > 1 || inputs.sharding.optimizer.expert > 1;
}

/// Wants the distributed optimizer besides.
void add_narrow_moments(const MemoryInputs& inputs, DType type, Changes& all) {
  if (size_bytes(inputs.policy.first_moment) <= size_bytes(type)) return;
  const std::string text(name(type));
  Words words = {"--use_precision_aware_optimizer", "true", "--exp_avg_dtype", text, "--exp_avg_sq_dtype", text};
  if (inputs.policy.main_gradients != DType::kFloat32) {
    words = with(words, {"--main_grads_dtype", std::string(name(inputs.policy.main_gradients))});
  }
  if (!is_divided(inputs)) words = with(words, {"--use_distributed_optimizer", "true"});
  all.push_back({{words}, "coarser moments"});
}

void add_state(const MemoryInputs& inputs, Changes& all) {
  const Words divided = {"--use_distributed_optimizer", "true"};
  if (!is_divided(inputs) && inputs.grid.group_size(layout::GroupKind::kDataContext) > 1) {
    all.push_back({{divided}, "parameters are gathered each step"});
  }
  if (size_bytes(inputs.policy.main_gradients) > size_bytes(DType::kBFloat16) &&
      inputs.policy.parameters != DType::kFloat32) {
    all.push_back({{{"--grad_reduce_in_bf16", "true"}}, "coarser sums over micro-batches"});
  }
  add_narrow_moments(inputs, DType::kBFloat16, all);
  add_narrow_moments(inputs, DType::kFloat8, all);
  const bool can_be_on_host = !model::moves_matrices(inputs.optimizer.kind);
  if (can_be_on_host && inputs.optimizer.host_fraction < 1.0) {
    all.push_back({{{"--optimizer_cpu_offload", "true", "--optimizer_offload_fraction", "1"}},
                   "the optimizer's state crosses the bus in each step"});
  }
}

}  // namespace

std::vector<Change> changes(const MemoryInputs& inputs) {
  Changes all;
  add_ranks(inputs, all);
  add_stages(inputs, all);
  if (inputs.loss_fusion == model::LossFusion::kUnfused) {
    all.push_back({{{"--cross_entropy_loss_fusion", "true", "--cross_entropy_fusion_impl", "te"}}, "none"});
  }
  add_recomputation(inputs, all);
  add_state(inputs, all);
  if (inputs.micro_batch.num_sequences % 2 == 0) {
    all.push_back({{{"--micro_batch_size", std::to_string(inputs.micro_batch.num_sequences / 2)}}, "smaller products"});
  }
  return all;
}

}  // namespace primus::projection
