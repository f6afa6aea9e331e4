#pragma once
// One optimizer step, element by element, on state in any of the types of ops/state: AdamW where not everything is
// fp32, gradient descent with momentum, Lion. adamw_step is the fused form of the usual case.
#include "ops/adamw/adamw.hpp"
#include "ops/adamw/update_element.hpp"
#include "ops/state/state.hpp"

namespace primus::ops {

/// The state of one parameter. Without a master copy the weight is it; only AdamW has a second moment.
struct UpdateState {
  StoredState master;
  Tensor low_bits;  // instead of a master copy: the bits that the bf16 weight lacks (adamw_halves_step)
  StoredState first_moment;
  StoredState second_moment;
  std::uint64_t key = 0;  // of the parameter: what its roundings depend on besides the step
};

/// `gradient`: in the accumulator's type or bf16; left as it is. Does nothing where the gate is closed. On a GPU
/// weights are fp32 or bf16; state comes out as on the CPU but for the last bit of what is rounded to nearest.
void stored_update(UpdateRule rule, const AdamWOptions& options, const UpdateGate& gate, Decays decays,
                   const Tensor& gradient, UpdateState& state, Tensor& weight);

}  // namespace primus::ops
