#pragma once
// Everything that the bytes of a run follow from, out of its experiment.
#include <optional>
#include <string>

#include "layout/rank_grid.hpp"
#include "model/op_scratch.hpp"
#include "model/optimizer_spec.hpp"
#include "model/pass_peaks.hpp"
#include "model/recompute.hpp"
#include "schedule/from_experiment.hpp"

namespace primus::projection {

/// How context ranks exchange keys and values.
enum class ContextExchange { kRing, kGather, kHeads };

/// Who carries rows to their experts: a buffer as large as what is sent, or a library's own of fixed size.
enum class RowExchange { kAllToAll, kFixedBuffers };

/// Settings that change nothing here, or are counted in another way, and that the original's accounting asks about.
struct OriginalsView {
  enum class Attention { kFlash, kWholeScores } attention = Attention::kFlash;
  enum class Recompute { kByPlace, kByNumber } recompute = Recompute::kByPlace;  // kByNumber: recompute_layer_ids
};

struct MemoryInputs {
  model::ModelSpec spec;
  model::NumericPolicy policy;
  model::OptimizerSpec optimizer;
  model::RecomputeSpec recompute;
  model::LossFusion loss_fusion = model::LossFusion::kUnfused;
  model::BatchShape micro_batch;
  model::ResidentSharding sharding;
  layout::RankGrid grid;
  layout::StageLayout stages;
  schedule::Request schedule;
  ContextExchange context_exchange = ContextExchange::kRing;
  RowExchange row_exchange = RowExchange::kAllToAll;
  OriginalsView original = {};
  model::OpScratch scratch = {.device = model::OpDevice::kGpu};
};

/// What a model has whose activations no declaration describes yet, in words.
std::optional<std::string> memory_gap(const model::ModelSpec& spec);

/// On a GPU. `experiment` has been resolved on this world. `imbalance`: rows of the busiest rank over the balanced
/// number, at least 1. Throws ConfigError where the batch does not divide, or where bytes could not be counted.
MemoryInputs memory_inputs(const config::Experiment& experiment, std::int64_t world_size, double imbalance);

/// The same run with its layers on these stages, under this schedule.
MemoryInputs memory_inputs_on(const config::Experiment& experiment, std::int64_t world_size, double imbalance,
                              const layout::StageLayout& stages, const schedule::Request& schedule);

/// The same run on a CPU, which holds masters whole and takes other scratch.
MemoryInputs on_host(MemoryInputs inputs);

/// How main gradients are held: on one GPU, in a step of one micro-batch, they are allocated as backward reaches them.
model::PassGradients gradients_of(const MemoryInputs& inputs);

/// The rows of the busiest rank's experts over the balanced number as they are counted: the imbalance that was asked
/// for, as far as so many rows can exist.
double counted_imbalance(const MemoryInputs& inputs);

}  // namespace primus::projection
