#include "layout/rank_grid.hpp"

#include <fmt/format.h>

#include <numeric>

#include "base/error.hpp"
#include "config/rules.hpp"

namespace primus::layout {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw UserError(message, ExitCode::kWrongInput);
}

std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) refuse("the product of the parallel sizes is beyond 2^63");
  }
  return result;
}

void check_sizes(const GridSizes& sizes) {
  const std::pair<std::string_view, std::int64_t> named[] = {{"world size", sizes.world},
                                                             {"tensor-parallel size", sizes.tensor},
                                                             {"context-parallel size", sizes.context},
                                                             {"pipeline-parallel size", sizes.pipeline},
                                                             {"expert-parallel size", sizes.expert},
                                                             {"expert-tensor-parallel size", sizes.expert_tensor}};
  for (const auto& [what, size] : named) {
    if (size < 1) refuse(fmt::format("{} {}: expected at least 1", what, size));
  }
  const std::int64_t dense = product({sizes.tensor, sizes.context, sizes.pipeline});
  const std::int64_t sparse = product({sizes.expert_tensor, sizes.expert, sizes.pipeline});
  if (sizes.world % dense != 0) {
    refuse(fmt::format("TP {} x CP {} x PP {} = {} does not divide the world size {}", sizes.tensor, sizes.context,
                       sizes.pipeline, dense, sizes.world));
  }
  if (sizes.world % sparse != 0) {
    refuse(fmt::format("ETP {} x EP {} x PP {} = {} does not divide the world size {}", sizes.expert_tensor,
                       sizes.expert, sizes.pipeline, sparse, sizes.world));
  }
}

}  // namespace

std::string_view name(GroupKind kind) {
  switch (kind) {
    case GroupKind::kTensor:
      return "tensor";
    case GroupKind::kContext:
      return "context";
    case GroupKind::kData:
      return "data";
    case GroupKind::kDataContext:
      return "data-context";
    case GroupKind::kTensorContext:
      return "tensor-context";
    case GroupKind::kTensorData:
      return "tensor-data";
    case GroupKind::kModel:
      return "model";
    case GroupKind::kPipeline:
      return "pipeline";
    case GroupKind::kExpertTensor:
      return "expert-tensor";
    case GroupKind::kExpert:
      return "expert";
    case GroupKind::kExpertTensorExpert:
      return "expert-tensor-expert";
    case GroupKind::kExpertData:
      return "expert-data";
    case GroupKind::kExpertModel:
      return "expert-model";
  }
  return "?";
}

RankGrid::RankGrid(const GridSizes& sizes, RankOrder order) : sizes_(sizes) {
  check_sizes(sizes);
  const std::int64_t stage = sizes.world / sizes.pipeline;  // ranks that hold one stage
  const std::int64_t dense = sizes.tensor * sizes.context;
  const std::int64_t sparse = sizes.expert_tensor * sizes.expert;
  tensor_ = {sizes.tensor, 1};
  context_ = {sizes.context, sizes.tensor};
  expert_tensor_ = {sizes.expert_tensor, 1};
  expert_ = {sizes.expert, sizes.expert_tensor};
  data_ = {stage / dense, dense};
  expert_data_ = {stage / sparse, sparse};
  pipeline_ = {sizes.pipeline, stage};
  if (order == RankOrder::kDataBeforePipeline) return;
  if (dense != sparse) {
    refuse(fmt::format("the order tensor, pipeline, data needs TP x CP = ETP x EP, found {} and {}", dense, sparse));
  }
  pipeline_.stride = dense;
  data_.stride = expert_data_.stride = dense * sizes.pipeline;
}

void RankGrid::check_rank(std::int64_t rank) const {
  if (rank >= 0 && rank < sizes_.world) return;
  refuse(fmt::format("rank {}: expected 0 to {}", rank, sizes_.world - 1));
}

RankPlace RankGrid::place(std::int64_t rank) const {
  check_rank(rank);
  return {.tensor = tensor_.index(rank),
          .context = context_.index(rank),
          .data = data_.index(rank),
          .pipeline = pipeline_.index(rank),
          .expert_tensor = expert_tensor_.index(rank),
          .expert = expert_.index(rank),
          .expert_data = expert_data_.index(rank)};
}

/// The axes along which a group's ranks differ, the fastest first.
std::vector<RankGrid::Axis> RankGrid::axes_of(GroupKind kind) const {
  switch (kind) {
    case GroupKind::kTensor:
      return {tensor_};
    case GroupKind::kContext:
      return {context_};
    case GroupKind::kData:
      return {data_};
    case GroupKind::kDataContext:
      return {context_, data_};
    case GroupKind::kTensorContext:
      return {tensor_, context_};
    case GroupKind::kTensorData:
      return {tensor_, data_};
    case GroupKind::kModel:
      return {tensor_, pipeline_};
    case GroupKind::kPipeline:
      return {pipeline_};
    case GroupKind::kExpertTensor:
      return {expert_tensor_};
    case GroupKind::kExpert:
      return {expert_};
    case GroupKind::kExpertTensorExpert:
      return {expert_tensor_, expert_};
    case GroupKind::kExpertData:
      return {expert_data_};
    case GroupKind::kExpertModel:
      return {expert_tensor_, expert_, pipeline_};
  }
  return {};
}

std::int64_t RankGrid::group_size(GroupKind kind) const {
  std::int64_t size = 1;
  for (const Axis& axis : axes_of(kind)) size *= axis.size;
  return size;
}

std::vector<std::int64_t> RankGrid::group(GroupKind kind, std::int64_t rank) const {
  check_rank(rank);
  const std::vector<Axis> axes = axes_of(kind);
  std::int64_t first = rank;
  for (const Axis& axis : axes) first -= axis.index(rank) * axis.stride;
  std::vector<std::int64_t> ranks = {first};
  for (const Axis& axis : axes) {
    const std::vector<std::int64_t> inner = ranks;
    for (std::int64_t i = 1; i < axis.size; ++i) {
      for (const std::int64_t one : inner) ranks.push_back(one + i * axis.stride);
    }
  }
  return ranks;
}

std::vector<std::vector<std::int64_t>> RankGrid::groups(GroupKind kind) const {
  const std::vector<Axis> axes = axes_of(kind);
  std::vector<std::vector<std::int64_t>> all;
  for (std::int64_t rank = 0; rank < sizes_.world; ++rank) {
    bool is_first = true;
    for (const Axis& axis : axes) is_first = is_first && axis.index(rank) == 0;
    if (is_first) all.push_back(group(kind, rank));
  }
  return all;
}

std::vector<std::int64_t> RankGrid::pipeline_members(std::int64_t rank, std::span<const int> pipeline_indices) const {
  const std::vector<std::int64_t> pipeline = group(GroupKind::kPipeline, rank);
  std::vector<std::int64_t> members;
  for (const int index : pipeline_indices) members.push_back(pipeline.at(static_cast<std::size_t>(index)));
  return members;
}

RankGrid rank_grid(const config::Experiment& experiment, std::int64_t world_size) {
  const config::ParallelSizes sizes = config::sizes_of(experiment);
  const bool is_reordered = experiment.get_bool("use_tp_pp_dp_mapping");
  return RankGrid({.world = world_size,
                   .tensor = sizes.tensor,
                   .context = sizes.context,
                   .pipeline = sizes.pipeline,
                   .expert = sizes.expert,
                   .expert_tensor = sizes.expert_tensor},
                  is_reordered ? RankOrder::kPipelineBeforeData : RankOrder::kDataBeforePipeline);
}

}  // namespace primus::layout
