#pragma once
// Dense and grouped matrix products behind one small interface, so that dtype, library and (later) scales stay here.
// Legend: T tokens, I inputs, O outputs, R rows sorted by expert, E experts.
#include "ops/dtype.hpp"

namespace primus::ops {

/// y_TO (+)= x_TI · w_OIᵀ. x and y may have a row stride larger than their width. bf16 operands are multiplied in fp32.
void linear_forward(const Tensor& x_TI, const Tensor& w_OI, Tensor& y_TO, Write write = Write::kOverwrite);

/// dx_TI (+)= dy_TO · w_OI.
void linear_dgrad(const Tensor& dy_TO, const Tensor& w_OI, Tensor& dx_TI, Write write = Write::kOverwrite);

/// main_grad_OI (+)= dy_TOᵀ · x_TI; main_grad is fp32 (fp64 beside fp64 operands).
void linear_wgrad(const Tensor& dy_TO, const Tensor& x_TI, Tensor& main_grad_OI, Write write = Write::kAccumulate);

/// y_RO = x_RI · w_EOI[e]ᵀ for the rows offsets[e] .. offsets[e+1] of each expert; offsets int32 [E+1], on x's device.
/// Rows past offsets[E] are neither read nor written. On a GPU x and w have one type, and nobody checks the offsets:
/// they begin at 0, never fall and end within the rows.
void grouped_linear_forward(const Tensor& x_RI, const Tensor& w_EOI, const Tensor& offsets, Tensor& y_RO);

/// dx_RI = dy_RO · w_EOI[e], by group.
void grouped_linear_dgrad(const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& offsets, Tensor& dx_RI);

/// main_grad_EOI[e] (+)= dy_RO[group]ᵀ · x_RI[group]: of an empty group nothing is added, or 0 is written.
void grouped_linear_wgrad(const Tensor& dy_RO, const Tensor& x_RI, const Tensor& offsets, Tensor& main_grad_EOI,
                          Write write = Write::kAccumulate);

/// main_grad_EOI overwritten as above, and square_sum_1 (fp64, on its device) += Σ of its squares: on a GPU they are
/// added up as the product is written, in an order of its own and the first hundred or so in fp32.
void grouped_linear_wgrad_squares(const Tensor& dy_RO, const Tensor& x_RI, const Tensor& offsets, Tensor& main_grad_EOI,
                                  Tensor& square_sum_1);

}  // namespace primus::ops
