#pragma once
// Inside the GPU half: each op's *_cuda.cpp puts its twins into the table with one function, declared here.
#include "ops/cuda_ops.hpp"

namespace primus::ops::cuda {

void register_rms_norm(CudaOps& ops);
void register_swiglu(CudaOps& ops);
void register_permute(CudaOps& ops);
void register_router(CudaOps& ops);
void register_router_noise(CudaOps& ops);
void register_rope(CudaOps& ops);
void register_cross_entropy(CudaOps& ops);
void register_embedding(CudaOps& ops);
void register_adamw(CudaOps& ops);
void register_update(CudaOps& ops);
void register_gemm(CudaOps& ops);
void register_grouped_gemm(CudaOps& ops);
void register_attention(CudaOps& ops);

/// The twin of add_sum_of_squares, for ops that have it as a part.
void add_squares(const Tensor& x, Tensor& sum_1);

}  // namespace primus::ops::cuda
