#pragma once
// Hyper-connections: a sublayer reads one weighted sum of several residual streams and is written back into all of
// them, which are mixed meanwhile. Every weight of that is made from the token's own streams:
//   mix = weight · x / rms(x), over all streams at once; logit = scale · mix + bias, in three groups with one scale
//   each: read = σ(logit) + ε; write = 2·σ(logit); exchange = Sinkhorn's iteration on softmax(rows of logits) + ε.
//   z = Σ_n read_n · x_n; out_k = write_k · y + Σ_j exchange_jk · x_j.
// Sinkhorn divides columns by their sum + ε, then rows and columns by turns. Without the last two groups it is what
// makes one hidden state of all streams. Legend: T tokens, N streams, H hidden, C = N·H, M logits: N·(2 + N), or N of
// reading alone; G groups. CPU only.
#include "ops/dtype.hpp"

namespace primus::ops {

/// Where the root mean square that divides the products gets its epsilon: sqrt(mean square + ε), or sqrt(mean square) +
/// ε.
enum class RootEpsilon { kInside, kOutside };

/// Parameters in fp32 (fp64 beside fp64), dense: a row of weight_MC a logit, in the order of the groups; those of the
/// exchange row by row.
struct HyperConnection {
  std::int64_t num_streams = 0;
  Tensor weight_MC, bias_M, scale_G;
  double norm_epsilon = 1e-6;
  RootEpsilon norm_epsilon_at = RootEpsilon::kInside;
  double epsilon = 1e-6;         // ε above
  int sinkhorn_iterations = 20;  // 0: rows of the exchange add up to one, columns to anything
};

/// Sums that the parameters' gradients are added to, in the parameters' types.
struct HyperConnectionGradient {
  Tensor weight_MC, bias_M, scale_G;
};

/// mix_TM in fp32 (fp64 beside fp64), from which the other functions make the weights. All tensors are dense.
void hyper_mix(const Tensor& x_TC, const HyperConnection& hyper, Tensor& mix_TM);

/// z_TH, what the sublayer reads.
void hyper_read_forward(const Tensor& x_TC, const Tensor& mix_TM, const HyperConnection& hyper, Tensor& z_TH);

/// out_TC from the sublayer's output y_TH. It may not be x_TC's storage.
void hyper_write_forward(const Tensor& x_TC, const Tensor& y_TH, const Tensor& mix_TM, const HyperConnection& hyper,
                         Tensor& out_TC);

/// The writing half of backward: dstreams_TC holds the gradient of out and is left with what x gets of it directly;
/// dy_TH (overwritten); dweight_TM, of mix's type, takes the gradients of write and exchange.
void hyper_write_backward(const Tensor& x_TC, const Tensor& y_TH, const Tensor& mix_TM, const HyperConnection& hyper,
                          Tensor& dstreams_TC, Tensor& dy_TH, Tensor& dweight_TM);

/// The rest: adds to dstreams_TC what x gets from z and from the weights. dweight_TM is as hyper_write_backward left
/// it, or anything where the connection only reads; it is used up.
void hyper_read_backward(const Tensor& dz_TH, const Tensor& x_TC, const Tensor& mix_TM, const HyperConnection& hyper,
                         Tensor& dweight_TM, Tensor& dstreams_TC, HyperConnectionGradient& gradient);

}  // namespace primus::ops
