#include "ops/attention/attention_cudnn.hpp"

#include <ATen/ops/empty.h>
#include <cudnn_frontend.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "ops/gpu/device.hpp"
#include "ops/gpu/tensor.hpp"

/// PRIMUS_CUDNN_CHECK(call): a call of cuDNN must give success.
#define PRIMUS_CUDNN_CHECK(call)                                                                 \
  do {                                                                                           \
    const cudnnStatus_t primus_status = (call);                                                  \
    if (primus_status != CUDNN_STATUS_SUCCESS)                                                   \
      ::primus::gpu::throw_error(__FILE__, __LINE__, #call, cudnnGetErrorString(primus_status)); \
  } while (false)

namespace primus::ops::cuda {
namespace {

using at::Tensor;
using cudnn_frontend::graph::Graph;
using cudnn_frontend::graph::SDPA_attributes;
using cudnn_frontend::graph::SDPA_backward_attributes;
using cudnn_frontend::graph::Tensor_attributes;
using Attributes = std::shared_ptr<Tensor_attributes>;

constexpr std::int64_t kHeadStep = 8;          // head sizes are multiples of it
constexpr std::int64_t kLargestHead = 128;     // of any pair of sizes
constexpr std::int64_t kLatentHead = 192;      // q and k of MLA, beside values of 128
constexpr std::int64_t kSmallestSequence = 2;  // its causal kernels refuse a single query

// Names of the tensors in the graphs.
enum Id : std::int64_t { kQ = 1, kK, kV, kContext, kLse, kDcontext, kDq, kDk, kDv };

void check(cudnn_frontend::error_t status, const char* what) {
  PRIMUS_CHECK(status.is_good(), "cuDNN attention, {}: {}", what, status.get_message());
}

struct Handle {
  cudnnHandle_t value = nullptr;
};

/// One a device, for the life of the process: destroying it at the end would meet a driver that is gone.
cudnnHandle_t handle_of(int device) {
  static std::map<int, Handle>* const handles = new std::map<int, Handle>();
  Handle& handle = (*handles)[device];
  if (handle.value == nullptr) PRIMUS_CUDNN_CHECK(cudnnCreate(&handle.value));
  PRIMUS_CUDNN_CHECK(cudnnSetStream(handle.value, gpu::current_stream()));
  return handle.value;
}

/// A graph with its plan chosen; the tensors' addresses are given when it runs.
struct Plan {
  Graph graph;
  std::int64_t workspace_bytes = 0;
};

/// What a plan depends on: device, direction, determinism, scale, and every tensor's sizes and strides.
using Key = std::vector<std::int64_t>;

void append(Key& key, const Tensor& x) {
  key.insert(key.end(), x.sizes().begin(), x.sizes().end());
  key.insert(key.end(), x.strides().begin(), x.strides().end());
}

/// [B, S, heads, width] as cuDNN counts its axes: batch, head, sequence, width.
Tensor_attributes by_heads(const Tensor& x_BSAD, Id id) {
  const Tensor view = x_BSAD.transpose(1, 2);
  return Tensor_attributes().set_uid(id).set_dim(view.sizes().vec()).set_stride(view.strides().vec());
}

/// The logarithm of the softmax's sum, fp32.
Tensor_attributes lse_attributes(const Tensor& lse_BAS) {
  const Tensor view = lse_BAS.unsqueeze(-1);
  return Tensor_attributes()
      .set_uid(kLse)
      .set_dim(view.sizes().vec())
      .set_stride(view.strides().vec())
      .set_data_type(cudnn_frontend::DataType_t::FLOAT);
}

void set_output(const Attributes& output, const Tensor_attributes& like) {
  output->set_output(true)
      .set_uid(like.get_uid())
      .set_dim(like.get_dim())
      .set_stride(like.get_stride())
      .set_data_type(like.get_data_type());
}

void set_types(Graph& graph) {
  graph.set_io_data_type(cudnn_frontend::DataType_t::BFLOAT16)
      .set_intermediate_data_type(cudnn_frontend::DataType_t::FLOAT)
      .set_compute_data_type(cudnn_frontend::DataType_t::FLOAT);
}

void finish(Plan& plan, cudnnHandle_t handle) {
  check(plan.graph.build(handle, {cudnn_frontend::HeurMode_t::A}), "building the graph");
  check(plan.graph.get_workspace_size(plan.workspace_bytes), "size of the workspace");
}

/// Plans by key. The lock is held while a plan runs: a handle serves one caller at a time.
class Plans {
 public:
  static Plans& instance() {
    static Plans* const plans = new Plans();
    return *plans;
  }

  using Addresses = std::unordered_map<std::int64_t, void*>;

  template <typename Build>
  void run(const Key& key, Addresses addresses, const at::TensorOptions& options, const Build& build) {
    const std::lock_guard lock(mutex_);
    const auto handle = handle_of(static_cast<int>(key.front()));
    auto& plan = plans_[key];
    if (plan == nullptr) {
      auto made = std::make_unique<Plan>();
      set_types(made->graph);
      build(made->graph);
      finish(*made, handle);
      plan = std::move(made);
    }
    const Tensor workspace = at::empty({plan->workspace_bytes}, options.dtype(at::kByte));
    check(plan->graph.execute(handle, addresses, workspace.data_ptr()), "running the graph");
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

Key key_of(const Tensor& q, std::int64_t direction, double scale) {
  return {q.device().index(), direction, gpu::determinism() == Determinism::kSameBits ? 1 : 0,
          std::bit_cast<std::int64_t>(scale)};
}

}  // namespace

bool fits_cudnn(const Tensor& q_BSAD, const Tensor& v_BSGV, const AttentionOptions& options) {
  if (options.softcap > 0.0 || options.sink_A.defined() || options.first_key_BS.defined()) return false;
  if (options.window > 0 && options.window < q_BSAD.size(1)) return false;
  const std::int64_t query_size = q_BSAD.size(3);
  const std::int64_t value_size = v_BSGV.size(3);
  const bool sizes = (query_size <= kLargestHead && value_size <= kLargestHead) ||
                     (query_size == kLatentHead && value_size == kLargestHead);
  return q_BSAD.scalar_type() == at::kBFloat16 && gpu::device_info().compute_major >= 9 && sizes &&
         query_size % kHeadStep == 0 && value_size % kHeadStep == 0 && q_BSAD.size(1) >= kSmallestSequence;
}

void attention_cudnn_forward(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV, double scale,
                             Tensor& context_BSAV, Tensor& lse_BAS) {
  Key key = key_of(q_BSAD, 0, scale);
  for (const Tensor* x : {&q_BSAD, &k_BSGD, &v_BSGV, static_cast<const Tensor*>(&context_BSAV)}) append(key, *x);
  const Plans::Addresses addresses = {{kQ, q_BSAD.data_ptr()},
                                      {kK, k_BSGD.data_ptr()},
                                      {kV, v_BSGV.data_ptr()},
                                      {kContext, context_BSAV.data_ptr()},
                                      {kLse, lse_BAS.data_ptr()}};
  Plans::instance().run(key, addresses, q_BSAD.options(), [&](Graph& graph) {
    const auto options =
        SDPA_attributes().set_generate_stats(true).set_causal_mask(true).set_attn_scale(static_cast<float>(scale));
    const auto [context, lse] = graph.sdpa(graph.tensor(by_heads(q_BSAD, kQ)), graph.tensor(by_heads(k_BSGD, kK)),
                                           graph.tensor(by_heads(v_BSGV, kV)), options);
    set_output(context, by_heads(context_BSAV, kContext).set_data_type(cudnn_frontend::DataType_t::BFLOAT16));
    set_output(lse, lse_attributes(lse_BAS));
  });
}

void attention_cudnn_backward(const CudnnGradients& t, double scale) {
  Key key = key_of(t.q_BSAD, 1, scale);
  for (const Tensor* x :
       {&t.dcontext_BSAV, &t.q_BSAD, &t.k_BSGD, &t.v_BSGV, &t.context_BSAV, static_cast<const Tensor*>(&t.dq_BSAD),
        static_cast<const Tensor*>(&t.dk_BSGD), static_cast<const Tensor*>(&t.dv_BSGV)}) {
    append(key, *x);
  }
  const Plans::Addresses addresses = {{kDcontext, t.dcontext_BSAV.data_ptr()},
                                      {kQ, t.q_BSAD.data_ptr()},
                                      {kK, t.k_BSGD.data_ptr()},
                                      {kV, t.v_BSGV.data_ptr()},
                                      {kContext, t.context_BSAV.data_ptr()},
                                      {kLse, t.lse_BAS.data_ptr()},
                                      {kDq, t.dq_BSAD.data_ptr()},
                                      {kDk, t.dk_BSGD.data_ptr()},
                                      {kDv, t.dv_BSGV.data_ptr()}};
  Plans::instance().run(key, addresses, t.q_BSAD.options(), [&](Graph& graph) {
    const auto options = SDPA_backward_attributes()
                             .set_causal_mask(true)
                             .set_attn_scale(static_cast<float>(scale))
                             .set_deterministic_algorithm(gpu::determinism() == Determinism::kSameBits);
    const auto [dq, dk, dv] = graph.sdpa_backward(
        graph.tensor(by_heads(t.q_BSAD, kQ)), graph.tensor(by_heads(t.k_BSGD, kK)),
        graph.tensor(by_heads(t.v_BSGV, kV)), graph.tensor(by_heads(t.context_BSAV, kContext)),
        graph.tensor(by_heads(t.dcontext_BSAV, kDcontext)), graph.tensor(lse_attributes(t.lse_BAS)), options);
    const auto bf16 = cudnn_frontend::DataType_t::BFLOAT16;
    set_output(dq, by_heads(t.dq_BSAD, kDq).set_data_type(bf16));
    set_output(dk, by_heads(t.dk_BSGD, kDk).set_data_type(bf16));
    set_output(dv, by_heads(t.dv_BSGV, kDv).set_data_type(bf16));
  });
}

}  // namespace primus::ops::cuda
