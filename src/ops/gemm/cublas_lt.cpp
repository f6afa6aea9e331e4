#include "ops/gemm/cublas_lt.hpp"

#include <c10/cuda/CUDAFunctions.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>

#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;
constexpr const char* kLogVariable = "PRIMUS_LOG_GEMM";  // any value: a line to stderr for each new plan
constexpr std::uintptr_t kMaxAlignment = 16;             // no kernel wants more

/// What a plan depends on.
struct Key {
  int device;
  std::array<std::int64_t, 3> m_n_k;
  std::array<std::int64_t, 3> stride;
  std::array<int, 3> type;
  std::array<int, 3> alignment;
  std::array<int, 2> orientation;
  auto operator<=>(const Key&) const = default;
};

struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

int alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | kMaxAlignment;
  return static_cast<int>(address & -address);
}

cublasOperation_t operation_of(const LtMatrix& x) {
  return x.orientation == Orientation::kTransposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

/// The library is column-major: a row-major matrix is its own transpose there.
cublasLtMatrixLayout_t layout_of(const LtMatrix& x) {
  cublasLtMatrixLayout_t layout = nullptr;
  PRIMUS_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, x.type, static_cast<std::uint64_t>(x.columns),
                                                 static_cast<std::uint64_t>(x.rows), x.stride));
  return layout;
}

class CublasLt {
 public:
  static CublasLt& instance() {
    static CublasLt* const library = new CublasLt();  // outlives whatever multiplies at the process's end
    return *library;
  }

  void multiply(const LtMatrix& a, const LtMatrix& b, const LtMatrix& c, Write write, gpu::Stream stream) {
    const std::lock_guard lock(mutex_);
    const int device = c10::cuda::current_device();
    const Plan& plan = plan_of(key_of(device, a, b, c), a, b, c);
    const float alpha = 1.0F;
    const float beta = write == Write::kAccumulate ? 1.0F : 0.0F;
    // A row-major c is its transpose there, so the operands change places.
    PRIMUS_CUBLAS_CHECK(cublasLtMatmul(handle(device), plan.operation, &alpha, b.data, plan.b, a.data, plan.a, &beta,
                                       c.data, plan.c, c.data, plan.c, &plan.algorithm, workspace(device, stream),
                                       kWorkspaceBytes, stream));
  }

 private:
  static Key key_of(int device, const LtMatrix& a, const LtMatrix& b, const LtMatrix& c) {
    const std::int64_t depth = a.orientation == Orientation::kTransposed ? a.rows : a.columns;
    return {device,
            {c.rows, c.columns, depth},
            {a.stride, b.stride, c.stride},
            {a.type, b.type, c.type},
            {alignment_of(a.data), alignment_of(b.data), alignment_of(c.data)},
            {static_cast<int>(a.orientation), static_cast<int>(b.orientation)}};
  }

  cublasLtHandle_t handle(int device) {
    cublasLtHandle_t& handle = handles_[device];
    if (handle == nullptr) PRIMUS_CUBLAS_CHECK(cublasLtCreate(&handle));
    return handle;
  }

  /// One a stream: products of one stream run one after the other.
  void* workspace(int device, gpu::Stream stream) {
    Tensor& workspace = workspaces_[{device, stream}];
    if (!workspace.defined()) {
      workspace =
          at::empty({static_cast<std::int64_t>(kWorkspaceBytes)}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
    }
    return workspace.data_ptr();
  }

  const Plan& plan_of(const Key& key, const LtMatrix& a, const LtMatrix& b, const LtMatrix& c) {
    const auto found = plans_.find(key);
    return found != plans_.end() ? found->second : plans_.emplace(key, make_plan(key, a, b, c)).first->second;
  }

  Plan make_plan(const Key& key, const LtMatrix& a, const LtMatrix& b, const LtMatrix& c) {
    Plan plan;
    PRIMUS_CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t op_first = operation_of(b);
    const cublasOperation_t op_second = operation_of(a);
    PRIMUS_CUBLAS_CHECK(
        cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &op_first, sizeof(op_first)));
    PRIMUS_CUBLAS_CHECK(
        cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &op_second, sizeof(op_second)));
    plan.a = layout_of(a);
    plan.b = layout_of(b);
    plan.c = layout_of(c);
    plan.algorithm = choose(key, plan);
    return plan;
  }

  cublasLtMatmulAlgo_t choose(const Key& key, const Plan& plan) {
    cublasLtMatmulPreference_t preference = nullptr;
    PRIMUS_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      PRIMUS_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    // Split sums meet in fp32, never in the output's type.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(key.alignment[1]));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(key.alignment[0]));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(key.alignment[2]));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(key.alignment[2]));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    PRIMUS_CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(handle(key.device), plan.operation, plan.b, plan.a, plan.c,
                                                       plan.c, preference, 1, &result, &found));
    PRIMUS_CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    PRIMUS_CHECK(found > 0, "cuBLASLt has no kernel for a product of {} x {} x {}", key.m_n_k[0], key.m_n_k[1],
                 key.m_n_k[2]);
    if (std::getenv(kLogVariable) != nullptr) log_choice(key, result);
    return result.algo;
  }

  static void log_choice(const Key& key, const cublasLtMatmulHeuristicResult_t& result) {
    const auto value_of = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
      int value = -1;
      cublasLtMatmulAlgoConfigGetAttribute(&result.algo, attribute, &value, sizeof(value), nullptr);
      return value;
    };
    fmt::print(
        stderr, "gemm: m {} n {} k {} op {}{} types {}{}{}: algorithm {} tile {} stages {} split {} workspace {}\n",
        key.m_n_k[0], key.m_n_k[1], key.m_n_k[2], "NT"[key.orientation[0]], "NT"[key.orientation[1]], key.type[0],
        key.type[1], key.type[2], value_of(CUBLASLT_ALGO_CONFIG_ID), value_of(CUBLASLT_ALGO_CONFIG_TILE_ID),
        value_of(CUBLASLT_ALGO_CONFIG_STAGES_ID), value_of(CUBLASLT_ALGO_CONFIG_SPLITK_NUM), result.workspaceSize);
  }

  std::mutex mutex_;
  std::map<Key, Plan> plans_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<std::pair<int, gpu::Stream>, Tensor> workspaces_;
};

}  // namespace

void lt_multiply(const LtMatrix& a, const LtMatrix& b, const LtMatrix& c, Write write, gpu::Stream stream) {
  CublasLt::instance().multiply(a, b, c, write, stream);
}

}  // namespace primus::ops::cuda
