#include <limits>
#include <type_traits>

#include "model/logit_chunks.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"
#include "ops/cuda_ops.hpp"
#include "ops/gemm/gemm.hpp"
#include "ops/not_on_gpu.hpp"
#include "ops/scratch.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kElementsPerTask = 16 * 1024;
constexpr std::int64_t kColumnBlock = 1024;  // read for its maximum, then again for its sum: stays in the L1 cache

template <typename T>
acc_t<T> largest_of(const T* x, std::int64_t n) {
  using Acc = acc_t<T>;
  Acc largest = -std::numeric_limits<Acc>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t v = 0; v < n; ++v) {
    const Acc value = static_cast<Acc>(x[v]);
    largest = value > largest ? value : largest;
  }
  return largest;
}

/// Σ exp(x − shift).
template <typename T>
acc_t<T> sum_of_exponentials(const T* x, std::int64_t n, acc_t<T> shift) {
  acc_t<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t v = 0; v < n; ++v) sum += fast_exp(static_cast<acc_t<T>>(x[v]) - shift);
  return sum;
}

/// The same, and the exponentials themselves; `out` may be x.
template <typename T>
acc_t<T> store_exponentials(const T* x, std::int64_t n, acc_t<T> shift, acc_t<T>* out) {
  acc_t<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t v = 0; v < n; ++v) {
    const acc_t<T> e = fast_exp(static_cast<acc_t<T>>(x[v]) - shift);
    out[v] = e;
    sum += e;
  }
  return sum;
}

template <typename T>
void store_scaled(const acc_t<T>* x, std::int64_t n, acc_t<T> factor, T* out) {
#pragma omp simd
  for (std::int64_t v = 0; v < n; ++v) out[v] = to_storage<T>(x[v] * factor);
}

template <typename Acc>
struct SoftmaxTotals {
  Acc maximum;  // 0 for a row of nothing but −inf, whose sum is then 0
  Acc sum;      // Σ exp(x − maximum)

  /// log Σ exp x − logit, in an order that cancels nothing when the logit is the maximum.
  Acc loss(Acc logit) const { return std::log(sum) + (maximum - logit); }
};

/// Online softmax: one reading of the row from memory, block by block, the sum rescaled whenever a block brings a
/// larger maximum. `sum_of_block(first, n, shift)` gives Σ exp(x − shift) of a block. A NaN passes over the maximum and
/// arrives in the sum.
template <typename T, typename SumOfBlock>
SoftmaxTotals<acc_t<T>> softmax_totals(const T* row, std::int64_t n, const SumOfBlock& sum_of_block) {
  using Acc = acc_t<T>;
  Acc maximum = -std::numeric_limits<Acc>::infinity();
  Acc shift = 0;
  Acc sum = 0;
  for (std::int64_t first = 0; first < n; first += kColumnBlock) {
    const std::int64_t block = std::min(kColumnBlock, n - first);
    const Acc largest = largest_of(row + first, block);
    if (largest > maximum) {
      sum *= fast_exp(maximum - largest);
      maximum = largest;
      shift = largest;
    }
    sum += sum_of_block(first, block, shift);
  }
  return {shift, sum};
}

template <typename T>
SoftmaxTotals<acc_t<T>> softmax_totals(const T* row, std::int64_t n) {
  return softmax_totals(row, n, [row](std::int64_t first, std::int64_t block, acc_t<T> shift) {
    return sum_of_exponentials(row + first, block, shift);
  });
}

/// One token of the fused op, with one exponential an element: the first pass keeps them, relative to the maximum so
/// far of their block, which the second pass makes up for.
template <typename T>
class GradientRow {
 public:
  using Acc = acc_t<T>;

  explicit GradientRow(std::int64_t vocabulary)
      : vocabulary_(vocabulary), shift_((vocabulary + kColumnBlock - 1) / kColumnBlock) {
    if constexpr (!kInPlace) exponential_.resize(vocabulary);
  }

  /// row <- (softmax − onehot) · grad; gives the loss.
  Acc run(T* row, std::int64_t label, Acc grad) {
    Acc* exponential = nullptr;
    if constexpr (kInPlace) {
      exponential = row;
    } else {
      exponential = exponential_.data();
    }
    const Acc label_logit = static_cast<Acc>(row[label]);
    const auto totals = softmax_totals(row, vocabulary_, [&](std::int64_t first, std::int64_t block, Acc shift) {
      shift_[first / kColumnBlock] = shift;
      return store_exponentials(row + first, block, shift, exponential + first);
    });
    const Acc factor = grad / totals.sum;
    for (std::int64_t first = 0; first < vocabulary_; first += kColumnBlock) {
      // At most 1: only the shift 0 of blocks of nothing but −inf can lie above the maximum, and their sum is 0.
      const Acc correction = fast_exp(std::min(Acc(0), shift_[first / kColumnBlock] - totals.maximum));
      store_scaled(exponential + first, std::min(kColumnBlock, vocabulary_ - first), correction * factor, row + first);
    }
    row[label] = to_storage<T>(std::fma(fast_exp(label_logit - totals.maximum), factor, -grad));
    return totals.loss(label_logit);
  }

 private:
  static constexpr bool kInPlace = std::is_same_v<T, Acc>;  // bf16 has no room for an exponential

  std::int64_t vocabulary_;
  std::vector<Acc> shift_;  // of each block
  std::vector<Acc> exponential_;
};

/// One row of products becomes logits; `slope`, where it is not null, gets d logit / d product.
template <typename T>
void bound_row(const LogitOptions& options, std::int64_t n, T* row, acc_t<T>* slope) {
  using Acc = acc_t<T>;
  const auto scale = static_cast<Acc>(options.scale);
  const auto cap = static_cast<Acc>(options.softcap);
#pragma omp simd
  for (std::int64_t v = 0; v < n; ++v) {
    const Acc scaled = static_cast<Acc>(row[v]) * scale;
    const Acc t = cap > 0 ? fast_tanh(scaled / cap) : Acc(0);
    row[v] = to_storage<T>(cap > 0 ? cap * t : scaled);
    if (slope != nullptr) slope[v] = scale * (Acc(1) - t * t);
  }
}

/// GradientRow over rows of products.
template <typename T>
class BoundedRow {
 public:
  using Acc = acc_t<T>;

  BoundedRow(const LogitOptions& options, std::int64_t vocabulary)
      : options_(options), vocabulary_(vocabulary), gradient_(vocabulary) {
    if (!options.is_identity()) slope_.resize(static_cast<std::size_t>(vocabulary));
  }

  Acc run(T* row, std::int64_t label, Acc grad) {
    if (options_.is_identity()) return gradient_.run(row, label, grad);
    bound_row(options_, vocabulary_, row, slope_.data());
    const Acc loss = gradient_.run(row, label, grad);
    const Acc* slope = slope_.data();
#pragma omp simd
    for (std::int64_t v = 0; v < vocabulary_; ++v) row[v] = to_storage<T>(static_cast<Acc>(row[v]) * slope[v]);
    return loss;
  }

 private:
  LogitOptions options_;
  std::int64_t vocabulary_;
  GradientRow<T> gradient_;
  std::vector<Acc> slope_;
};

void check_device(const Tensor& logits_TV, const LogitOptions& options) {
  if (!logits_TV.is_cuda() || options.is_identity()) return;
  throw_not_on_gpu(options.softcap > 0.0 ? "final_logit_softcapping" : "mup_output_mult");
}

void check_rows(const Tensor& logits_TV, const Tensor& label_T, const Tensor& loss_T) {
  const std::int64_t tokens = label_T.numel();
  PRIMUS_CHECK(logits_TV.dim() == 2 && logits_TV.is_contiguous() && logits_TV.size(0) == tokens,
               "cross_entropy: logits must be [T, V], contiguous");
  PRIMUS_CHECK(label_T.scalar_type() == at::kLong && label_T.is_contiguous(), "cross_entropy: labels must be int64");
  PRIMUS_CHECK(loss_T.is_contiguous() && loss_T.numel() == tokens &&
                   loss_T.scalar_type() == accumulator_type(logits_TV.scalar_type()),
               "cross_entropy: loss must be {} [T]", c10::toString(accumulator_type(logits_TV.scalar_type())));
}

void check_labels(const Tensor& label_T, std::int64_t vocabulary) {
  const auto* label = label_T.data_ptr<std::int64_t>();
  for (std::int64_t t = 0; t < label_T.numel(); ++t) {
    PRIMUS_CHECK(label[t] >= 0 && label[t] < vocabulary, "cross_entropy: label {} of token {} is outside [0, {})",
                 label[t], t, vocabulary);
  }
}

std::int64_t tokens_per_task(std::int64_t vocabulary) {
  return std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, vocabulary));
}

/// Tokens of a chunk.
std::int64_t chosen_chunk(std::int64_t chunk_tokens, const Tensor& w_VH) {
  if (chunk_tokens > 0) return chunk_tokens;
  const std::int64_t row_bytes =
      std::max<std::int64_t>(1, w_VH.size(0) * static_cast<std::int64_t>(w_VH.element_size()));
  return w_VH.is_cuda() ? model::device_logit_chunk(row_bytes) : model::host_logit_chunk(row_bytes);
}

/// Run `body(first token, tokens, logits of them)` chunk by chunk, logits = x · wᵀ.
template <typename Body>
void for_each_chunk(const Tensor& x_TH, const Tensor& w_VH, const LogitOptions& options, std::int64_t chunk_tokens,
                    const Body& body) {
  const std::int64_t num_tokens = x_TH.size(0);
  if (num_tokens == 0) return;
  const std::int64_t chunk = std::min(num_tokens, chosen_chunk(chunk_tokens, w_VH));
  const Tensor buffer = scratch({chunk, w_VH.size(0)}, x_TH.options().dtype(options.type.value_or(x_TH.scalar_type())));
  for (std::int64_t first = 0; first < num_tokens; first += chunk) {
    const std::int64_t tokens = std::min(chunk, num_tokens - first);
    Tensor logits = buffer.narrow(0, 0, tokens);
    linear_forward(x_TH.narrow(0, first, tokens), w_VH, logits);
    body(first, tokens, logits);
  }
}

}  // namespace

void bound_logits(const LogitOptions& options, Tensor& logits_TV) {
  if (options.is_identity()) return;
  check_device(logits_TV, options);
  PRIMUS_CHECK(logits_TV.dim() == 2 && logits_TV.is_contiguous(), "cross_entropy: logits must be [T, V], contiguous");
  const std::int64_t vocabulary = logits_TV.size(1);
  dispatch_floating(logits_TV.scalar_type(), "bound_logits", [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* logits = logits_TV.data_ptr<T>();
    at::parallel_for(0, logits_TV.size(0), tokens_per_task(vocabulary), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        bound_row<T>(options, vocabulary, logits + t * vocabulary, nullptr);
      }
    });
  });
}

namespace {

void check_gradient(const Tensor& label_T, const Tensor& grad_T, const Tensor& loss_T) {
  PRIMUS_CHECK(
      grad_T.is_contiguous() && grad_T.numel() == label_T.numel() && grad_T.scalar_type() == loss_T.scalar_type(),
      "cross_entropy: grad must be like loss");
}

/// Both on the CPU.
void rows_forward_backward(Tensor& logits_TV, const Tensor& label_T, const Tensor& grad_T, const LogitOptions& options,
                           Tensor& loss_T) {
  const std::int64_t vocabulary = logits_TV.size(1);
  check_labels(label_T, vocabulary);
  const auto* label = label_T.data_ptr<std::int64_t>();
  dispatch_floating(logits_TV.scalar_type(), "cross_entropy_forward_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    T* logits = logits_TV.data_ptr<T>();
    const Acc* grad = grad_T.data_ptr<Acc>();
    Acc* loss = loss_T.data_ptr<Acc>();
    at::parallel_for(0, label_T.numel(), tokens_per_task(vocabulary), [&](std::int64_t begin, std::int64_t end) {
      BoundedRow<T> gradient_row(options, vocabulary);
      for (std::int64_t t = begin; t < end; ++t) {
        loss[t] = gradient_row.run(logits + t * vocabulary, label[t], grad[t]);
      }
    });
  });
}

}  // namespace

void cross_entropy_forward_backward(Tensor& logits_TV, const Tensor& label_T, const Tensor& grad_T, Tensor& loss_T) {
  const ZoneScope zone(Zone::kLoss);
  check_rows(logits_TV, label_T, loss_T);
  check_gradient(label_T, grad_T, loss_T);
  if (logits_TV.is_cuda()) return cuda_ops().cross_entropy_forward_backward(logits_TV, label_T, grad_T, loss_T);
  rows_forward_backward(logits_TV, label_T, grad_T, {}, loss_T);
}

void bounded_cross_entropy(Tensor& logits_TV, const Tensor& label_T, const Tensor& grad_T, const LogitOptions& options,
                           Tensor& loss_T) {
  if (options.is_identity()) return cross_entropy_forward_backward(logits_TV, label_T, grad_T, loss_T);
  const ZoneScope zone(Zone::kLoss);
  check_device(logits_TV, options);
  check_rows(logits_TV, label_T, loss_T);
  check_gradient(label_T, grad_T, loss_T);
  rows_forward_backward(logits_TV, label_T, grad_T, options, loss_T);
}

void cross_entropy_forward(const Tensor& logits_TV, const Tensor& label_T, Tensor& loss_T) {
  const ZoneScope zone(Zone::kLoss);
  check_rows(logits_TV, label_T, loss_T);
  if (logits_TV.is_cuda()) return cuda_ops().cross_entropy_forward(logits_TV, label_T, loss_T);
  const std::int64_t vocabulary = logits_TV.size(1);
  check_labels(label_T, vocabulary);
  const auto* label = label_T.data_ptr<std::int64_t>();
  dispatch_floating(logits_TV.scalar_type(), "cross_entropy_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const T* logits = logits_TV.data_ptr<T>();
    Acc* loss = loss_T.data_ptr<Acc>();
    at::parallel_for(0, label_T.numel(), tokens_per_task(vocabulary), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const T* row = logits + t * vocabulary;
        loss[t] = softmax_totals(row, vocabulary).loss(static_cast<Acc>(row[label[t]]));
      }
    });
  });
}

void linear_cross_entropy(const Tensor& x_TH, const Tensor& w_VH, const Tensor& label_T, const Tensor& grad_T,
                          std::int64_t chunk_tokens, Tensor& loss_T, Tensor& dx_TH, Tensor& main_grad_VH,
                          const LogitOptions& options, Write write) {
  const ZoneScope zone(Zone::kLoss);
  if (x_TH.size(0) == 0 && main_grad_VH.defined() && write == Write::kOverwrite) main_grad_VH.zero_();
  for_each_chunk(x_TH, w_VH, options, chunk_tokens, [&](std::int64_t first, std::int64_t tokens, Tensor& logits) {
    Tensor loss = loss_T.narrow(0, first, tokens);
    Tensor dx = dx_TH.narrow(0, first, tokens);
    bounded_cross_entropy(logits, label_T.narrow(0, first, tokens), grad_T.narrow(0, first, tokens), options, loss);
    linear_dgrad(logits, w_VH, dx);
    if (!main_grad_VH.defined()) return;
    const Write of_chunk = first == 0 ? write : Write::kAccumulate;
    linear_wgrad(logits, x_TH.narrow(0, first, tokens), main_grad_VH, of_chunk);
  });
}

void linear_cross_entropy_loss(const Tensor& x_TH, const Tensor& w_VH, const Tensor& label_T, std::int64_t chunk_tokens,
                               Tensor& loss_T, const LogitOptions& options) {
  const ZoneScope zone(Zone::kLoss);
  for_each_chunk(x_TH, w_VH, options, chunk_tokens, [&](std::int64_t first, std::int64_t tokens, Tensor& logits) {
    Tensor loss = loss_T.narrow(0, first, tokens);
    bound_logits(options, logits);
    cross_entropy_forward(logits, label_T.narrow(0, first, tokens), loss);
  });
}

}  // namespace primus::ops
