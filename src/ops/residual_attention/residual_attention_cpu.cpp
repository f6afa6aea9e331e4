#include "ops/residual_attention/residual_attention.hpp"

#include <cmath>

#include "ops/for_each_unit.hpp"
#include "ops/scratch.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

// Tokens whose share of the parameters' gradients is one partial sum: sums are cut up by shape alone.
constexpr std::int64_t kTokensOfASum = 128;

template <typename T>
std::vector<T*> rows_of(std::span<const Tensor> tensors_TH) {
  std::vector<T*> data;
  for (const Tensor& tensor : tensors_TH) data.push_back(tensor.data_ptr<std::remove_const_t<T>>());
  return data;
}

/// norm ⊙ query: what a block's row, of unit length, is multiplied by.
template <typename T>
std::vector<acc_t<T>> direction_of(const ResidualAttention& attention) {
  std::vector<acc_t<T>> direction(static_cast<std::size_t>(attention.norm_H.numel()));
  const T* norm = attention.norm_H.const_data_ptr<T>();
  const T* query = attention.query_H.const_data_ptr<T>();
  for (std::size_t h = 0; h < direction.size(); ++h) {
    direction[h] = static_cast<acc_t<T>>(norm[h]) * static_cast<acc_t<T>>(query[h]);
  }
  return direction;
}

/// A row's part along the direction, and one over its root mean square.
template <typename T>
struct Key {
  acc_t<T> along = 0, inverse_rms = 0;

  Key(const T* x, const std::vector<acc_t<T>>& direction, double epsilon) {
    using Acc = acc_t<T>;
    Acc squares = 0;
    Acc product = 0;
    const auto width = static_cast<std::int64_t>(direction.size());
    const Acc* const q = direction.data();
#pragma omp simd reduction(+ : squares, product)
    for (std::int64_t h = 0; h < width; ++h) {
      const Acc value = static_cast<Acc>(x[h]);
      squares += value * value;
      product += value * q[h];
    }
    along = product;
    inverse_rms = Acc{1} / std::sqrt(squares / static_cast<Acc>(width) + static_cast<Acc>(epsilon));
  }
  acc_t<T> logit() const {
    return along * inverse_rms;
  }
};

template <typename Acc>
void softmax(Acc* logits, std::size_t count) {
  const Acc largest = *std::max_element(logits, logits + count);
  Acc sum = 0;
  for (std::size_t n = 0; n < count; ++n) sum += logits[n] = std::exp(logits[n] - largest);
  for (std::size_t n = 0; n < count; ++n) logits[n] /= sum;
}

template <typename T>
void forward(std::span<const Tensor> blocks_TH, const ResidualAttention& attention, const Tensor& weights_TN,
             const Tensor& y_TH) {
  using Acc = acc_t<T>;
  const std::vector<const T*> blocks = rows_of<const T>(blocks_TH);
  const std::vector<Acc> direction = direction_of<T>(attention);
  const std::int64_t width = y_TH.size(1);
  T* y = y_TH.data_ptr<T>();
  Acc* weights = weights_TN.data_ptr<Acc>();
  at::parallel_for(0, y_TH.size(0), kTokensOfASum, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      Acc* const w = weights + t * std::ssize(blocks);
      for (std::size_t n = 0; n < blocks.size(); ++n) {
        w[n] = Key<T>(blocks[n] + t * width, direction, attention.epsilon).logit();
      }
      softmax(w, blocks.size());
      for (std::int64_t h = 0; h < width; ++h) {
        Acc sum = 0;
        for (std::size_t n = 0; n < blocks.size(); ++n) sum += w[n] * static_cast<Acc>(blocks[n][t * width + h]);
        y[t * width + h] = to_storage<T>(sum);
      }
    }
  });
}

/// One token's gradients: of its rows, and its share of the direction's.
template <typename T>
class TokenBackward {
 public:
  using Acc = acc_t<T>;
  TokenBackward(const std::vector<const T*>& blocks, const std::vector<T*>& gradients,
                const std::vector<Acc>& direction, double epsilon)
      : blocks_(blocks), gradients_(gradients), direction_(direction), epsilon_(epsilon), slopes_(blocks.size()) {}

  void run(std::int64_t t, const T* dy, const Acc* weights, Acc* ddirection) {
    const auto width = static_cast<std::int64_t>(direction_.size());
    Acc mean = 0;
    for (std::size_t n = 0; n < blocks_.size(); ++n) {
      const T* const x = blocks_[n] + t * width;
      Acc product = 0;
#pragma omp simd reduction(+ : product)
      for (std::int64_t h = 0; h < width; ++h) product += static_cast<Acc>(dy[h]) * static_cast<Acc>(x[h]);
      slopes_[n] = product;
      mean += weights[n] * product;
    }
    for (std::size_t n = 0; n < blocks_.size(); ++n) {
      const T* const x = blocks_[n] + t * width;
      T* const dx = gradients_[n] + t * width;
      const Key<T> key(x, direction_, epsilon_);
      const Acc slope = weights[n] * (slopes_[n] - mean) * key.inverse_rms;
      const Acc radial = key.along * key.inverse_rms * key.inverse_rms / static_cast<Acc>(width);
      const Acc* const q = direction_.data();
#pragma omp simd
      for (std::int64_t h = 0; h < width; ++h) {
        const Acc value = static_cast<Acc>(x[h]);
        ddirection[h] += slope * value;
        dx[h] = to_storage<T>(static_cast<Acc>(dx[h]) + weights[n] * static_cast<Acc>(dy[h]) +
                              slope * (q[h] - radial * value));
      }
    }
  }

 private:
  const std::vector<const T*>& blocks_;
  const std::vector<T*>& gradients_;
  const std::vector<Acc>& direction_;
  double epsilon_;
  std::vector<Acc> slopes_;
};

template <typename T>
void backward(const Tensor& dy_TH, std::span<const Tensor> blocks_TH, const ResidualAttention& attention,
              const Tensor& weights_TN, std::span<const Tensor> gradients_TH, const Tensor& norm_sum_H,
              const Tensor& query_sum_H) {
  using Acc = acc_t<T>;
  const std::vector<const T*> blocks = rows_of<const T>(blocks_TH);
  const std::vector<T*> gradients = rows_of<T>(gradients_TH);
  const std::vector<Acc> direction = direction_of<T>(attention);
  const std::int64_t tokens = dy_TH.size(0);
  const std::int64_t width = dy_TH.size(1);
  const std::int64_t num_sums = (tokens + kTokensOfASum - 1) / kTokensOfASum;
  const Tensor sums = zeroed_scratch({num_sums, width}, norm_sum_H.options());
  for_each_unit(num_sums, [&](std::int64_t, std::int64_t sum) {
    TokenBackward<T> token(blocks, gradients, direction, attention.epsilon);
    for (std::int64_t t = sum * kTokensOfASum; t < std::min(tokens, (sum + 1) * kTokensOfASum); ++t) {
      token.run(t, dy_TH.const_data_ptr<T>() + t * width, weights_TN.const_data_ptr<Acc>() + t * std::ssize(blocks),
                sums.data_ptr<Acc>() + sum * width);
    }
  });
  const T* norm = attention.norm_H.const_data_ptr<T>();
  const T* query = attention.query_H.const_data_ptr<T>();
  for (std::int64_t h = 0; h < width; ++h) {
    Acc total = 0;
    for (std::int64_t sum = 0; sum < num_sums; ++sum) total += sums.const_data_ptr<Acc>()[sum * width + h];
    norm_sum_H.data_ptr<Acc>()[h] += total * static_cast<Acc>(query[h]);
    query_sum_H.data_ptr<Acc>()[h] += total * static_cast<Acc>(norm[h]);
  }
}

void check(const Tensor& y_TH, std::span<const Tensor> blocks_TH, const ResidualAttention& attention,
           const Tensor& weights_TN) {
  PRIMUS_CHECK(!blocks_TH.empty() && y_TH.dim() == 2 && y_TH.is_contiguous(), "residual_attention: shapes");
  for (const Tensor& block : blocks_TH) {
    PRIMUS_CHECK(block.sizes() == y_TH.sizes() && block.is_contiguous() && block.scalar_type() == y_TH.scalar_type(),
                 "residual_attention: a block's shape or type");
  }
  PRIMUS_CHECK(weights_TN.dim() == 2 && weights_TN.size(0) == y_TH.size(0) &&
                   weights_TN.size(1) == std::ssize(blocks_TH) && weights_TN.is_contiguous() &&
                   weights_TN.scalar_type() == accumulator_type(y_TH.scalar_type()),
               "residual_attention: shape or type of the weights");
  PRIMUS_CHECK(attention.norm_H.numel() == y_TH.size(1) && attention.query_H.numel() == y_TH.size(1),
               "residual_attention: shapes of norm and query");
}

}  // namespace

void residual_attention_forward(std::span<const Tensor> blocks_TH, const ResidualAttention& attention,
                                Tensor& weights_TN, Tensor& y_TH) {
  const ZoneScope zone(Zone::kAttentionForward);
  check(y_TH, blocks_TH, attention, weights_TN);
  dispatch_floating(y_TH.scalar_type(), "residual_attention_forward",
                    [&](auto tag) { forward<typename decltype(tag)::type>(blocks_TH, attention, weights_TN, y_TH); });
}

void residual_attention_backward(const Tensor& dy_TH, std::span<const Tensor> blocks_TH,
                                 const ResidualAttention& attention, const Tensor& weights_TN,
                                 std::span<Tensor> gradients_TH, Tensor& norm_sum_H, Tensor& query_sum_H) {
  const ZoneScope zone(Zone::kAttentionBackward);
  check(dy_TH, blocks_TH, attention, weights_TN);
  check(dy_TH, gradients_TH, attention, weights_TN);
  PRIMUS_CHECK(norm_sum_H.numel() == dy_TH.size(1) && query_sum_H.numel() == dy_TH.size(1),
               "residual_attention: shapes of the parameters' gradients");
  dispatch_floating(dy_TH.scalar_type(), "residual_attention_backward", [&](auto tag) {
    backward<typename decltype(tag)::type>(dy_TH, blocks_TH, attention, weights_TN, gradients_TH, norm_sum_H,
                                           query_sum_H);
  });
}

}  // namespace primus::ops
