#pragma once
// Short causal convolutions along each sequence, channel by channel, with what stands around them: the two gates of
// LFM2, or the SiLU in front of linear attention. Legend: T tokens of a micro-batch, in sequences of seq_length; C
// channels, K taps. Rows may be further apart than they are wide. CPU only.
#include "ops/dtype.hpp"

namespace primus::ops {

struct ShortConv {
  Tensor weight_C1K;  // the last tap meets the token itself
  Tensor bias_C;      // undefined: none
  std::int64_t seq_length = 0;
  Tensor first_key_BS;  // int32, the first token of its sequence that each one sees; undefined: the sequence's
};

/// Sums that the parameters' gradients are added to, fp32 (fp64 beside fp64). `bias_C` undefined beside no bias.
struct ShortConvGradient {
  Tensor weight_C1K;
  Tensor bias_C;
};

/// y = c ⊙ conv(b ⊙ x); in_T3C holds b, c and x side by side.
void gated_conv_forward(const Tensor& in_T3C, const ShortConv& conv, Tensor& y_TC);

/// din_T3C (overwritten) from dy; the parameters' gradients are added to `gradient`.
void gated_conv_backward(const Tensor& dy_TC, const Tensor& in_T3C, const ShortConv& conv, Tensor& din_T3C,
                         ShortConvGradient& gradient);

/// y = silu(conv(x)).
void silu_conv_forward(const Tensor& x_TC, const ShortConv& conv, Tensor& y_TC);

/// dx_TC (overwritten) from dy, which may be its storage; the parameters' gradients are added to `gradient`.
void silu_conv_backward(const Tensor& dy_TC, const Tensor& x_TC, const ShortConv& conv, Tensor& dx_TC,
                        ShortConvGradient& gradient);

}  // namespace primus::ops
