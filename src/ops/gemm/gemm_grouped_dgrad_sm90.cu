// dx = dy · w[e]: the right operand has rows of the result's columns.
#include "ops/gemm/gemm_grouped_sm90.cuh"

namespace primus::ops::cuda {
namespace {

using Dgrad = sm90::Product<
    cutlass::layout::RowMajor, cutlass::layout::RowMajor, sm90::Element, void,
    cute::Shape<cute::Int<128>, cute::Int<128>, cute::Int<64>>, cute::Shape<cute::Int<2>, cute::Int<1>, cute::Int<1>>,
    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong, cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>;

}  // namespace

std::size_t grouped_dgrad_scratch_sm90(int experts, int multiprocessors) {
  return sm90::scratch_bytes<Dgrad>(experts, multiprocessors);
}

void launch_grouped_dgrad_sm90(const GroupedShape& shape, const GroupedLinear<gpu::Bf16>& x, int multiprocessors,
                               void* scratch, gpu::Stream stream) {
  sm90::launch<GroupedProduct::kDgrad, Dgrad>(shape, x, multiprocessors, scratch, stream);
}

}  // namespace primus::ops::cuda
