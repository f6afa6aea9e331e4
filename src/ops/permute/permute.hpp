#pragma once
// Rows by expert and back. Legend: T tokens, K top_k, R = T·K rows sorted by expert, then by token, E experts, H width.
#include "ops/dtype.hpp"

namespace primus::ops {

/// offsets (int32 [E+1], exclusive prefix sums of the counts), row_of_TK (int32 [T,K], the sorted row of each choice)
/// and slot_of_R (int32 [R], its inverse: t·K + k) from the chosen experts index_TK (int32).
void permute_plan(const Tensor& index_TK, std::int64_t num_experts, Tensor& offsets, Tensor& row_of_TK,
                  Tensor& slot_of_R);

/// x_RH[row_of_TK[t,k]] = x_TH[t]: each token is read once, whatever K is.
void permute_rows(const Tensor& x_TH, const Tensor& row_of_TK, Tensor& x_RH);

/// prob_R[r] = prob_TK[slot_of_R[r]], and its inverse.
void permute_values(const Tensor& prob_TK, const Tensor& slot_of_R, Tensor& prob_R);
void unpermute_values(const Tensor& prob_R, const Tensor& row_of_TK, Tensor& prob_TK);

/// y_TH[t] (+)= Σ_k y_RH[row_of_TK[t,k]], in the order of k. Also the backward of permute_rows.
void unpermute_sum(const Tensor& y_RH, const Tensor& row_of_TK, Tensor& y_TH, Write write);

}  // namespace primus::ops
