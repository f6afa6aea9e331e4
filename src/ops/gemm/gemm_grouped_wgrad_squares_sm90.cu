// main_grad[e] = dyᵀ · x, in fp32, and the squares of what is written, added up while it is in registers: the
// gradient's norm then needs no pass of its own over it.
#include "ops/gemm/gemm_grouped_sm90.cuh"

namespace primus::ops::cuda {
namespace {

constexpr int kTile = 128;  // rows and columns of the result that one group of four warps has
constexpr int kWarps = 4;

namespace detail = cutlass::epilogue::fusion::detail;

/// A node of the epilogue: hands its input on and leaves, for each warp of each tile, the sum of its squares: a
/// thread's 128 of them in fp32, in fp64 from there on (fp64 throughout makes the whole product a quarter slower). What
/// lies outside of the result is 0 there.
struct SquareSums {
  struct SharedStorage {};
  struct Arguments {
    double* parts = nullptr;  // [groups, tiles of rows, tiles of columns, kWarps]
  };
  using Params = Arguments;

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(const ProblemShape&, const Arguments& arguments, void*) {
    return arguments;
  }
  template <class ProblemShape>
  static bool can_implement(const ProblemShape&, const Arguments&) {
    return true;
  }
  template <class ProblemShape>
  static std::size_t get_workspace_size(const ProblemShape&, const Arguments&) {
    return 0;
  }
  template <class ProblemShape>
  static cutlass::Status initialize_workspace(const ProblemShape&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE SquareSums() {}
  CUTLASS_HOST_DEVICE SquareSums(const Params& given, const SharedStorage&) : params(given) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }

  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(const detail::ProducerLoadArgs<Args...>&) {
    return detail::EmptyProducerLoadCallbacks{};
  }

  struct ConsumerStoreCallbacks : detail::EmptyConsumerStoreCallbacks {
    CUTLASS_DEVICE explicit ConsumerStoreCallbacks(double* place) : slot(place) {}

    double* slot;  // nullptr: the tile lies outside of the result
    float sum[4] = {0.0F, 0.0F, 0.0F, 0.0F};

    template <typename Accumulator, typename Input, int kSize>
    CUTLASS_DEVICE auto visit(const cutlass::Array<Accumulator, kSize>&, int, int, int,
                              const cutlass::Array<Input, kSize>& values) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) {
        sum[i % 4] = fmaf(values[i], values[i], sum[i % 4]);
      }
      return values;
    }

    CUTLASS_DEVICE void end() {
      double total = (static_cast<double>(sum[0]) + sum[1]) + (static_cast<double>(sum[2]) + sum[3]);
      CUTLASS_PRAGMA_UNROLL
      for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(0xFFFFFFFFU, total, distance);
      if (slot != nullptr && threadIdx.x % 32 == 0) *slot = total;
    }
  };

  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const detail::ConsumerStoreArgs<Args...>& args) {
    const auto [row, column, depth, group] = args.tile_coord_mnkl;
    const int rows = (static_cast<int>(cute::get<0>(args.problem_shape_mnkl)) + kTile - 1) / kTile;
    const int columns = (static_cast<int>(cute::get<1>(args.problem_shape_mnkl)) + kTile - 1) / kTile;
    const std::int64_t tile = (static_cast<std::int64_t>(group) * rows + row) * columns + column;
    const bool is_inside = static_cast<int>(row) < rows && static_cast<int>(column) < columns;
    return ConsumerStoreCallbacks(is_inside ? params.parts + tile * kWarps + args.thread_idx / 32 % kWarps : nullptr);
  }

  Params params;
};

using Wgrad = sm90::Product<cutlass::layout::ColumnMajor, cutlass::layout::RowMajor, float, void,
                            cute::Shape<cute::Int<kTile>, cute::Int<kTile>, cute::Int<64>>,
                            cute::Shape<cute::Int<2>, cute::Int<1>, cute::Int<1>>,
                            cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong,
                            cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong,
                            cutlass::epilogue::fusion::Sm90EVT<SquareSums, cutlass::epilogue::fusion::Sm90AccFetch>>;

}  // namespace

std::int64_t grouped_square_parts_sm90(const GroupedShape& shape) {
  const auto tiles = [](int extent) { return (extent + kTile - 1) / kTile; };
  return std::int64_t{shape.experts} * tiles(shape.outputs) * tiles(shape.inputs) * kWarps;
}

std::size_t grouped_wgrad_squares_scratch_sm90(int experts, int multiprocessors) {
  return sm90::scratch_bytes<Wgrad>(experts, multiprocessors);
}

void launch_grouped_wgrad_squares_sm90(const GroupedShape& shape, const GroupedWgrad<gpu::Bf16>& x, double* parts,
                                       int multiprocessors, void* scratch, gpu::Stream stream) {
  const auto bytes = static_cast<std::size_t>(grouped_square_parts_sm90(shape)) * sizeof(double);
  PRIMUS_CUDA_CHECK(gpu::fill_bytes(parts, 0, bytes, stream));  // groups without rows have no tiles
  typename Wgrad::CollectiveEpilogue::FusionCallbacks::Arguments fused{};
  fused.op_1.parts = parts;
  sm90::launch<GroupedProduct::kWgrad, Wgrad>(shape, x, multiprocessors, scratch, stream, Write::kOverwrite, &fused);
}

}  // namespace primus::ops::cuda
