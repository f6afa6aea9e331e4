// y = x · w[e]ᵀ: both operands have rows of the summed dimension.
#include "ops/gemm/gemm_grouped_sm90.cuh"

namespace primus::ops::cuda {
namespace {

using Forward = sm90::Product<
    cutlass::layout::RowMajor, cutlass::layout::ColumnMajor, sm90::Element, void,
    cute::Shape<cute::Int<64>, cute::Int<256>, cute::Int<64>>, cute::Shape<cute::Int<2>, cute::Int<1>, cute::Int<1>>,
    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong, cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>;

}  // namespace

std::size_t grouped_forward_scratch_sm90(int experts, int multiprocessors) {
  return sm90::scratch_bytes<Forward>(experts, multiprocessors);
}

void launch_grouped_forward_sm90(const GroupedShape& shape, const GroupedLinear<gpu::Bf16>& x, int multiprocessors,
                                 void* scratch, gpu::Stream stream) {
  sm90::launch<GroupedProduct::kForward, Forward>(shape, x, multiprocessors, scratch, stream);
}

}  // namespace primus::ops::cuda
