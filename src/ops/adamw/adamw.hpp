#pragma once
// AdamW with decoupled decay in one pass, the reductions before it, and the gate between them: what a step decides
// (clipping, skipping) stays on the device, so that a captured step can be replayed with other values (decision 16).
#include "ops/dtype.hpp"

namespace primus::ops {

/// Fixed over a run.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

/// Does weight decay apply to a parameter?
enum class Decays { kNo, kYes };

/// What an update reads, on the parameters' device.
struct UpdateGate {
  Tensor rates_2;       // fp64: learning rate, weight decay (applied to decaying parameters); the caller writes them
  Tensor grad_scale_1;  // fp64: clipping coefficient
  Tensor num_steps_1;   // int64: updates done, this one included
  Tensor proceed_1;     // int32: 0 leaves every tensor as it is
};

/// All zero: no update done, none allowed.
UpdateGate make_update_gate(at::Device device);

/// Opens or closes the gate: proceed = loss and gradient norm are finite; grad_scale = min(1, clip_grad / (norm +
/// 1e-6)), 1 when clip_grad is 0; num_steps += proceed. loss_sum, square_sum (of all gradients): fp64.
void close_gate(const Tensor& loss_sum_1, const Tensor& square_sum_1, double clip_grad, UpdateGate& gate);

/// One update, t = num_steps: g = main_grad · grad_scale; m = β1·m + (1−β1)·g; v = β2·v + (1−β2)·g²; master −=
/// lr·(decay·master + (m/(1−β1^t)) / (sqrt(v/(1−β2^t)) + ε)); weight <- master in the weight's type. When the weight is
/// itself fp32 (or fp64), pass it as `master` and `weight` alike. main_grad is left as it is.
void adamw_step(const AdamWOptions& options, const UpdateGate& gate, Decays decays, const Tensor& main_grad,
                Tensor& master, Tensor& exp_avg, Tensor& exp_avg_sq, Tensor& weight);

/// The same where the master is held in two halves: `weight`, bf16, and its low 16 bits (int16); see master_bits.hpp.
/// The master, gradient and moments are fp32.
void adamw_halves_step(const AdamWOptions& options, const UpdateGate& gate, Decays decays, const Tensor& main_grad,
                       Tensor& low_bits, Tensor& exp_avg, Tensor& exp_avg_sq, Tensor& weight);

/// fp32 masters from their halves, and back. On the CPU.
Tensor join_halves(const Tensor& weight, const Tensor& low_bits);
void split_halves(const Tensor& master, Tensor& weight, Tensor& low_bits);

/// sum_1 (fp64, on x's device) += Σ x², the same bits whatever the number of threads.
void add_sum_of_squares(const Tensor& x, Tensor& sum_1);

/// Is any element NaN or infinite? Reads back, so it is for error messages only.
bool has_nonfinite(const Tensor& x);

}  // namespace primus::ops
