// main_grad[e] (+)= dyᵀ · x, in fp32: sums over the rows of a group, of which there may be any number.
#include "ops/gemm/gemm_grouped_sm90.cuh"

namespace primus::ops::cuda {
namespace {

using Wgrad = sm90::Product<
    cutlass::layout::ColumnMajor, cutlass::layout::RowMajor, float, float,
    cute::Shape<cute::Int<128>, cute::Int<128>, cute::Int<64>>, cute::Shape<cute::Int<2>, cute::Int<1>, cute::Int<1>>,
    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong, cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>;

}  // namespace

std::size_t grouped_wgrad_scratch_sm90(int experts, int multiprocessors) {
  return sm90::scratch_bytes<Wgrad>(experts, multiprocessors);
}

void launch_grouped_wgrad_sm90(const GroupedShape& shape, const GroupedWgrad<gpu::Bf16>& x, Write write,
                               int multiprocessors, void* scratch, gpu::Stream stream) {
  sm90::launch<GroupedProduct::kWgrad, Wgrad>(shape, x, multiprocessors, scratch, stream, write);
}

}  // namespace primus::ops::cuda
