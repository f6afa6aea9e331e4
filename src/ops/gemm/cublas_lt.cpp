#include "ops/gemm/cublas_lt.hpp"

#include <c10/cuda/CUDAFunctions.h>

#include <bit>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include "ops/gemm/gemm_choices.hpp"
#include "ops/gpu/device.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;
constexpr const char* kLogVariable = "PRIMUS_LOG_GEMM";          // any value: a line to stderr for each new plan
constexpr const char* kChoicesVariable = "PRIMUS_GEMM_CHOICES";  // a file: choices of earlier runs, and of this one
constexpr std::uintptr_t kMaxAlignment = 16;                     // no kernel wants more
constexpr int kMostCandidates = 8;
constexpr int kRounds = 4;              // the first of which warms up
constexpr double kMeasuredFlops = 4e9;  // smaller products gain less from the choice than it costs
constexpr float kWorthChanging = 0.98F;

/// What a plan depends on.
struct Key {
  int device;
  std::array<std::int64_t, 3> m_n_k;
  std::array<std::int64_t, 3> stride;
  std::array<int, 3> type;
  std::array<int, 3> alignment;
  std::array<int, 2> orientation;
  auto operator<=>(const Key&) const = default;

  /// All but the device, which a file of choices names.
  std::vector<std::int64_t> product() const {
    std::vector<std::int64_t> numbers(m_n_k.begin(), m_n_k.end());
    numbers.insert(numbers.end(), stride.begin(), stride.end());
    numbers.insert(numbers.end(), type.begin(), type.end());
    numbers.insert(numbers.end(), alignment.begin(), alignment.end());
    numbers.insert(numbers.end(), orientation.begin(), orientation.end());
    return numbers;
  }
};

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(AlgorithmWords));

/// Device and release that an algorithm's bytes mean something to.
std::string owner_of(int device) {
  cudaDeviceProp properties{};
  PRIMUS_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return fmt::format("{}, cuBLASLt {}", properties.name, cublasLtGetVersion());
}

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

/// A span of the device's time.
class Stopwatch {
 public:
  explicit Stopwatch(gpu::Stream stream) : stream_(stream) {
    for (cudaEvent_t& event : events_) PRIMUS_CUDA_CHECK(cudaEventCreate(&event));
  }
  ~Stopwatch() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void start() { PRIMUS_CUDA_CHECK(cudaEventRecord(events_[0], stream_)); }
  float stop_ms() {
    PRIMUS_CUDA_CHECK(cudaEventRecord(events_[1], stream_));
    PRIMUS_CUDA_CHECK(cudaEventSynchronize(events_[1]));
    float ms = 0.0F;
    PRIMUS_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[0], events_[1]));
    return ms;
  }

 private:
  gpu::Stream stream_;
  std::array<cudaEvent_t, 2> events_{};
};

/// Kernels differ in the order of their sums, so a run that must repeat itself takes the one that the library names
/// first.
bool is_measured(const Key& key) {
  const auto& [m, n, k] = key.m_n_k;
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return flops >= kMeasuredFlops && gpu::determinism() != Determinism::kSameBits;
}

/// While a graph is recorded nothing can be timed.
bool is_launching(gpu::Stream stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  PRIMUS_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
  return capture == cudaStreamCaptureStatusNone;
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
    const Call call{device, a, b, c, write, stream};
    const Plan& plan = plan_of(call);
    PRIMUS_CUBLAS_CHECK(run(call, plan, plan.algorithm, c.data));
  }

 private:
  struct Call {
    int device;
    const LtMatrix &a, &b, &c;
    Write write;
    gpu::Stream stream;
  };

  cublasStatus_t run(const Call& call, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, void* result) {
    const float alpha = 1.0F;
    const float beta = call.write == Write::kAccumulate ? 1.0F : 0.0F;
    // A row-major c is its transpose there, so the operands change places.
    return cublasLtMatmul(handle(call.device), plan.operation, &alpha, call.b.data, plan.b, call.a.data, plan.a, &beta,
                          result, plan.c, result, plan.c, &algorithm, workspace(call.device, call.stream),
                          kWorkspaceBytes, call.stream);
  }

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

  const Plan& plan_of(const Call& call) {
    const Key key = key_of(call.device, call.a, call.b, call.c);
    const auto found = plans_.find(key);
    return found != plans_.end() ? found->second : plans_.emplace(key, make_plan(key, call)).first->second;
  }

  Plan make_plan(const Key& key, const Call& call) {
    const LtMatrix &a = call.a, &b = call.b, &c = call.c;
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
    GemmChoices* choices = is_measured(key) ? choices_of(key.device) : nullptr;
    if (choices != nullptr && recall(key, *choices, plan)) return plan;
    const std::vector<cublasLtMatmulHeuristicResult_t> candidates = candidates_for(key, plan);
    const bool measures = is_measured(key) && is_launching(call.stream);
    const std::size_t chosen = measures ? fastest(call, plan, candidates) : 0;
    plan.algorithm = candidates[chosen].algo;
    log_choice(key, plan.algorithm, fmt::format("candidate {}", chosen));
    if (choices != nullptr && measures) choices->add(key.product(), std::bit_cast<AlgorithmWords>(plan.algorithm));
    return plan;
  }

  /// The file that the user named, or nullptr.
  GemmChoices* choices_of(int device) {
    const char* file = std::getenv(kChoicesVariable);
    if (file == nullptr || *file == '\0') return nullptr;
    return &choices_.try_emplace(device, file, owner_of(device)).first->second;
  }

  /// Takes the choice that an earlier run made, if it made one that the library still accepts.
  bool recall(const Key& key, const GemmChoices& choices, Plan& plan) {
    const std::optional<AlgorithmWords> words = choices.find(key.product());
    if (!words) return false;
    plan.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(*words);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle(key.device), plan.operation, plan.b, plan.a, plan.c,
                                                          plan.c, &plan.algorithm, &result);
    if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) return false;
    log_choice(key, plan.algorithm, "from a file");
    return true;
  }

  /// The number of the candidate that is fastest on these operands; what it computes goes elsewhere.
  std::size_t fastest(const Call& call, const Plan& plan,
                      const std::vector<cublasLtMatmulHeuristicResult_t>& candidates) {
    const std::int64_t element_bytes = call.c.type == CUDA_R_32F ? 4 : 2;
    const Tensor result =
        at::empty({call.c.rows * call.c.stride * element_bytes}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
    Stopwatch watch(call.stream);
    std::vector<float> ms(candidates.size(), std::numeric_limits<float>::infinity());
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        watch.start();
        const cublasStatus_t status = run(call, plan, candidates[i].algo, result.data_ptr());
        const float took_ms = watch.stop_ms();
        if (round > 0 && status == CUBLAS_STATUS_SUCCESS) ms[i] = std::min(ms[i], took_ms);
      }
    }
    const auto best = std::min_element(ms.begin(), ms.end());
    return *best < kWorthChanging * ms[0] ? static_cast<std::size_t>(best - ms.begin()) : 0;
  }

  std::vector<cublasLtMatmulHeuristicResult_t> candidates_for(const Key& key, const Plan& plan) {
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
    std::vector<cublasLtMatmulHeuristicResult_t> results(kMostCandidates);
    int found = 0;
    PRIMUS_CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(handle(key.device), plan.operation, plan.b, plan.a, plan.c,
                                                       plan.c, preference, kMostCandidates, results.data(), &found));
    PRIMUS_CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    PRIMUS_CHECK(found > 0, "cuBLASLt has no kernel for a product of {} x {} x {}", key.m_n_k[0], key.m_n_k[1],
                 key.m_n_k[2]);
    results.resize(static_cast<std::size_t>(found));
    return results;
  }

  static void log_choice(const Key& key, const cublasLtMatmulAlgo_t& algorithm, const std::string& origin) {
    if (std::getenv(kLogVariable) == nullptr) return;
    const auto value_of = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
      int value = -1;
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), nullptr);
      return value;
    };
    fmt::print(stderr, "gemm: m {} n {} k {} op {}{} types {}{}{}: {}, algorithm {} tile {} stages {} split {}\n",
               key.m_n_k[0], key.m_n_k[1], key.m_n_k[2], "NT"[key.orientation[0]], "NT"[key.orientation[1]],
               key.type[0], key.type[1], key.type[2], origin, value_of(CUBLASLT_ALGO_CONFIG_ID),
               value_of(CUBLASLT_ALGO_CONFIG_TILE_ID), value_of(CUBLASLT_ALGO_CONFIG_STAGES_ID),
               value_of(CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
  }

  std::mutex mutex_;
  std::map<Key, Plan> plans_;
  std::map<int, GemmChoices> choices_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<std::pair<int, gpu::Stream>, Tensor> workspaces_;
};

}  // namespace

void lt_multiply(const LtMatrix& a, const LtMatrix& b, const LtMatrix& c, Write write, gpu::Stream stream) {
  CublasLt::instance().multiply(a, b, c, write, stream);
}

}  // namespace primus::ops::cuda
