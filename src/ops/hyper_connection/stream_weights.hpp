#pragma once
// The weights of hyper-connections from their logits, and gradients backwards, for a block of tokens at a time: value m
// of token i lies at [m · kTokens + i], so that loops over tokens are vectors.
#include "model/host_cuts.hpp"
#include "ops/hyper_connection/hyper_connection.hpp"
#include "ops/simd_math.hpp"

namespace primus::ops {

inline constexpr std::int64_t kHyperTokens = model::HyperCuts::kTokens;

template <typename Acc>
struct HyperRules {
  std::int64_t streams, logits;
  std::int64_t steps;  // divisions of Sinkhorn's iteration
  Acc epsilon;
  const Acc* bias;
  const Acc* scale;

  explicit HyperRules(const HyperConnection& hyper)
      : streams(hyper.num_streams),
        logits(hyper.bias_M.numel()),
        steps(model::HyperCuts::sinkhorn_steps(hyper.sinkhorn_iterations)),
        epsilon(static_cast<Acc>(hyper.epsilon)),
        bias(hyper.bias_M.const_data_ptr<Acc>()),
        scale(hyper.scale_G.const_data_ptr<Acc>()) {}
  std::int64_t exchange() const { return 2 * streams; }  // its first logit
  std::int64_t square() const { return streams * streams; }
  std::int64_t group(std::int64_t logit) const { return std::min<std::int64_t>(logit / streams, 2); }
};

/// Columns are the entries of a matrix with the same second index.
enum class Sums { kRows, kColumns };
/// Which sums the step numbered `step` divides by: columns first.
inline Sums sums_of(std::int64_t step) {
  return step % 2 == 0 ? Sums::kColumns : Sums::kRows;
}

/// Entry `i` of line `line`.
inline std::int64_t entry(Sums sums, std::int64_t streams, std::int64_t line, std::int64_t i) {
  return (sums == Sums::kRows ? line * streams + i : i * streams + line) * kHyperTokens;
}

/// to = from divided by its sums + ε; `inverse` takes the reciprocal sums.
template <typename Acc>
void sinkhorn_step(const HyperRules<Acc>& rules, Sums sums, const Acc* from, Acc* to, Acc* inverse) {
  for (std::int64_t line = 0; line < rules.streams; ++line) {
    Acc* of_line = inverse + line * kHyperTokens;
    for (std::int64_t t = 0; t < kHyperTokens; ++t) of_line[t] = rules.epsilon;
    for (std::int64_t i = 0; i < rules.streams; ++i) {
      const Acc* value = from + entry(sums, rules.streams, line, i);
#pragma omp simd
      for (std::int64_t t = 0; t < kHyperTokens; ++t) of_line[t] += value[t];
    }
#pragma omp simd
    for (std::int64_t t = 0; t < kHyperTokens; ++t) of_line[t] = Acc{1} / of_line[t];
    for (std::int64_t i = 0; i < rules.streams; ++i) {
      const std::int64_t at = entry(sums, rules.streams, line, i);
#pragma omp simd
      for (std::int64_t t = 0; t < kHyperTokens; ++t) to[at + t] = from[at + t] * of_line[t];
    }
  }
}

/// The gradient of a step's input from that of its output `to`, in place.
template <typename Acc>
void sinkhorn_step_backward(const HyperRules<Acc>& rules, Sums sums, const Acc* to, const Acc* inverse, Acc* gradient) {
  Acc along[kHyperTokens];
  for (std::int64_t line = 0; line < rules.streams; ++line) {
    std::fill_n(along, kHyperTokens, Acc{0});
    for (std::int64_t i = 0; i < rules.streams; ++i) {
      const std::int64_t at = entry(sums, rules.streams, line, i);
#pragma omp simd
      for (std::int64_t t = 0; t < kHyperTokens; ++t) along[t] += gradient[at + t] * to[at + t];
    }
    const Acc* of_line = inverse + line * kHyperTokens;
    for (std::int64_t i = 0; i < rules.streams; ++i) {
      const std::int64_t at = entry(sums, rules.streams, line, i);
#pragma omp simd
      for (std::int64_t t = 0; t < kHyperTokens; ++t) gradient[at + t] = (gradient[at + t] - along[t]) * of_line[t];
    }
  }
}

/// Rows of logits to their softmax + ε, in place.
template <typename Acc>
void softmax_rows(const HyperRules<Acc>& rules, Acc* matrix) {
  Acc sum[kHyperTokens];
  Acc largest[kHyperTokens];
  for (std::int64_t row = 0; row < rules.streams; ++row) {
    Acc* values = matrix + row * rules.streams * kHyperTokens;
    std::copy_n(values, kHyperTokens, largest);
    for (std::int64_t i = kHyperTokens; i < rules.streams * kHyperTokens; ++i) {
      largest[i % kHyperTokens] = std::max(largest[i % kHyperTokens], values[i]);
    }
    std::fill_n(sum, kHyperTokens, Acc{0});
    for (std::int64_t i = 0; i < rules.streams; ++i) {
      Acc* value = values + i * kHyperTokens;
#pragma omp simd
      for (std::int64_t t = 0; t < kHyperTokens; ++t) {
        value[t] = fast_exp(value[t] - largest[t]);
        sum[t] += value[t];
      }
    }
    for (std::int64_t i = 0; i < rules.streams; ++i) {
      Acc* value = values + i * kHyperTokens;
#pragma omp simd
      for (std::int64_t t = 0; t < kHyperTokens; ++t) value[t] = value[t] / sum[t] + rules.epsilon;
    }
  }
}

/// `plus_epsilon`: what softmax_rows left; the gradient of its logits, in place.
template <typename Acc>
void softmax_rows_backward(const HyperRules<Acc>& rules, const Acc* plus_epsilon, Acc* gradient) {
  Acc along[kHyperTokens];
  for (std::int64_t row = 0; row < rules.streams; ++row) {
    std::fill_n(along, kHyperTokens, Acc{0});
    const std::int64_t first = row * rules.streams * kHyperTokens;
    for (std::int64_t i = 0; i < rules.streams; ++i) {
#pragma omp simd
      for (std::int64_t t = 0; t < kHyperTokens; ++t) {
        const std::int64_t at = first + i * kHyperTokens + t;
        along[t] += gradient[at] * (plus_epsilon[at] - rules.epsilon);
      }
    }
    for (std::int64_t i = 0; i < rules.streams; ++i) {
#pragma omp simd
      for (std::int64_t t = 0; t < kHyperTokens; ++t) {
        const std::int64_t at = first + i * kHyperTokens + t;
        gradient[at] = (plus_epsilon[at] - rules.epsilon) * (gradient[at] - along[t]);
      }
    }
  }
}

/// value[m · kTokens + i] = mix[i · logits + m] for the first `count` logits; tokens past `tokens` get zeros.
template <typename Acc>
void gather(const Acc* mix, std::int64_t tokens, std::int64_t logits, std::int64_t count, Acc* value) {
  for (std::int64_t m = 0; m < count; ++m) {
    for (std::int64_t t = 0; t < kHyperTokens; ++t) value[m * kHyperTokens + t] = t < tokens ? mix[t * logits + m] : 0;
  }
}

/// read, from mix to weight in place.
template <typename Acc>
void read_weights(const HyperRules<Acc>& rules, Acc* value) {
  for (std::int64_t m = 0; m < rules.streams; ++m) {
#pragma omp simd
    for (std::int64_t t = 0; t < kHyperTokens; ++t) {
      Acc& at = value[m * kHyperTokens + t];
      at = fast_sigmoid(std::fma(at, rules.scale[0], rules.bias[m])) + rules.epsilon;
    }
  }
}

/// write and exchange, from mix to weight in place; `trace` takes the matrices between Sinkhorn's steps, the first and
/// the last one included, and `inverse` the reciprocal sums of each step.
template <typename Acc>
void write_weights(const HyperRules<Acc>& rules, Acc* value, Acc* trace, Acc* inverse) {
  for (std::int64_t m = rules.streams; m < rules.logits; ++m) {
    const Acc scale = rules.scale[rules.group(m)];
    const bool is_exchange = m >= rules.exchange();
#pragma omp simd
    for (std::int64_t t = 0; t < kHyperTokens; ++t) {
      Acc& at = value[m * kHyperTokens + t];
      at = std::fma(at, scale, rules.bias[m]);
      at = is_exchange ? at : Acc{2} * fast_sigmoid(at);
    }
  }
  const std::int64_t size = rules.square() * kHyperTokens;
  Acc* exchange = value + rules.exchange() * kHyperTokens;
  std::copy_n(exchange, size, trace);
  softmax_rows(rules, trace);
  for (std::int64_t step = 0; step < rules.steps; ++step, trace += size, inverse += rules.streams * kHyperTokens) {
    sinkhorn_step(rules, sums_of(step), trace, trace + size, inverse);
  }
  std::copy_n(trace, size, exchange);
}

/// From the weights' gradients to the logits', in place. `value`: the weights; `trace` and `inverse` as above.
template <typename Acc>
void weights_backward(const HyperRules<Acc>& rules, const Acc* value, const Acc* trace, const Acc* inverse,
                      Acc* gradient) {
  for (std::int64_t m = 0; m < std::min(rules.exchange(), rules.logits); ++m) {
    const bool is_read = m < rules.streams;
#pragma omp simd
    for (std::int64_t t = 0; t < kHyperTokens; ++t) {
      const std::int64_t at = m * kHyperTokens + t;
      const Acc open = is_read ? value[at] - rules.epsilon : value[at] / 2;
      gradient[at] *= (is_read ? Acc{1} : Acc{2}) * open * (Acc{1} - open);
    }
  }
  if (rules.logits == rules.streams) return;
  const std::int64_t size = rules.square() * kHyperTokens;
  Acc* exchange = gradient + rules.exchange() * kHyperTokens;
  for (std::int64_t step = rules.steps; step-- > 0;) {
    sinkhorn_step_backward(rules, sums_of(step), trace + (step + 1) * size,
                           inverse + step * rules.streams * kHyperTokens, exchange);
  }
  softmax_rows_backward(rules, trace, exchange);
}

}  // namespace primus::ops
