#include "ops/for_each_unit.hpp"
#include "ops/hyper_connection/stream_weights.hpp"
#include "ops/scratch.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

using model::HyperCuts;

constexpr std::int64_t kTokens = HyperCuts::kTokens;
constexpr std::int64_t kColumns = HyperCuts::kColumns;

struct Sizes {
  std::int64_t tokens, streams, hidden, logits;
  std::int64_t width() const { return streams * hidden; }
  std::int64_t blocks() const { return model::divide_up(tokens, kTokens); }
};

HyperCuts cuts_of(const Sizes& sizes, const HyperConnection& hyper) {
  return {sizes.streams, sizes.logits, HyperCuts::sinkhorn_steps(hyper.sinkhorn_iterations)};
}

/// A row of scratch for each thread that `units` units keep busy.
template <typename Acc>
class Workers {
 public:
  Workers(std::int64_t units, std::int64_t size, const Tensor& like)
      : memory_(scratch({std::min<std::int64_t>(units, at::get_num_threads()), size}, like.options())), size_(size) {}
  Acc* of(std::int64_t worker) const { return memory_.data_ptr<Acc>() + worker * size_; }

 private:
  Tensor memory_;
  std::int64_t size_;
};

/// body(worker, first token, number of tokens) for each block of tokens.
template <typename Body>
void for_each_block(const Sizes& sizes, const Body& body) {
  for_each_unit(sizes.blocks(), [&](std::int64_t worker, std::int64_t block) {
    body(worker, block * kTokens, std::min(kTokens, sizes.tokens - block * kTokens));
  });
}

/// body(first column, number of columns) of `width`.
template <typename Body>
void for_each_column_block(std::int64_t width, const Body& body) {
  for (std::int64_t c = 0; c < width; c += kColumns) body(c, std::min(kColumns, width - c));
}

template <typename T>
void widen(const T* from, std::int64_t count, acc_t<T>* to) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<acc_t<T>>(from[i]);
}

template <typename T>
void narrow(const acc_t<T>* from, std::int64_t count, T* to) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_storage<T>(from[i]);
}

/// sum += factor · x.
template <typename Acc, typename T>
void add_scaled(Acc factor, const T* x, std::int64_t count, Acc* sum) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) sum[i] += factor * static_cast<Acc>(x[i]);
}

template <typename A, typename B>
acc_t<A> dot(const A* a, const B* b, std::int64_t count) {
  using Acc = acc_t<A>;
  Acc sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<Acc>(a[i]) * static_cast<Acc>(b[i]);
  return sum;
}

/// 1 / rms of `width` values whose squares add up to `square_sum`.
template <typename Acc>
Acc inverse_rms(Acc square_sum, std::int64_t width, const HyperConnection& hyper) {
  const Acc mean = square_sum / static_cast<Acc>(width);
  const auto epsilon = static_cast<Acc>(hyper.norm_epsilon);
  const bool is_inside = hyper.norm_epsilon_at == RootEpsilon::kInside;
  return is_inside ? Acc{1} / std::sqrt(mean + epsilon) : Acc{1} / (std::sqrt(mean) + epsilon);
}

/// The derivative of 1 / rms by x is −(1 / rms) · slope · (1 / rms) · x / width: this slope, from 1 / rms.
template <typename Acc>
Acc slope_of_rms(Acc inverse, const HyperConnection& hyper) {
  if (hyper.norm_epsilon_at == RootEpsilon::kInside) return inverse;
  const Acc root = Acc{1} / inverse - static_cast<Acc>(hyper.norm_epsilon);
  return root > Acc{0} ? Acc{1} / root : Acc{0};
}

template <typename T>
void mix_tokens(const T* x, std::int64_t tokens, const Sizes& sizes, const HyperConnection& hyper, acc_t<T>* mix) {
  using Acc = acc_t<T>;
  const Acc* weight = hyper.weight_MC.const_data_ptr<Acc>();
  Acc wide[kTokens * kColumns];
  Acc square[kTokens] = {};
  std::fill_n(mix, tokens * sizes.logits, Acc{0});
  for_each_column_block(sizes.width(), [&](std::int64_t c, std::int64_t count) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      Acc* row = wide + t * kColumns;
      widen(x + t * sizes.width() + c, count, row);
      square[t] += dot(row, row, count);
    }
    for (std::int64_t m = 0; m < sizes.logits; ++m) {
      const Acc* row = weight + m * sizes.width() + c;
      for (std::int64_t t = 0; t < tokens; ++t) mix[t * sizes.logits + m] += dot(wide + t * kColumns, row, count);
    }
  });
  for (std::int64_t t = 0; t < tokens; ++t) {
    const Acc factor = inverse_rms(square[t], sizes.width(), hyper);
    for (std::int64_t m = 0; m < sizes.logits; ++m) mix[t * sizes.logits + m] *= factor;
  }
}

/// Of one token; the weight of stream n lies at read[n · kTokens].
template <typename T>
void read_token(const T* x, const acc_t<T>* read, const Sizes& sizes, T* z) {
  for_each_column_block(sizes.hidden, [&](std::int64_t h, std::int64_t count) {
    acc_t<T> sum[kColumns] = {};
    for (std::int64_t n = 0; n < sizes.streams; ++n) {
      add_scaled(read[n * kTokens], x + n * sizes.hidden + h, count, sum);
    }
    narrow(sum, count, z + h);
  });
}

/// Weights of one token, those of writing behind those of reading; `row`: kColumns of scratch.
template <typename T>
void write_token(const T* x, const T* y, const acc_t<T>* weight, const Sizes& sizes, acc_t<T>* row, T* out) {
  const acc_t<T>* exchange = weight + 2 * sizes.streams * kTokens;
  for_each_column_block(sizes.hidden, [&](std::int64_t h, std::int64_t count) {
    for (std::int64_t k = 0; k < sizes.streams; ++k) {
      std::fill_n(row, count, acc_t<T>{0});
      add_scaled(weight[(sizes.streams + k) * kTokens], y + h, count, row);
      for (std::int64_t j = 0; j < sizes.streams; ++j) {
        add_scaled(exchange[(j * sizes.streams + k) * kTokens], x + j * sizes.hidden + h, count, row);
      }
      narrow(row, count, out + k * sizes.hidden + h);
    }
  });
}

/// As above; `rows`: 2N + 1 of kColumns. `dstreams` is read and written; dweight's first N entries are left alone.
template <typename T>
void write_token_backward(const T* x, const T* y, const acc_t<T>* weight, const Sizes& sizes, acc_t<T>* rows,
                          T* dstreams, T* dy, acc_t<T>* dweight) {
  using Acc = acc_t<T>;
  const std::int64_t streams = sizes.streams;
  Acc* gradient = rows;
  Acc* stream = gradient + streams * kColumns;
  Acc* sum = stream + streams * kColumns;
  std::fill(dweight + streams, dweight + sizes.logits, Acc{0});
  for_each_column_block(sizes.hidden, [&](std::int64_t h, std::int64_t count) {
    std::fill_n(sum, count, Acc{0});
    for (std::int64_t k = 0; k < streams; ++k) {
      Acc* row = gradient + k * kColumns;
      widen(dstreams + k * sizes.hidden + h, count, row);
      widen(x + k * sizes.hidden + h, count, stream + k * kColumns);
      add_scaled(weight[(streams + k) * kTokens], row, count, sum);
      dweight[streams + k] += dot(row, y + h, count);
    }
    narrow(sum, count, dy + h);
    for (std::int64_t j = 0; j < streams; ++j) {
      std::fill_n(sum, count, Acc{0});
      for (std::int64_t k = 0; k < streams; ++k) {
        const std::int64_t at = 2 * streams + j * streams + k;
        add_scaled(weight[at * kTokens], gradient + k * kColumns, count, sum);
        dweight[at] += dot(stream + j * kColumns, gradient + k * kColumns, count);
      }
      narrow(sum, count, dstreams + j * sizes.hidden + h);
    }
  });
}

/// Of a block of tokens in a worker's memory: the weights of writing, and room for rows behind them.
template <typename Acc>
struct WriteBlock {
  Acc* weight;
  Acc* rows;
};
template <typename Acc>
WriteBlock<Acc> write_block(const HyperRules<Acc>& rules, const HyperCuts& cuts, const Sizes& sizes,
                            const Tensor& mix_TM, std::int64_t first, std::int64_t count, Acc* own) {
  Acc* trace = own + cuts.weights();
  gather(mix_TM.const_data_ptr<Acc>() + first * sizes.logits, count, sizes.logits, sizes.logits, own);
  write_weights(rules, own, trace, trace + cuts.trace());
  return {own, trace + cuts.trace() + cuts.inverse()};
}

template <typename T>
void write_forward(const Tensor& x_TC, const Tensor& y_TH, const Tensor& mix_TM, const HyperConnection& hyper,
                   const Sizes& sizes, const Tensor& out_TC) {
  using Acc = acc_t<T>;
  const HyperRules<Acc> rules(hyper);
  const HyperCuts cuts = cuts_of(sizes, hyper);
  const Workers<Acc> workers(sizes.blocks(), cuts.write_worker(), mix_TM);
  for_each_block(sizes, [&](std::int64_t worker, std::int64_t first, std::int64_t count) {
    const auto [weight, row] = write_block(rules, cuts, sizes, mix_TM, first, count, workers.of(worker));
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t streams = (first + t) * sizes.width();
      write_token(x_TC.const_data_ptr<T>() + streams, y_TH.const_data_ptr<T>() + (first + t) * sizes.hidden, weight + t,
                  sizes, row, out_TC.data_ptr<T>() + streams);
    }
  });
}

template <typename T>
void write_backward(const Tensor& x_TC, const Tensor& y_TH, const Tensor& mix_TM, const HyperConnection& hyper,
                    const Sizes& sizes, const Tensor& dstreams_TC, const Tensor& dy_TH, const Tensor& dweight_TM) {
  using Acc = acc_t<T>;
  const HyperRules<Acc> rules(hyper);
  const HyperCuts cuts = cuts_of(sizes, hyper);
  const Workers<Acc> workers(sizes.blocks(), cuts.write_backward_worker(), mix_TM);
  for_each_block(sizes, [&](std::int64_t worker, std::int64_t first, std::int64_t count) {
    const auto [weight, rows] = write_block(rules, cuts, sizes, mix_TM, first, count, workers.of(worker));
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t streams = (first + t) * sizes.width();
      const std::int64_t hidden = (first + t) * sizes.hidden;
      write_token_backward(x_TC.const_data_ptr<T>() + streams, y_TH.const_data_ptr<T>() + hidden, weight + t, sizes,
                           rows, dstreams_TC.data_ptr<T>() + streams, dy_TH.data_ptr<T>() + hidden,
                           dweight_TM.data_ptr<Acc>() + (first + t) * sizes.logits);
    }
  });
}

/// Of a block of tokens, from weights' gradients to logits': dz gives those of reading. Adds read · dz to dstreams.
template <typename T>
void read_tokens_backward(const T* dz, const T* x, std::int64_t tokens, const Sizes& sizes, const acc_t<T>* weight,
                          T* dstreams, acc_t<T>* dweight) {
  using Acc = acc_t<T>;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t n = 0; n < sizes.streams; ++n) {
      const std::int64_t stream = t * sizes.width() + n * sizes.hidden;
      dweight[t * sizes.logits + n] = dot(dz + t * sizes.hidden, x + stream, sizes.hidden);
      const Acc read = weight[n * kTokens + t];
      T* sum = dstreams + stream;
      const T* gradient = dz + t * sizes.hidden;
#pragma omp simd
      for (std::int64_t h = 0; h < sizes.hidden; ++h) {
        sum[h] = to_storage<T>(static_cast<Acc>(sum[h]) + read * static_cast<Acc>(gradient[h]));
      }
    }
  }
}

/// Adds what the tokens' logits say of biases and scales, token after token in fp64.
template <typename Acc>
void add_small_gradients(const Acc* dlogit, const Acc* mix, const Sizes& sizes, const HyperRules<Acc>& rules,
                         HyperConnectionGradient& gradient) {
  double of_scale[3] = {};
  for (std::int64_t m = 0; m < sizes.logits; ++m) {
    double of_bias = 0.0;
    for (std::int64_t t = 0; t < sizes.tokens; ++t) {
      const auto of_logit = static_cast<double>(dlogit[t * sizes.logits + m]);
      of_bias += of_logit;
      of_scale[rules.group(m)] += of_logit * static_cast<double>(mix[t * sizes.logits + m]);
    }
    gradient.bias_M.data_ptr<Acc>()[m] += static_cast<Acc>(of_bias);
  }
  for (std::int64_t g = 0; g < gradient.scale_G.numel(); ++g) {
    gradient.scale_G.data_ptr<Acc>()[g] += static_cast<Acc>(of_scale[g]);
  }
}

/// From the gradient of a token's logits to that of its products with the weight, in place; `factor`: 1 / rms(x).
/// Returns the factor by which the norm takes the streams themselves back.
template <typename Acc>
Acc norm_backward(Acc factor, const Acc* mix, const Sizes& sizes, const HyperConnection& hyper,
                  const HyperRules<Acc>& rules, Acc* gradient) {
  Acc along = 0;
  for (std::int64_t m = 0; m < sizes.logits; ++m) {
    const Acc of_mix = gradient[m] * rules.scale[rules.group(m)];
    along += of_mix * mix[m];
    gradient[m] = of_mix * factor;
  }
  return -along * factor * slope_of_rms(factor, hyper) / static_cast<Acc>(sizes.width());
}

/// Columns c … c + count of dstreams and of the weight's gradient, over all tokens. `sum`: a row of kColumns a logit.
template <typename T>
void project_back(const T* x, const acc_t<T>* gradient, const acc_t<T>* along, const acc_t<T>* weight,
                  const Sizes& sizes, std::int64_t c, std::int64_t count, acc_t<T>* sum, T* dstreams,
                  acc_t<T>* dweight) {
  using Acc = acc_t<T>;
  for (std::int64_t begin = 0; begin < sizes.tokens; begin += HyperCuts::kTokensOfASum) {
    const std::int64_t end = std::min(sizes.tokens, begin + HyperCuts::kTokensOfASum);
    std::fill_n(sum, sizes.logits * kColumns, Acc{0});
    for (std::int64_t t = begin; t < end; ++t) {
      Acc wide[kColumns];
      Acc row[kColumns];
      widen(x + t * sizes.width() + c, count, wide);
      widen(dstreams + t * sizes.width() + c, count, row);
      add_scaled(along[t], wide, count, row);
      for (std::int64_t m = 0; m < sizes.logits; ++m) {
        const Acc of_product = gradient[t * sizes.logits + m];
        add_scaled(of_product, weight + m * sizes.width() + c, count, row);
        add_scaled(of_product, wide, count, sum + m * kColumns);
      }
      narrow(row, count, dstreams + t * sizes.width() + c);
    }
    for (std::int64_t m = 0; m < sizes.logits; ++m) {
      add_scaled(Acc{1}, sum + m * kColumns, count, dweight + m * sizes.width() + c);
    }
  }
}

template <typename T>
void read_backward(const Tensor& dz_TH, const Tensor& x_TC, const Tensor& mix_TM, const HyperConnection& hyper,
                   const Sizes& sizes, const Tensor& dweight_TM, const Tensor& dstreams_TC,
                   HyperConnectionGradient& gradient) {
  using Acc = acc_t<T>;
  const HyperRules<Acc> rules(hyper);
  const HyperCuts cuts = cuts_of(sizes, hyper);
  const Tensor along_T = scratch({sizes.tokens}, mix_TM.options());
  const std::int64_t column_blocks = model::divide_up(sizes.width(), kColumns);
  const Workers<Acc> workers(std::max(sizes.blocks(), column_blocks), cuts.read_backward_worker(), mix_TM);
  const T* x = x_TC.const_data_ptr<T>();
  const Acc* mix = mix_TM.const_data_ptr<Acc>();
  T* dstreams = dstreams_TC.data_ptr<T>();
  Acc* dweight = dweight_TM.data_ptr<Acc>();
  Acc* along = along_T.data_ptr<Acc>();  // 1 / rms first
  for_each_block(sizes, [&](std::int64_t worker, std::int64_t first, std::int64_t count) {
    Acc* weight = workers.of(worker);
    Acc* of_weight = weight + cuts.weights();
    Acc* trace = of_weight + cuts.weights();
    Acc* gradient_of_block = dweight + first * sizes.logits;
    gather(mix + first * sizes.logits, count, sizes.logits, sizes.logits, weight);
    read_weights(rules, weight);
    if (cuts.writes()) write_weights(rules, weight, trace, trace + cuts.trace());
    read_tokens_backward(dz_TH.const_data_ptr<T>() + first * sizes.hidden, x + first * sizes.width(), count, sizes,
                         weight, dstreams + first * sizes.width(), gradient_of_block);
    gather(gradient_of_block, count, sizes.logits, sizes.logits, of_weight);
    weights_backward(rules, weight, trace, trace + cuts.trace(), of_weight);
    for (std::int64_t i = 0; i < count * sizes.logits; ++i) {
      gradient_of_block[i] = of_weight[i % sizes.logits * kTokens + i / sizes.logits];
    }
    for (std::int64_t t = first; t < first + count; ++t) {
      const T* streams = x + t * sizes.width();
      along[t] = inverse_rms(dot(streams, streams, sizes.width()), sizes.width(), hyper);
    }
  });
  add_small_gradients(dweight, mix, sizes, rules, gradient);
  for (std::int64_t t = 0; t < sizes.tokens; ++t) {
    along[t] = norm_backward(along[t], mix + t * sizes.logits, sizes, hyper, rules, dweight + t * sizes.logits);
  }
  for_each_unit(column_blocks, [&](std::int64_t worker, std::int64_t block) {
    const std::int64_t c = block * kColumns;
    project_back(x, dweight, along, hyper.weight_MC.const_data_ptr<Acc>(), sizes, c,
                 std::min(kColumns, sizes.width() - c), workers.of(worker), dstreams,
                 gradient.weight_MC.data_ptr<Acc>());
  });
}

/// Shapes and types of what every function gets.
Sizes sizes_of(const Tensor& x_TC, const Tensor& mix_TM, const HyperConnection& hyper) {
  const std::int64_t streams = hyper.num_streams;
  PRIMUS_CHECK(streams > 0 && x_TC.dim() == 2 && x_TC.size(1) % streams == 0 && x_TC.is_contiguous(),
               "hyper_connection: {} streams", streams);
  const Sizes sizes{x_TC.size(0), streams, x_TC.size(1) / streams, hyper.bias_M.numel()};
  const bool writes = sizes.logits == HyperCuts::num_logits(streams);
  PRIMUS_CHECK(writes || sizes.logits == streams, "hyper_connection: {} logits of {} streams", sizes.logits, streams);
  PRIMUS_CHECK(hyper.scale_G.numel() == (writes ? 3 : 1) && hyper.weight_MC.numel() == sizes.logits * x_TC.size(1) &&
                   hyper.weight_MC.is_contiguous(),
               "hyper_connection: parameters' shapes");
  PRIMUS_CHECK(mix_TM.numel() == sizes.tokens * sizes.logits && mix_TM.is_contiguous(),
               "hyper_connection: shape of mix");
  for (const Tensor* tensor : {&mix_TM, &hyper.weight_MC, &hyper.bias_M, &hyper.scale_G}) {
    PRIMUS_CHECK(tensor->scalar_type() == accumulator_type(x_TC.scalar_type()), "hyper_connection: types");
  }
  return sizes;
}

void check_hidden(const Tensor& hidden_TH, const Sizes& sizes, const Tensor& like, const char* name) {
  PRIMUS_CHECK(hidden_TH.numel() == sizes.tokens * sizes.hidden && hidden_TH.is_contiguous() &&
                   hidden_TH.scalar_type() == like.scalar_type(),
               "hyper_connection: shape or type of {}", name);
}

void check_streams(const Tensor& streams_TC, const Tensor& x_TC, const char* name) {
  PRIMUS_CHECK(streams_TC.sizes() == x_TC.sizes() && streams_TC.is_contiguous() &&
                   streams_TC.scalar_type() == x_TC.scalar_type(),
               "hyper_connection: shape or type of {}", name);
}

}  // namespace

void hyper_mix(const Tensor& x_TC, const HyperConnection& hyper, Tensor& mix_TM) {
  const ZoneScope zone(Zone::kHyperConnection);
  const Sizes sizes = sizes_of(x_TC, mix_TM, hyper);
  dispatch_floating(x_TC.scalar_type(), "hyper_mix", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_block(sizes, [&](std::int64_t, std::int64_t first, std::int64_t count) {
      mix_tokens(x_TC.const_data_ptr<T>() + first * sizes.width(), count, sizes, hyper,
                 mix_TM.data_ptr<acc_t<T>>() + first * sizes.logits);
    });
  });
}

void hyper_read_forward(const Tensor& x_TC, const Tensor& mix_TM, const HyperConnection& hyper, Tensor& z_TH) {
  const ZoneScope zone(Zone::kHyperConnection);
  const Sizes sizes = sizes_of(x_TC, mix_TM, hyper);
  check_hidden(z_TH, sizes, x_TC, "z");
  dispatch_floating(x_TC.scalar_type(), "hyper_read_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const HyperRules<Acc> rules(hyper);
    const Workers<Acc> workers(sizes.blocks(), cuts_of(sizes, hyper).read_worker(), mix_TM);
    for_each_block(sizes, [&](std::int64_t worker, std::int64_t first, std::int64_t count) {
      Acc* weight = workers.of(worker);
      gather(mix_TM.const_data_ptr<Acc>() + first * sizes.logits, count, sizes.logits, sizes.streams, weight);
      read_weights(rules, weight);
      for (std::int64_t t = 0; t < count; ++t) {
        read_token(x_TC.const_data_ptr<T>() + (first + t) * sizes.width(), weight + t, sizes,
                   z_TH.data_ptr<T>() + (first + t) * sizes.hidden);
      }
    });
  });
}

void hyper_write_forward(const Tensor& x_TC, const Tensor& y_TH, const Tensor& mix_TM, const HyperConnection& hyper,
                         Tensor& out_TC) {
  const ZoneScope zone(Zone::kHyperConnection);
  const Sizes sizes = sizes_of(x_TC, mix_TM, hyper);
  PRIMUS_CHECK(sizes.logits > sizes.streams, "hyper_connection: a connection that only reads");
  check_hidden(y_TH, sizes, x_TC, "y");
  check_streams(out_TC, x_TC, "out");
  dispatch_floating(x_TC.scalar_type(), "hyper_write_forward", [&](auto tag) {
    write_forward<typename decltype(tag)::type>(x_TC, y_TH, mix_TM, hyper, sizes, out_TC);
  });
}

void hyper_write_backward(const Tensor& x_TC, const Tensor& y_TH, const Tensor& mix_TM, const HyperConnection& hyper,
                          Tensor& dstreams_TC, Tensor& dy_TH, Tensor& dweight_TM) {
  const ZoneScope zone(Zone::kHyperConnection);
  const Sizes sizes = sizes_of(x_TC, mix_TM, hyper);
  PRIMUS_CHECK(sizes.logits > sizes.streams, "hyper_connection: a connection that only reads");
  check_hidden(y_TH, sizes, x_TC, "y");
  check_hidden(dy_TH, sizes, x_TC, "dy");
  check_streams(dstreams_TC, x_TC, "dstreams");
  check_streams(dweight_TM, mix_TM, "dweight");
  dispatch_floating(x_TC.scalar_type(), "hyper_write_backward", [&](auto tag) {
    write_backward<typename decltype(tag)::type>(x_TC, y_TH, mix_TM, hyper, sizes, dstreams_TC, dy_TH, dweight_TM);
  });
}

void hyper_read_backward(const Tensor& dz_TH, const Tensor& x_TC, const Tensor& mix_TM, const HyperConnection& hyper,
                         Tensor& dweight_TM, Tensor& dstreams_TC, HyperConnectionGradient& gradient) {
  const ZoneScope zone(Zone::kHyperConnection);
  const Sizes sizes = sizes_of(x_TC, mix_TM, hyper);
  check_hidden(dz_TH, sizes, x_TC, "dz");
  check_streams(dstreams_TC, x_TC, "dstreams");
  check_streams(dweight_TM, mix_TM, "dweight");
  check_streams(gradient.weight_MC, hyper.weight_MC, "the weight's gradient");
  check_streams(gradient.bias_M, hyper.bias_M, "the biases' gradient");
  check_streams(gradient.scale_G, hyper.scale_G, "the scales' gradient");
  dispatch_floating(x_TC.scalar_type(), "hyper_read_backward", [&](auto tag) {
    read_backward<typename decltype(tag)::type>(dz_TH, x_TC, mix_TM, hyper, sizes, dweight_TM, dstreams_TC, gradient);
  });
}

}  // namespace primus::ops
