#pragma once
// Rows by expert and back. Legend: T tokens, K top_k, R rows sorted by expert, then by token (T·K, or other numbers
// with a capacity), E experts, H width. On the CPU, row −1 is a choice that goes nowhere (filling, or dropped) and slot
// −1 a row that no choice has.
#include "ops/dtype.hpp"

namespace primus::ops {

/// offsets (int32 [E+1], exclusive prefix sums of the counts), row_of_TK (int32 [T,K], the sorted row of each choice)
/// and slot_of_R (int32 [T·K], its inverse: t·K + k) from the chosen experts index_TK (int32; −1: none).
void permute_plan(const Tensor& index_TK, std::int64_t num_experts, Tensor& offsets, Tensor& row_of_TK,
                  Tensor& slot_of_R);

/// x_RH[row_of_TK[t,k]] = x_TH[t]: each token is read once, whatever K is. Rows without a choice are left alone.
void permute_rows(const Tensor& x_TH, const Tensor& row_of_TK, Tensor& x_RH);

/// prob_R[r] = prob_TK[slot_of_R[r]], and its inverse; 0 without a slot or row.
void permute_values(const Tensor& prob_TK, const Tensor& slot_of_R, Tensor& prob_R);
void unpermute_values(const Tensor& prob_R, const Tensor& row_of_TK, Tensor& prob_TK);

/// y_TH[t] (+)= Σ_k y_RH[row_of_TK[t,k]], in the order of k. Also the backward of permute_rows.
void unpermute_sum(const Tensor& y_RH, const Tensor& row_of_TK, Tensor& y_TH, Write write);

}  // namespace primus::ops
