#pragma once
// What happens inside a pair of a forward and a backward (Pairing::kWithNext): each layer falls into phases, and the
// token exchange of one pass runs beneath the arithmetic of the other (semantics.md 6.1).
#include <cstdint>
#include <string_view>
#include <vector>

#include "schedule/schedule.hpp"
#include "schedule/timing.hpp"

namespace primus::schedule {

enum class PhaseKind : std::uint8_t {
  kAttention,  // with norms and router: all before the exchange
  kDispatch,   // tokens (or their gradients) to their experts
  kExperts,
  kCombine,  // and back
  kExpertsWeightGrad,
  kAttentionWeightGrad,
};
std::string_view name(PhaseKind kind);

enum class Pass : std::uint8_t { kForward, kBackward };
enum class Stream : std::uint8_t { kCompute, kExchange };

struct Phase {
  PhaseKind kind = PhaseKind::kAttention;
  Pass pass = Pass::kForward;
  int layer = 0;  // of its pass, in the order in which that pass comes to it
  Stream stream = Stream::kCompute;
  std::vector<int> after;  // phases whose results it reads
};

/// The phases of a pair in the order in which every rank issues them: forward layer j beside the j-th layer of the
/// backward, what one pass has more of by itself. Every rank of an expert group sees exchanges in this order.
std::vector<Phase> pair_phases(int num_forward_layers, int num_backward_layers, WeightGrad weight_grad);

/// Check: every phase of every layer once, nothing before what it reads. Throws InternalError.
void verify(const std::vector<Phase>& phases, int num_forward_layers, int num_backward_layers, WeightGrad weight_grad);

/// How long a layer's phases take; a dispatch and a combine move the same bytes, either way.
struct PhaseTimes {
  double attention = 0.0;
  double experts = 0.0;
  double exchange = 0.0;
  double attention_backward = 0.0;  // input gradient
  double experts_backward = 0.0;
  double attention_weight_grad = 0.0;
  double experts_weight_grad = 0.0;

  double forward() const { return attention + experts + 2.0 * exchange; }
  double backward() const { return attention_backward + experts_backward + 2.0 * exchange; }
  double weight_grad() const { return attention_weight_grad + experts_weight_grad; }
};

/// Spans of the phases when each stream works through its own in order.
std::vector<Span> timed(const std::vector<Phase>& phases, const PhaseTimes& forward, const PhaseTimes& backward);

}  // namespace primus::schedule
