#include "projection/activations.hpp"

#include <algorithm>
#include <numeric>

#include "base/error.hpp"

namespace primus::projection {
namespace {

ChunkMemory chunk_memory(const MemoryInputs& inputs, const model::StageContent& content) {
  model::SavedDeclaration declared = model::stage_saved(inputs.spec, inputs.policy, inputs.micro_batch,
                                                        inputs.loss_fusion, content, inputs.sharding.model);
  model::mark_recomputed_stage(inputs.spec, inputs.recompute, content, declared);
  ChunkMemory chunk;
  chunk.content = content;
  declared.add_by_category(chunk.saved.data());
  chunk.passes = model::pass_peaks({.spec = inputs.spec,
                                    .policy = inputs.policy,
                                    .batch = inputs.micro_batch,
                                    .fusion = inputs.loss_fusion,
                                    .content = content,
                                    .sharding = inputs.sharding.model,
                                    .scratch = inputs.scratch,
                                    .gradients = gradients_of(inputs),
                                    .left_out = {}},
                                   declared);
  return chunk;
}

}  // namespace

std::int64_t ChunkMemory::kept() const {
  return std::accumulate(saved.begin(), saved.end(), std::int64_t{0});
}

std::vector<ChunkMemory> chunks_of(const MemoryInputs& inputs, int rank) {
  std::vector<ChunkMemory> chunks;
  for (const model::StageContent& content : inputs.stages.on_rank(rank)) {
    chunks.push_back(chunk_memory(inputs, content));
  }
  return chunks;
}

void walk_activations(std::span<const schedule::Action> actions, std::span<const ChunkMemory> chunks,
                      const PassVisit& visit) {
  std::vector<int> in_flight(chunks.size(), 0);
  std::int64_t held = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const schedule::Action& action = actions[i];
    if (!schedule::is_compute(action.kind)) continue;
    const auto index = static_cast<std::size_t>(action.chunk.value);
    PRIMUS_CHECK(index < chunks.size(), "chunk {} of a rank with {}", index, chunks.size());
    const ChunkMemory& chunk = chunks[index];
    const std::int64_t kept = chunk.kept();
    PassMemory pass{i, held, held};
    if (action.kind == schedule::ActionKind::kForward) {
      pass.peak = held + chunk.passes.forward.saved;
      pass.held = held + kept;
      // The pass that ends has all that it keeps: counted among what is in flight.
      ++in_flight[index];
      visit(pass, in_flight);
    } else {
      if (action.kind == schedule::ActionKind::kBackward) pass.peak = held - kept + chunk.passes.backward.saved;
      const bool ends = schedule::ends_activation(action);
      if (ends) pass.held = held - kept;
      visit(pass, in_flight);
      if (ends) --in_flight[index];
      PRIMUS_CHECK(in_flight[index] >= 0 && pass.held >= 0, "a backward before its forward");
    }
    held = pass.held;
  }
}

std::vector<schedule::Held> held_activations(std::span<const schedule::Action> actions,
                                             std::span<const schedule::Span> spans,
                                             std::span<const ChunkMemory> chunks) {
  PRIMUS_CHECK(actions.size() == spans.size(), "{} actions with {} spans", actions.size(), spans.size());
  std::vector<schedule::Held> held;
  walk_activations(actions, chunks, [&](const PassMemory& pass, const std::vector<int>&) {
    const schedule::Span& span = spans[pass.index];
    const bool is_second_of_pair =
        pass.index > 0 && actions[pass.index - 1].pairing == schedule::Pairing::kWithNext && held.size() >= 2;
    const auto peak = static_cast<double>(pass.peak);
    const auto rest = static_cast<double>(pass.held);
    if (is_second_of_pair) {
      // Both halves run at once: one step up, one down.
      held[held.size() - 2].amount = std::max(held[held.size() - 2].amount, peak);
      held.back() = {std::max(held.back().time, span.end), rest};
      return;
    }
    held.push_back({span.start, peak});
    held.push_back({span.end, rest});
  });
  return held;
}

}  // namespace primus::projection
