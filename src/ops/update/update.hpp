#pragma once
// One optimizer step, element by element, on state in any of the types of ops/state: AdamW where not everything is
// fp32, gradient descent with momentum, Lion. On the CPU only; adamw_step is the fused form of the usual case.
#include "ops/adamw/adamw.hpp"
#include "ops/state/state.hpp"

namespace primus::ops {

/// g: the gradient times the gate's factor, λ: the decay, w: the master weight.
/// kAdamW: as adamw_step. kSgd (torch.optim.SGD): m = β1·m + g + λ·w; w −= lr·m. kLion: w −= lr·(sign(β1·m + (1−β1)·g)
/// + λ·w); m = β2·m + (1−β2)·g.
enum class UpdateRule { kAdamW, kSgd, kLion };

/// The state of one parameter. Without a master copy the weight is it; only AdamW has a second moment.
struct UpdateState {
  StoredState master;
  StoredState first_moment;
  StoredState second_moment;
  std::uint64_t key = 0;  // of the parameter: what its roundings depend on besides the step
};

/// `gradient`: in the accumulator's type or bf16; left as it is. Does nothing where the gate is closed.
void stored_update(UpdateRule rule, const AdamWOptions& options, const UpdateGate& gate, Decays decays,
                   const Tensor& gradient, UpdateState& state, Tensor& weight);

/// The key that step `num_steps` rounds state number `which` of a parameter by.
Rounding rounding_of(std::uint64_t parameter_key, std::int64_t num_steps, int which);

}  // namespace primus::ops
