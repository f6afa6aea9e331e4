#pragma once
// The table of the ops' CUDA twins. It is filled by the GPU half, a library of its own (libprimus_cuda.so) that is
// loaded on request: the programs link no CUDA library and start without a GPU. Each public op forwards CUDA tensors
// here, in one line.
#include "ops/adamw/adamw.hpp"
#include "ops/attention/attention.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/gemm/gemm.hpp"
#include "ops/permute/permute.hpp"
#include "ops/rms_norm/rms_norm.hpp"
#include "ops/rope/rope.hpp"
#include "ops/router/noise.hpp"
#include "ops/router/router.hpp"
#include "ops/swiglu/swiglu.hpp"
#include "ops/update/update.hpp"

namespace primus::ops {

/// One entry: callable like the op itself; without a twin it throws an InternalError that names the op.
template <typename Function>
class CudaOp;
template <typename Result, typename... Arguments>
class CudaOp<Result (*)(Arguments...)> {
 public:
  using Function = Result (*)(Arguments...);

  explicit CudaOp(const char* name) : name_(name) {}
  CudaOp& operator=(Function function) {
    function_ = function;
    return *this;
  }
  Result operator()(Arguments... arguments) const {
    PRIMUS_CHECK(function_ != nullptr, "{}: no CUDA twin is loaded", name_);
    return function_(static_cast<Arguments>(arguments)...);
  }

 private:
  const char* name_;
  Function function_ = nullptr;
};

#define PRIMUS_CUDA_OP(op)                  \
  CudaOp<decltype(&::primus::ops::op)> op { \
#op                                     \
  }
struct CudaOps {
  PRIMUS_CUDA_OP(linear_forward);
  PRIMUS_CUDA_OP(linear_dgrad);
  PRIMUS_CUDA_OP(linear_wgrad);
  PRIMUS_CUDA_OP(grouped_linear_forward);
  PRIMUS_CUDA_OP(grouped_linear_dgrad);
  PRIMUS_CUDA_OP(grouped_linear_wgrad);
  PRIMUS_CUDA_OP(grouped_linear_wgrad_squares);
  PRIMUS_CUDA_OP(rms_norm_forward);
  PRIMUS_CUDA_OP(rms_norm_apply);
  PRIMUS_CUDA_OP(rms_norm_backward);
  PRIMUS_CUDA_OP(mla_assemble_forward);
  PRIMUS_CUDA_OP(mla_assemble_backward);
  PRIMUS_CUDA_OP(rope_apply);
  PRIMUS_CUDA_OP(attention_forward);
  PRIMUS_CUDA_OP(attention_backward);
  PRIMUS_CUDA_OP(attention_sink_backward);
  PRIMUS_CUDA_OP(swiglu_forward);
  PRIMUS_CUDA_OP(swiglu_backward);
  PRIMUS_CUDA_OP(router_forward);
  PRIMUS_CUDA_OP(router_backward);
  PRIMUS_CUDA_OP(token_jitter);
  PRIMUS_CUDA_OP(token_normal);
  PRIMUS_CUDA_OP(permute_plan);
  PRIMUS_CUDA_OP(permute_rows);
  PRIMUS_CUDA_OP(permute_values);
  PRIMUS_CUDA_OP(unpermute_values);
  PRIMUS_CUDA_OP(unpermute_sum);
  PRIMUS_CUDA_OP(cross_entropy_forward_backward);
  PRIMUS_CUDA_OP(cross_entropy_forward);
  PRIMUS_CUDA_OP(embedding_forward);
  PRIMUS_CUDA_OP(embedding_backward);
  PRIMUS_CUDA_OP(adamw_step);
  PRIMUS_CUDA_OP(adamw_halves_step);
  PRIMUS_CUDA_OP(stored_update);
  PRIMUS_CUDA_OP(close_gate);
  PRIMUS_CUDA_OP(add_sum_of_squares);
  PRIMUS_CUDA_OP(has_nonfinite);
};
#undef PRIMUS_CUDA_OP

/// The loaded table; before load_cuda_plugin() one without entries.
const CudaOps& cuda_ops();

}  // namespace primus::ops
