#include "projection/memory.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.hpp"

namespace primus::projection {
namespace {

using Components = std::array<ComponentMemory, model::kNumComponents>;

void add(const ComponentMemory& more, ComponentMemory& sum) {
  sum.num_parameters += more.num_parameters;
  sum.bytes += more.bytes;
}

ComponentMemory memory_of(const MemoryInputs& inputs, const model::ParameterDescriptor& parameter) {
  return {model::local_elements(parameter, inputs.sharding.model),
          model::resident_bytes({&parameter, 1}, inputs.optimizer, inputs.policy, inputs.sharding)};
}

Components components_of(const MemoryInputs& inputs, std::span<const model::ParameterDescriptor> parameters) {
  Components components{};
  for (const model::ParameterDescriptor& parameter : parameters) {
    add(memory_of(inputs, parameter), components[static_cast<std::size_t>(parameter.component)]);
  }
  return components;
}

/// Layers of a kind are described once: to name each of a hundred costs more than to add them up.
class ComponentSums {
 public:
  explicit ComponentSums(const MemoryInputs& inputs) : inputs_(inputs) {}

  void add_stage(const model::StageContent& content, Components& sum) {
    for (int layer = content.first_layer; layer < content.first_layer + content.num_layers; ++layer) {
      add_all(layer_sum(layer), sum);
    }
    model::StageContent ends = content;
    ends.num_layers = 0;
    add_all(components_of(inputs_, model::stage_parameters(inputs_.spec, ends)), sum);
  }

 private:
  static void add_all(const Components& more, Components& sum) {
    for (std::size_t i = 0; i < sum.size(); ++i) add(more[i], sum[i]);
  }

  const Components& layer_sum(int layer) {
    const auto key = std::pair(inputs_.spec.likeness(layer), inputs_.optimizer.place(layer));
    const auto found = by_kind_.find(key);
    if (found != by_kind_.end()) return found->second;
    return by_kind_.emplace(key, components_of(inputs_, model::layer_parameters(inputs_.spec, layer))).first->second;
  }

  const MemoryInputs& inputs_;
  std::map<std::pair<model::LayerLikeness, model::StatePlace>, Components> by_kind_;
};

void find_peak(const std::vector<schedule::Action>& actions, RankMemory& rank) {
  std::int64_t peak = -1;
  std::vector<int> at_peak;
  walk_activations(actions, rank.chunks, [&](const PassMemory& pass, const std::vector<int>& in_flight) {
    if (pass.peak <= peak) return;
    peak = pass.peak;
    rank.peak_pass = actions[pass.index];
    at_peak = in_flight;
  });
  std::int64_t kept = 0;
  for (std::size_t i = 0; i < rank.chunks.size(); ++i) {
    rank.chunks[i].in_flight = at_peak.empty() ? 0 : at_peak[i];
    kept += rank.chunks[i].in_flight * rank.chunks[i].kept();
  }
  rank.remade = peak - kept;
}

/// Of a step of one micro-batch, whose gradients take the place of freed activations: what is there at the fullest
/// moment of its two passes.
void put_together(RankMemory& rank) {
  const ChunkMemory& chunk = rank.chunks.front();
  const auto total = [](const model::PassPeaks& pass) { return pass.fullest.total() + pass.scratch; };
  const bool is_forward = total(chunk.passes.forward) > total(chunk.passes.backward);
  const model::PassPeaks& pass = is_forward ? chunk.passes.forward : chunk.passes.backward;
  const std::int64_t kept = chunk.in_flight * chunk.kept();
  rank.peak_pass.kind = is_forward ? schedule::ActionKind::kForward : schedule::ActionKind::kBackward;
  rank.gradients_to_come = rank.resident().main_gradients - pass.fullest.gradients;
  rank.given_back = std::max<std::int64_t>(kept - pass.fullest.saved, 0);
  rank.remade = std::max<std::int64_t>(pass.fullest.saved - kept, 0);
  rank.working.dispatch = pass.fullest.rows;
  rank.working.compute = pass.fullest.workspace - pass.fullest.rows + pass.scratch;
}

/// The word embedding of a rank that reads it without owning it.
ComponentMemory copies_of(const MemoryInputs& inputs, int rank) {
  const std::vector<model::StageContent> chunks = inputs.stages.on_rank(rank);
  const bool owns = std::any_of(chunks.begin(), chunks.end(), [](const model::StageContent& chunk) {
    return chunk.embedding == model::Part::kPresent;
  });
  const std::vector<int> readers = inputs.stages.embedding_ranks(inputs.spec.output_weight);
  if (owns || std::find(readers.begin(), readers.end(), rank) == readers.end()) return {};
  return memory_of(inputs, model::word_embedding(inputs.spec));
}

}  // namespace

std::string_view name(Category category) {
  switch (category) {
    case Category::kParameters:
      return "parameters";
    case Category::kGradients:
      return "gradients";
    case Category::kOptimizer:
      return "optimizer";
    case Category::kActivations:
      return "activations";
    case Category::kRemade:
      return "made again";
    case Category::kDispatch:
      return "dispatch";
    case Category::kCommunication:
      return "communication";
    case Category::kWorkingSet:
      return "working set";
    case Category::kFramework:
      return "framework";
  }
  return "?";
}

std::int64_t RankMemory::num_parameters() const {
  std::int64_t count = 0;
  for (const ComponentMemory& component : components) count += component.num_parameters;
  return count;
}

std::int64_t RankMemory::num_layers() const {
  std::int64_t count = 0;
  for (const ChunkMemory& chunk : chunks) count += chunk.content.num_layers;
  return count;
}

model::ResidentBytes RankMemory::resident() const {
  model::ResidentBytes bytes = copies.bytes;
  for (const ComponentMemory& component : components) bytes += component.bytes;
  return bytes;
}

std::int64_t RankMemory::saved(model::SavedCategory category) const {
  std::int64_t bytes = 0;
  for (const ChunkMemory& chunk : chunks) bytes += chunk.in_flight * chunk.saved[static_cast<std::size_t>(category)];
  return bytes;
}

int RankMemory::in_flight() const {
  int count = 0;
  for (const ChunkMemory& chunk : chunks) count += chunk.in_flight;
  return count;
}

std::int64_t RankMemory::bytes(Category category) const {
  switch (category) {
    case Category::kParameters:
      return resident().parameters;
    case Category::kGradients:
      return resident().main_gradients - gradients_to_come;
    case Category::kOptimizer:
      return resident().optimizer;
    case Category::kActivations: {
      std::int64_t bytes = 0;
      for (const ChunkMemory& chunk : chunks) bytes += chunk.in_flight * chunk.kept();
      return bytes - given_back;
    }
    case Category::kRemade:
      return remade;
    case Category::kDispatch:
      return working.dispatch;
    case Category::kCommunication:
      return working.communication;
    case Category::kWorkingSet:
      return working.compute;
    case Category::kFramework:
      return framework.total();
  }
  return 0;
}

std::int64_t RankMemory::transient() const {
  return bytes(Category::kRemade) + bytes(Category::kDispatch) + bytes(Category::kCommunication) +
         bytes(Category::kWorkingSet);
}

std::int64_t RankMemory::total() const {
  std::int64_t bytes = 0;
  for (int i = 0; i < kNumCategories; ++i) bytes += this->bytes(static_cast<Category>(i));
  return bytes;
}

const RankMemory& MemoryProjection::worst() const {
  return *std::max_element(ranks.begin(), ranks.end(),
                           [](const RankMemory& a, const RankMemory& b) { return a.total() < b.total(); });
}

std::vector<std::int64_t> parameters_by_stage(const MemoryInputs& inputs) {
  ComponentSums sums(inputs);
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < inputs.stages.num_ranks(); ++rank) {
    RankMemory memory;
    for (const model::StageContent& content : inputs.stages.on_rank(rank)) sums.add_stage(content, memory.components);
    counts.push_back(memory.num_parameters());
  }
  return counts;
}

MemoryProjection project_memory(const MemoryInputs& inputs) {
  if (const auto gap = memory_gap(inputs.spec)) {
    throw UserError(*gap + ": its memory cannot be projected", ExitCode::kWrongInput);
  }
  MemoryProjection projection;
  ComponentSums sums(inputs);
  const schedule::Order order = schedule::compute_order(inputs.schedule);
  const FrameworkBytes framework = framework_bytes(inputs.grid);
  for (int rank = 0; rank < inputs.stages.num_ranks(); ++rank) {
    RankMemory memory;
    memory.pipeline_rank = rank;
    const std::vector<model::StageContent> chunks = inputs.stages.on_rank(rank);
    for (const model::StageContent& content : chunks) sums.add_stage(content, memory.components);
    memory.chunks = chunks_of(inputs, rank);
    memory.copies = copies_of(inputs, rank);
    memory.working = working_set(inputs, memory.chunks);
    memory.framework = framework;
    find_peak(order.at(static_cast<std::size_t>(rank)), memory);
    if (gradients_of(inputs) == model::PassGradients::kAsTheyCome) put_together(memory);
    projection.ranks.push_back(std::move(memory));
  }
  return projection;
}

}  // namespace primus::projection
