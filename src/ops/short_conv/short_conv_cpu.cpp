#include "ops/short_conv/short_conv.hpp"

#include "ops/for_each_unit.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

// A unit is a block of channels: it walks all sequences in chunks of tokens, so that what it reads again stays in the
// cache, and it alone adds to its channels' weight gradients. Taps that reach before a token's document meet nothing.
namespace primus::ops {
namespace {

constexpr std::int64_t kBlock = 64;  // channels of a unit
constexpr std::int64_t kChunk = 64;  // tokens of a chunk

/// Rows of a tensor [T, width].
template <typename T>
struct Rows {
  T* data = nullptr;
  std::int64_t stride = 0;

  Rows(const Tensor& x, std::int64_t tokens, std::int64_t width, const char* name)
      : data(x.data_ptr<std::remove_const_t<T>>()), stride(x.stride(0)) {
    PRIMUS_CHECK(x.dim() == 2 && x.size(0) == tokens && x.size(1) == width && (x.stride(1) == 1 || width <= 1),
                 "short_conv: shape of {}", name);
  }
  T* at(std::int64_t token, std::int64_t channel) const { return data + token * stride + channel; }
};

/// What a unit computes with: its channels' weights, and rows of a chunk with those that its taps reach.
template <typename Acc>
struct Block {
  std::int64_t first = 0, width = 0;  // channels
  std::int64_t taps = 0;
  std::vector<Acc> weight;  // [tap back from the token][channel]
  std::vector<Acc> bias;
  std::vector<Acc> u, z;  // the convolution's input and output; later z's gradient
  std::vector<Acc> dweight, dbias, chunk_dweight, chunk_dbias;

  Acc* tap(std::vector<Acc>& values, std::int64_t back) { return values.data() + back * kBlock; }
};

template <typename T, typename Acc>
Block<Acc> make_block(const ShortConv& conv, std::int64_t first) {
  const std::int64_t channels = conv.weight_C1K.size(0);
  Block<Acc> block;
  block.first = first;
  block.width = std::min(kBlock, channels - first);
  block.taps = conv.weight_C1K.size(2);
  const auto rows = [&](std::int64_t count) { return std::vector<Acc>(static_cast<std::size_t>(count * kBlock)); };
  block.weight = rows(block.taps);
  block.bias = rows(1);
  block.u = rows(kChunk + 2 * block.taps);
  block.z = rows(kChunk + block.taps);
  const T* weight = conv.weight_C1K.const_data_ptr<T>();
  for (std::int64_t back = 0; back < block.taps; ++back) {
    for (std::int64_t c = 0; c < block.width; ++c) {
      block.tap(block.weight, back)[c] = static_cast<Acc>(weight[(first + c) * block.taps + block.taps - 1 - back]);
    }
  }
  if (conv.bias_C.defined()) {
    const T* bias = conv.bias_C.const_data_ptr<T>();
    for (std::int64_t c = 0; c < block.width; ++c)
      block.bias[static_cast<std::size_t>(c)] = static_cast<Acc>(bias[first + c]);
  }
  return block;
}

/// One sequence: its first token in the micro-batch, its length, and how far back each of its tokens sees.
struct Sequence {
  std::int64_t first = 0, length = 0;
  const std::int32_t* first_key = nullptr;

  std::int64_t taps_at(std::int64_t s, std::int64_t taps) const {
    return std::min(taps, s + 1 - (first_key != nullptr ? first_key[s] : 0));
  }
};

/// Tokens [begin, end) of a sequence, with `reach` further ones behind where the sequence has them.
struct Chunk {
  std::int64_t begin = 0, end = 0;
  std::int64_t u_begin = 0, z_end = 0;
};

template <typename Body>
void for_each_chunk(const Tensor& first_key_BS, std::int64_t tokens, std::int64_t seq_length, std::int64_t taps,
                    const Body& body) {
  const std::int32_t* keys = first_key_BS.defined() ? first_key_BS.const_data_ptr<std::int32_t>() : nullptr;
  for (std::int64_t first = 0; first < tokens; first += seq_length) {
    const Sequence sequence{first, seq_length, keys != nullptr ? keys + first : nullptr};
    for (std::int64_t begin = 0; begin < seq_length; begin += kChunk) {
      const std::int64_t end = std::min(begin + kChunk, seq_length);
      body(sequence,
           Chunk{begin, end, std::max<std::int64_t>(0, begin - taps + 1), std::min(end + taps - 1, seq_length)});
    }
  }
}

/// z of tokens [chunk.begin, end) from u, whose first row is chunk.u_begin's.
template <typename Acc>
void convolve(Block<Acc>& block, const Sequence& sequence, const Chunk& chunk, std::int64_t end) {
  for (std::int64_t s = chunk.begin; s < end; ++s) {
    Acc* z = block.z.data() + (s - chunk.begin) * kBlock;
    std::copy_n(block.bias.data(), block.width, z);
    const std::int64_t taps = sequence.taps_at(s, block.taps);
    for (std::int64_t back = 0; back < taps; ++back) {
      const Acc* u = block.u.data() + (s - back - chunk.u_begin) * kBlock;
      const Acc* weight = block.tap(block.weight, back);
#pragma omp simd
      for (std::int64_t c = 0; c < block.width; ++c) z[c] += weight[c] * u[c];
    }
  }
}

/// The sums of the parameters' gradients over a chunk, from z's gradient in block.z.
template <typename Acc>
void add_parameter_gradients(Block<Acc>& block, const Sequence& sequence, const Chunk& chunk) {
  std::fill(block.chunk_dweight.begin(), block.chunk_dweight.end(), Acc{0});
  std::fill(block.chunk_dbias.begin(), block.chunk_dbias.end(), Acc{0});
  for (std::int64_t s = chunk.begin; s < chunk.end; ++s) {
    const Acc* dz = block.z.data() + (s - chunk.begin) * kBlock;
    const std::int64_t taps = sequence.taps_at(s, block.taps);
    for (std::int64_t back = 0; back < taps; ++back) {
      const Acc* u = block.u.data() + (s - back - chunk.u_begin) * kBlock;
      Acc* dweight = block.tap(block.chunk_dweight, back);
#pragma omp simd
      for (std::int64_t c = 0; c < block.width; ++c) dweight[c] += dz[c] * u[c];
    }
    for (std::int64_t c = 0; c < block.width; ++c) block.chunk_dbias[static_cast<std::size_t>(c)] += dz[c];
  }
  for (std::size_t i = 0; i < block.dweight.size(); ++i) block.dweight[i] += block.chunk_dweight[i];
  for (std::size_t i = 0; i < block.dbias.size(); ++i) block.dbias[i] += block.chunk_dbias[i];
}

/// du_C of token s from the gradients of the outputs that saw it.
template <typename Acc>
void input_gradient(Block<Acc>& block, const Sequence& sequence, const Chunk& chunk, std::int64_t s, Acc* du) {
  std::fill_n(du, block.width, Acc{0});
  for (std::int64_t ahead = 0; ahead < block.taps && s + ahead < sequence.length; ++ahead) {
    if (sequence.taps_at(s + ahead, block.taps) <= ahead) break;  // another document has begun
    const Acc* dz = block.z.data() + (s + ahead - chunk.begin) * kBlock;
    const Acc* weight = block.tap(block.weight, ahead);
#pragma omp simd
    for (std::int64_t c = 0; c < block.width; ++c) du[c] += weight[c] * dz[c];
  }
}

template <typename Acc>
void write_parameter_gradients(Block<Acc>& block, ShortConvGradient& gradient) {
  Acc* weight = gradient.weight_C1K.data_ptr<Acc>();
  for (std::int64_t back = 0; back < block.taps; ++back) {
    for (std::int64_t c = 0; c < block.width; ++c) {
      weight[(block.first + c) * block.taps + block.taps - 1 - back] += block.tap(block.dweight, back)[c];
    }
  }
  if (!gradient.bias_C.defined()) return;
  Acc* bias = gradient.bias_C.data_ptr<Acc>();
  for (std::int64_t c = 0; c < block.width; ++c) bias[block.first + c] += block.dbias[static_cast<std::size_t>(c)];
}

/// What stands around LFM2's convolution. A row's parts: b, c, x.
template <typename T>
struct Gates {
  using Acc = acc_t<T>;
  Rows<const T> in;
  std::int64_t channels;

  void load(std::int64_t token, const Block<Acc>& block, Acc* u) const {
    const T* b = in.at(token, block.first);
    const T* x = in.at(token, 2 * channels + block.first);
#pragma omp simd
    for (std::int64_t c = 0; c < block.width; ++c) u[c] = static_cast<Acc>(b[c]) * static_cast<Acc>(x[c]);
  }
  void output(std::int64_t token, const Block<Acc>& block, const Acc* z, T* y) const {
    const T* gate = in.at(token, channels + block.first);
#pragma omp simd
    for (std::int64_t c = 0; c < block.width; ++c) y[c] = to_storage<T>(static_cast<Acc>(gate[c]) * z[c]);
  }
  /// z becomes its gradient; the gate's is written to `din` where the token is the chunk's own.
  void output_backward(std::int64_t token, const Block<Acc>& block, const T* dy, Acc* z, T* din) const {
    const T* gate = in.at(token, channels + block.first);
    if (din != nullptr) {
      T* dgate = din + channels;
#pragma omp simd
      for (std::int64_t c = 0; c < block.width; ++c) dgate[c] = to_storage<T>(static_cast<Acc>(dy[c]) * z[c]);
    }
#pragma omp simd
    for (std::int64_t c = 0; c < block.width; ++c) z[c] = static_cast<Acc>(dy[c]) * static_cast<Acc>(gate[c]);
  }
  void input_backward(std::int64_t token, const Block<Acc>& block, const Acc* du, T* din) const {
    const T* b = in.at(token, block.first);
    const T* x = in.at(token, 2 * channels + block.first);
    T* dx = din + 2 * channels;
#pragma omp simd
    for (std::int64_t c = 0; c < block.width; ++c) {
      din[c] = to_storage<T>(du[c] * static_cast<Acc>(x[c]));
      dx[c] = to_storage<T>(du[c] * static_cast<Acc>(b[c]));
    }
  }
};

/// A SiLU behind the convolution.
template <typename T>
struct Silu {
  using Acc = acc_t<T>;
  Rows<const T> in;

  void load(std::int64_t token, const Block<Acc>& block, Acc* u) const {
    const T* x = in.at(token, block.first);
#pragma omp simd
    for (std::int64_t c = 0; c < block.width; ++c) u[c] = static_cast<Acc>(x[c]);
  }
  void output(std::int64_t, const Block<Acc>& block, const Acc* z, T* y) const {
#pragma omp simd
    for (std::int64_t c = 0; c < block.width; ++c) y[c] = to_storage<T>(z[c] * fast_sigmoid(z[c]));
  }
  void output_backward(std::int64_t, const Block<Acc>& block, const T* dy, Acc* z, T*) const {
#pragma omp simd
    for (std::int64_t c = 0; c < block.width; ++c) {
      const Acc open = fast_sigmoid(z[c]);
      z[c] = static_cast<Acc>(dy[c]) * open * (Acc{1} + z[c] * (Acc{1} - open));
    }
  }
  void input_backward(std::int64_t, const Block<Acc>& block, const Acc* du, T* din) const {
#pragma omp simd
    for (std::int64_t c = 0; c < block.width; ++c) din[c] = to_storage<T>(du[c]);
  }
};

template <typename T, typename Around>
void load_chunk(const Around& around, Block<acc_t<T>>& block, const Sequence& sequence, const Chunk& chunk,
                std::int64_t end) {
  for (std::int64_t s = chunk.u_begin; s < end; ++s) {
    around.load(sequence.first + s, block, block.u.data() + (s - chunk.u_begin) * kBlock);
  }
}

std::int64_t num_blocks(const ShortConv& conv) {
  return (conv.weight_C1K.size(0) + kBlock - 1) / kBlock;
}

template <typename T, typename Around>
void forward(const Around& around, const ShortConv& conv, const Tensor& y_TC) {
  using Acc = acc_t<T>;
  const std::int64_t tokens = y_TC.size(0);
  const Rows<T> y(y_TC, tokens, conv.weight_C1K.size(0), "y");
  for_each_unit(num_blocks(conv), [&](std::int64_t, std::int64_t unit) {
    Block<Acc> block = make_block<T, Acc>(conv, unit * kBlock);
    for_each_chunk(conv.first_key_BS, tokens, conv.seq_length, block.taps,
                   [&](const Sequence& sequence, const Chunk& chunk) {
                     load_chunk<T>(around, block, sequence, chunk, chunk.end);
                     convolve(block, sequence, chunk, chunk.end);
                     for (std::int64_t s = chunk.begin; s < chunk.end; ++s) {
                       around.output(sequence.first + s, block, block.z.data() + (s - chunk.begin) * kBlock,
                                     y.at(sequence.first + s, block.first));
                     }
                   });
  });
}

/// One chunk of one unit, backwards. All that it reads of dy is read before it writes, and no later chunk reads dy
/// before its own begin: dy may be the storage of din.
template <typename T, typename Around>
void backward_chunk(const Around& around, Block<acc_t<T>>& block, const Sequence& sequence, const Chunk& chunk,
                    const Rows<const T>& dy, const Rows<T>& din) {
  using Acc = acc_t<T>;
  load_chunk<T>(around, block, sequence, chunk, chunk.z_end);
  convolve(block, sequence, chunk, chunk.z_end);
  for (std::int64_t s = chunk.begin; s < chunk.z_end; ++s) {
    const std::int64_t token = sequence.first + s;
    around.output_backward(token, block, dy.at(token, block.first), block.z.data() + (s - chunk.begin) * kBlock,
                           s < chunk.end ? din.at(token, block.first) : nullptr);
  }
  add_parameter_gradients(block, sequence, chunk);
  Acc du[kBlock];
  for (std::int64_t s = chunk.begin; s < chunk.end; ++s) {
    input_gradient(block, sequence, chunk, s, du);
    around.input_backward(sequence.first + s, block, du, din.at(sequence.first + s, block.first));
  }
}

template <typename T, typename Around>
void backward(const Around& around, const ShortConv& conv, const Tensor& dy_TC, const Rows<T>& din,
              ShortConvGradient& gradient) {
  using Acc = acc_t<T>;
  const std::int64_t tokens = dy_TC.size(0);
  const Rows<const T> dy(dy_TC, tokens, conv.weight_C1K.size(0), "dy");
  for_each_unit(num_blocks(conv), [&](std::int64_t, std::int64_t unit) {
    Block<Acc> block = make_block<T, Acc>(conv, unit * kBlock);
    block.dweight.assign(block.weight.size(), Acc{0});
    block.chunk_dweight = block.dweight;
    block.dbias.assign(block.bias.size(), Acc{0});
    block.chunk_dbias = block.dbias;
    for_each_chunk(conv.first_key_BS, tokens, conv.seq_length, block.taps,
                   [&](const Sequence& sequence, const Chunk& chunk) {
                     backward_chunk<T>(around, block, sequence, chunk, dy, din);
                   });
    write_parameter_gradients(block, gradient);
  });
}

void check(const ShortConv& conv, std::int64_t tokens, const char* op) {
  const Tensor& weight = conv.weight_C1K;
  PRIMUS_CHECK(weight.dim() == 3 && weight.size(1) == 1 && weight.size(2) >= 1 && weight.is_contiguous(),
               "{}: shape of the weight", op);
  PRIMUS_CHECK(!conv.bias_C.defined() || conv.bias_C.numel() == weight.size(0), "{}: shape of the bias", op);
  PRIMUS_CHECK(conv.seq_length > 0 && tokens % conv.seq_length == 0, "{}: {} tokens in sequences of {}", op, tokens,
               conv.seq_length);
  PRIMUS_CHECK(!conv.first_key_BS.defined() ||
                   (conv.first_key_BS.numel() == tokens && conv.first_key_BS.scalar_type() == at::kInt &&
                    conv.first_key_BS.is_contiguous()),
               "{}: first keys of {} tokens", op, tokens);
}

}  // namespace

void gated_conv_forward(const Tensor& in_T3C, const ShortConv& conv, Tensor& y_TC) {
  const ZoneScope zone(Zone::kShortConv);
  const std::int64_t channels = conv.weight_C1K.size(0);
  check(conv, in_T3C.size(0), "gated_conv_forward");
  dispatch_floating(in_T3C.scalar_type(), "gated_conv_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    forward<T>(Gates<T>{{in_T3C, y_TC.size(0), 3 * channels, "input"}, channels}, conv, y_TC);
  });
}

void gated_conv_backward(const Tensor& dy_TC, const Tensor& in_T3C, const ShortConv& conv, Tensor& din_T3C,
                         ShortConvGradient& gradient) {
  const ZoneScope zone(Zone::kShortConv);
  const std::int64_t channels = conv.weight_C1K.size(0);
  check(conv, in_T3C.size(0), "gated_conv_backward");
  dispatch_floating(in_T3C.scalar_type(), "gated_conv_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Gates<T> around{{in_T3C, dy_TC.size(0), 3 * channels, "input"}, channels};
    backward<T>(around, conv, dy_TC, Rows<T>(din_T3C, dy_TC.size(0), 3 * channels, "its gradient"), gradient);
  });
}

void silu_conv_forward(const Tensor& x_TC, const ShortConv& conv, Tensor& y_TC) {
  const ZoneScope zone(Zone::kShortConv);
  check(conv, x_TC.size(0), "silu_conv_forward");
  dispatch_floating(x_TC.scalar_type(), "silu_conv_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    forward<T>(Silu<T>{{x_TC, y_TC.size(0), conv.weight_C1K.size(0), "input"}}, conv, y_TC);
  });
}

void silu_conv_backward(const Tensor& dy_TC, const Tensor& x_TC, const ShortConv& conv, Tensor& dx_TC,
                        ShortConvGradient& gradient) {
  const ZoneScope zone(Zone::kShortConv);
  check(conv, x_TC.size(0), "silu_conv_backward");
  dispatch_floating(x_TC.scalar_type(), "silu_conv_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Silu<T> around{{x_TC, dy_TC.size(0), conv.weight_C1K.size(0), "input"}};
    backward<T>(around, conv, dy_TC, Rows<T>(dx_TC, dy_TC.size(0), conv.weight_C1K.size(0), "its gradient"), gradient);
  });
}

}  // namespace primus::ops
