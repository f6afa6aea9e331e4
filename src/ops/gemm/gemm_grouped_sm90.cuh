#pragma once
// One grouped product on Hopper's tensor cores, by CUTLASS: persistent blocks walk over the tiles of all groups, whose
// shapes and addresses a kernel of ours derives from the offsets on the device, so the host never waits.
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "ops/gemm/gemm_grouped.hpp"

#define PRIMUS_CUTLASS_CHECK(call)                                                                           \
  do {                                                                                                       \
    const cutlass::Status primus_status = (call);                                                            \
    if (primus_status != cutlass::Status::kSuccess)                                                          \
      ::primus::gpu::throw_error(__FILE__, __LINE__, #call, cutlass::cutlassGetStatusString(primus_status)); \
  } while (false)

namespace primus::ops::cuda::sm90 {

using Element = cutlass::bfloat16_t;
using GroupShape = cute::Shape<int, int, int>;
using cute::Int;

/// result_MN (+)= left_MK · right_KN; layouts as CUTLASS names them (right: ColumnMajor = rows of K).
/// Source: the type of what is added to, or void.
template <typename LeftLayout, typename RightLayout, typename Result, typename Source, typename Tile, typename Cluster,
          typename Mainloop, typename Epilogue,
          typename Fusion = cutlass::epilogue::fusion::LinearCombination<Result, float, Result, float>>
struct Product {
  using ResultLayout = cutlass::layout::RowMajor;
  static constexpr int kAlignment = 8;
  static constexpr int kResultAlignment = 16 / static_cast<int>(sizeof(Result));

  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Source, ResultLayout*, kResultAlignment, Result,
      ResultLayout*, kResultAlignment, Epilogue, Fusion>::CollectiveOp;
  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, LeftLayout*, kAlignment, Element, RightLayout*,
      kAlignment, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      Mainloop>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<GroupShape>, CollectiveMainloop,
                                                      CollectiveEpilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  using Output = Result;

  using LeftStride = typename Kernel::InternalStrideA;
  using RightStride = typename Kernel::InternalStrideB;
  using ResultStride = typename Kernel::InternalStrideD;
  static constexpr bool kAdds = !std::is_void_v<Source>;
};

/// What the set-up kernel writes, one entry a group.
template <typename P>
struct Groups {
  GroupShape* shape;
  const Element** left;
  const Element** right;
  typename P::Output** result;
  typename P::LeftStride* left_stride;
  typename P::RightStride* right_stride;
  typename P::ResultStride* result_stride;
};

/// Lays the arrays out in scratch; gives the bytes that they take.
template <typename P>
std::size_t place(int experts, void* scratch, Groups<P>& groups) {
  std::size_t offset = 0;
  const auto next = [&](auto*& array) {
    using Item = std::remove_reference_t<decltype(*array)>;
    array = reinterpret_cast<Item*>(static_cast<char*>(scratch) + offset);
    offset += (static_cast<std::size_t>(experts) * sizeof(Item) + 255) / 256 * 256;
  };
  next(groups.shape);
  next(groups.left);
  next(groups.right);
  next(groups.result);
  next(groups.left_stride);
  next(groups.right_stride);
  next(groups.result_stride);
  return offset;
}

/// Sets the one dynamic member of a matrix's stride.
template <typename Stride>
__device__ void set_stride(Stride& stride, std::int64_t value) {
  stride = Stride{};
  if constexpr (cute::is_static<cute::remove_cvref_t<decltype(cute::get<0>(stride))>>::value) {
    cute::get<1>(stride) = value;
  } else {
    cute::get<0>(stride) = value;
  }
}

template <GroupedProduct kProduct, typename P, typename Result>
__global__ void describe_groups(GroupedShape shape, GroupedOperands<gpu::Bf16, gpu::Bf16, Result> x, Groups<P> groups) {
  const int e = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (e >= shape.experts) return;
  const std::int64_t begin = shape.offsets[e];
  const int rows = static_cast<int>(shape.offsets[e + 1] - begin);
  const std::int64_t weight = static_cast<std::int64_t>(shape.outputs) * shape.inputs * e;
  const auto* right = reinterpret_cast<const Element*>(x.right);
  auto* result = reinterpret_cast<typename P::Output*>(x.result);
  groups.left[e] = reinterpret_cast<const Element*>(x.left) + begin * x.left_stride;
  set_stride(groups.left_stride[e], x.left_stride);
  set_stride(groups.right_stride[e], x.right_stride);
  set_stride(groups.result_stride[e], x.result_stride);
  if constexpr (kProduct == GroupedProduct::kWgrad) {
    groups.right[e] = right + begin * x.right_stride;
    groups.result[e] = result + weight;
    // A group without rows has no tiles: its gradient is neither read nor written.
    groups.shape[e] = rows > 0 ? GroupShape{shape.outputs, shape.inputs, rows} : GroupShape{0, 0, 0};
  } else {
    constexpr bool kIsForward = kProduct == GroupedProduct::kForward;
    groups.right[e] = right + weight;
    groups.result[e] = result + begin * x.result_stride;
    groups.shape[e] =
        GroupShape{rows, kIsForward ? shape.outputs : shape.inputs, kIsForward ? shape.inputs : shape.outputs};
  }
}

template <typename P>
typename P::Gemm::Arguments arguments_of(int experts, int multiprocessors, const Groups<P>& groups, Write write) {
  typename P::Gemm::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
  arguments.problem_shape = {experts, groups.shape, nullptr};
  arguments.mainloop = {groups.left, groups.left_stride, groups.right, groups.right_stride};
  if constexpr (requires { arguments.epilogue.thread.alpha; }) {
    arguments.epilogue.thread.alpha = 1.0F;
    arguments.epilogue.thread.beta = write == Write::kAccumulate ? 1.0F : 0.0F;  // 0: what is there is not read
  }
  if constexpr (P::kAdds) {
    arguments.epilogue.ptr_C = const_cast<const typename P::Output**>(groups.result);
  }
  arguments.epilogue.dC = groups.result_stride;
  arguments.epilogue.ptr_D = groups.result;
  arguments.epilogue.dD = groups.result_stride;
  arguments.hw_info.device_id = 0;
  arguments.hw_info.sm_count = multiprocessors;
  return arguments;
}

template <typename P>
std::size_t scratch_bytes(int experts, int multiprocessors) {
  Groups<P> groups;
  const std::size_t described = place<P>(experts, nullptr, groups);
  return described + P::Gemm::get_workspace_size(arguments_of<P>(experts, multiprocessors, groups, Write::kOverwrite));
}

template <GroupedProduct kProduct, typename P, typename Result>
void launch(const GroupedShape& shape, const GroupedOperands<gpu::Bf16, gpu::Bf16, Result>& x, int multiprocessors,
            void* scratch, gpu::Stream stream, Write write = Write::kOverwrite,
            const typename P::CollectiveEpilogue::FusionCallbacks::Arguments* fused = nullptr) {
  constexpr int kThreads = 128;
  Groups<P> groups;
  const std::size_t described = place<P>(shape.experts, scratch, groups);
  describe_groups<kProduct, P><<<(shape.experts + kThreads - 1) / kThreads, kThreads, 0, stream>>>(shape, x, groups);
  PRIMUS_CUDA_CHECK(gpu::last_error());
  typename P::Gemm gemm;
  auto arguments = arguments_of<P>(shape.experts, multiprocessors, groups, write);
  if (fused != nullptr) arguments.epilogue.thread = *fused;
  PRIMUS_CUTLASS_CHECK(gemm.initialize(arguments, static_cast<char*>(scratch) + described, stream));
  PRIMUS_CUTLASS_CHECK(gemm.run(stream));
}

}  // namespace primus::ops::cuda::sm90
