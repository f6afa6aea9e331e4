// dx = dy · w[e]: the right operand has rows of the result's columns.
#include "ops/gemm/gemm_grouped_sm90.cuh"

namespace primus::ops::cuda {
namespace {

template <int kRows, int kColumns, typename Mainloop, typename Epilogue>
using Dgrad = sm90::Product<cutlass::layout::RowMajor, cutlass::layout::RowMajor, sm90::Element, void,
                            cute::Shape<cute::Int<kRows>, cute::Int<kColumns>, cute::Int<64>>,
                            cute::Shape<cute::Int<2>, cute::Int<1>, cute::Int<1>>, Mainloop, Epilogue>;
using Small = Dgrad<128, 128, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong,
                    cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>;
using Large = Dgrad<128, 256, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative,
                    cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>;

}  // namespace

std::size_t grouped_dgrad_scratch_sm90(int experts, int multiprocessors) {
  const std::size_t small = sm90::scratch_bytes<Small>(experts, multiprocessors);
  const std::size_t large = sm90::scratch_bytes<Large>(experts, multiprocessors);
  return small > large ? small : large;
}

void launch_grouped_dgrad_sm90(int form, const GroupedShape& shape, const GroupedLinear<gpu::Bf16>& x,
                               int multiprocessors, void* scratch, gpu::Stream stream) {
  if (form == 0) {
    sm90::launch<GroupedProduct::kDgrad, Small>(shape, x, multiprocessors, scratch, stream);
  } else {
    sm90::launch<GroupedProduct::kDgrad, Large>(shape, x, multiprocessors, scratch, stream);
  }
}

}  // namespace primus::ops::cuda
