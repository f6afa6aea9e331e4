#include "ops/rope/rope_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

/// With `const T` for a tensor that is only read.
template <typename T>
Heads<T> heads_of(const Tensor& x_TAD) {
  return {gpu::data<std::remove_const_t<T>>(x_TAD), x_TAD.stride(0), x_TAD.dim() == 3 ? x_TAD.stride(1) : 0};
}

RopeTables tables_of(const Tensor& cos_SP, const Tensor& sin_SP) {
  return {gpu::data<float>(cos_SP), gpu::data<float>(sin_SP), static_cast<int>(cos_SP.size(0)),
          static_cast<int>(cos_SP.size(1))};
}

PairLayout layout_of(RopeLayout layout) {
  return layout == RopeLayout::kHalves ? PairLayout::kHalves : PairLayout::kInterleaved;
}

RopeShape shape_of(const Tensor& q_TAQ, const Tensor& v_TAV, const Tensor& cos_SP) {
  return {q_TAQ.size(0), static_cast<int>(q_TAQ.size(1)), static_cast<int>(q_TAQ.size(2) - 2 * cos_SP.size(1)),
          static_cast<int>(v_TAV.size(2))};
}

void assemble_forward(const Tensor& kv_TAD, const Tensor& k_pe_TP, const Tensor& cos_SP, const Tensor& sin_SP,
                      RopeLayout layout, Tensor& q_TAQ, Tensor& k_TAQ, Tensor& v_TAV) {
  gpu::dispatch(kv_TAD.scalar_type(), "mla_assemble_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_mla_assemble_forward<T>(shape_of(q_TAQ, v_TAV, cos_SP), tables_of(cos_SP, sin_SP), layout_of(layout),
                                   {heads_of<const T>(kv_TAD), heads_of<const T>(k_pe_TP), heads_of<T>(q_TAQ),
                                    heads_of<T>(k_TAQ), heads_of<T>(v_TAV)},
                                   gpu::current_stream());
  });
}

void assemble_backward(const Tensor& dk_TAQ, const Tensor& dv_TAV, const Tensor& cos_SP, const Tensor& sin_SP,
                       RopeLayout layout, Tensor& dq_TAQ, Tensor& dkv_TAD, Tensor& dk_pe_TP) {
  gpu::dispatch(dkv_TAD.scalar_type(), "mla_assemble_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_mla_assemble_backward<T>(shape_of(dq_TAQ, dv_TAV, cos_SP), tables_of(cos_SP, sin_SP), layout_of(layout),
                                    {heads_of<const T>(dk_TAQ), heads_of<const T>(dv_TAV), heads_of<T>(dq_TAQ),
                                     heads_of<T>(dkv_TAD), heads_of<T>(dk_pe_TP)},
                                    gpu::current_stream());
  });
}

void apply(const Tensor& cos_SP, const Tensor& sin_SP, RopeLayout layout, RopeDirection direction, Tensor& x_TAD) {
  gpu::dispatch(x_TAD.scalar_type(), "rope_apply", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_rope<T>(x_TAD.size(0), static_cast<int>(x_TAD.size(1)), tables_of(cos_SP, sin_SP), layout_of(layout),
                   direction == RopeDirection::kForward ? 1.0F : -1.0F, heads_of<T>(x_TAD), gpu::current_stream());
  });
}

}  // namespace

void register_rope(CudaOps& ops) {
  ops.mla_assemble_forward = assemble_forward;
  ops.mla_assemble_backward = assemble_backward;
  ops.rope_apply = apply;
}

}  // namespace primus::ops::cuda
