#pragma once
// What `benchmark ops` measures: each op on the shapes of one workload, beside libtorch's operators for the same.
#include <functional>
#include <string>
#include <vector>

#include "ops/dtype.hpp"

namespace primus::diag {

using at::Tensor;

/// A model's sizes, and where and in which type its ops run.
struct Workload {
  std::string name;
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  double cache_bytes = 0.0;  // of the device's last level
  std::int64_t tokens = 0, sequence = 0, hidden = 0;
  std::int64_t heads = 0, nope = 0, rotary = 0, value = 0, kv_rank = 0;
  std::int64_t dense_ffn = 0, expert_ffn = 0, shared_ffn = 0, experts = 0, top_k = 0;
  std::int64_t vocabulary = 0, loss_tokens = 0;  // loss_tokens: of one chunk of logits
  std::int64_t parameters = 0;                   // that the optimizer's ops move

  std::int64_t rows() const { return tokens * top_k; }
  double element_bytes() const { return static_cast<double>(c10::elementSize(dtype)); }
  Tensor random(std::initializer_list<std::int64_t> shape) const { return random(shape, dtype); }
  Tensor random(std::initializer_list<std::int64_t> shape, at::ScalarType type) const;
  Tensor numbers_below(std::int64_t limit, std::int64_t count) const;
};

/// The one of docs/performance.md on a GPU, a small one in fp32 on the CPU.
Workload workload_of(at::Device device);

/// What limits an op, and what its amount counts: multiplications and additions of the mathematical product, or bytes,
/// each input read once and each output written once.
enum class Limit { kFlops, kBytes };

/// Call number i of an op; calls with neighbouring numbers use other buffers, so that no cache answers.
using Call = std::function<void(int)>;

struct Calls {
  Call ours;
  Call aten;  // empty: libtorch has no operator for it
};

struct OpCase {
  std::string op;
  std::string shape;
  Limit limit = Limit::kBytes;
  double amount = 0.0;
  std::function<Calls()> prepare;  // allocates
};

std::vector<OpCase> op_cases(const Workload& workload);

// product_cases.cpp, attention_cases.cpp, row_cases.cpp, routing_cases.cpp, update_cases.cpp
void add_product_cases(const Workload& workload, std::vector<OpCase>& cases);
void add_attention_cases(const Workload& workload, std::vector<OpCase>& cases);
void add_row_cases(const Workload& workload, std::vector<OpCase>& cases);
void add_routing_cases(const Workload& workload, std::vector<OpCase>& cases);
void add_update_cases(const Workload& workload, std::vector<OpCase>& cases);

/// Sets of buffers that together are several times the cache, when one set has `bytes`.
int num_buffer_sets(const Workload& workload, double bytes);

/// `make` for each of several sets; a call takes them in turn.
template <typename Make>
class BufferSets {
 public:
  using Buffers = std::invoke_result_t<Make>;

  BufferSets(int count, const Make& make) : sets_(std::make_shared<std::vector<Buffers>>()) {
    for (int i = 0; i < count; ++i) sets_->push_back(make());
  }

  template <typename Op>
  Call call(Op op) const {
    return
        [sets = sets_, op = std::move(op)](int i) mutable { op((*sets)[static_cast<std::size_t>(i) % sets->size()]); };
  }

 private:
  std::shared_ptr<std::vector<Buffers>> sets_;
};

}  // namespace primus::diag
