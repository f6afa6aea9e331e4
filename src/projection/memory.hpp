#pragma once
// Bytes of every rank, added up from what the layers declare: resident state, activations in flight, what a pass holds
// for a moment.
#include <array>
#include <string>
#include <vector>

#include "projection/activations.hpp"
#include "projection/working_set.hpp"

namespace primus::projection {

enum class Category {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,    // kept from forward to backward, of all micro-batches in flight
  kRemade,         // made again for the backward that runs
  kDispatch,       // rows on their way to experts and back
  kCommunication,  // messages of other kinds
  kWorkingSet,
  kFramework,  // driver, libraries, communicators
};
inline constexpr int kNumCategories = 9;
std::string_view name(Category category);

/// What one component of the model takes on a rank for a whole run.
struct ComponentMemory {
  std::int64_t num_parameters = 0;
  model::ResidentBytes bytes;
};

/// A pipeline rank. All ranks of a stage are alike: they differ in which shards they hold, not in how much.
struct RankMemory {
  int pipeline_rank = 0;
  std::array<ComponentMemory, model::kNumComponents> components{};
  ComponentMemory copies;  // of the word embedding, where another stage has the original
  std::vector<ChunkMemory> chunks;
  schedule::Action peak_pass;  // where activations are most
  std::int64_t remade = 0;
  std::int64_t gradients_to_come = 0;  // at the peak, of a step whose gradients are allocated as backward reaches them
  std::int64_t given_back = 0;         // alike, of the activations in flight
  WorkingSet working;
  FrameworkBytes framework;

  std::int64_t num_parameters() const;  // without copies
  std::int64_t num_layers() const;
  model::ResidentBytes resident() const;
  std::int64_t saved(model::SavedCategory category) const;  // in flight
  std::int64_t bytes(Category category) const;
  /// What is there for a moment only: made again, dispatch, communication and the working set.
  std::int64_t transient() const;
  std::int64_t total() const;
  /// Chunk activations in flight at the peak.
  int in_flight() const;
};

struct MemoryProjection {
  std::vector<RankMemory> ranks;  // by pipeline rank

  const RankMemory& worst() const;
};

/// Throws UserError (wrong input) for a model with a memory_gap().
MemoryProjection project_memory(const MemoryInputs& inputs);

/// Parameters of one rank of each stage, copies left out; of any model.
std::vector<std::int64_t> parameters_by_stage(const MemoryInputs& inputs);

}  // namespace primus::projection
