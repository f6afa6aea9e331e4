#pragma once
// Token cross-entropy, alone or fused with the output layer. Legend: T tokens, H hidden, V padded vocabulary. Labels:
// int64, each in [0, V): InternalError otherwise (on a GPU the kernel ends, and the runtime's next call reports it).
#include "ops/dtype.hpp"

namespace primus::ops {

/// What stands between the output layer's products and the softmax: softcap · tanh(scale · product / softcap).
struct LogitOptions {
  double scale = 1.0;
  double softcap = 0.0;                     // 0: scale · product
  std::optional<at::ScalarType> type = {};  // of the products in chunks; none: x's

  bool is_identity() const { return scale == 1.0 && softcap == 0.0; }
};

/// loss_T (fp32 or fp64) = logsumexp(logits) − logits[label] over all V columns. Then logits_TV is overwritten with the
/// gradient (softmax − onehot) · grad_T, so that no second [T, V] tensor exists. grad_T: loss mask times 1 / number of
/// tokens.
void cross_entropy_forward_backward(Tensor& logits_TV, const Tensor& label_T, const Tensor& grad_T, Tensor& loss_T);

/// The same where logits_TV holds products: what overwrites them is their gradient.
void bounded_cross_entropy(Tensor& logits_TV, const Tensor& label_T, const Tensor& grad_T, const LogitOptions& options,
                           Tensor& loss_T);

/// loss_T only; logits stay.
void cross_entropy_forward(const Tensor& logits_TV, const Tensor& label_T, Tensor& loss_T);

/// Products to logits, in place.
void bound_logits(const LogitOptions& options, Tensor& logits_TV);

/// The output layer and the loss in chunks of tokens: logits of one chunk only are ever held.
/// loss_T; dx_TH = d/dx; main_grad_VH (+)= the weight's gradient, where it is defined. grad_T as above. Chunk size:
/// `chunk_tokens`, 0: chosen (on a GPU logits of at most 800 MiB). The same code on every device: products and loss are
/// ops of their own.
void linear_cross_entropy(const Tensor& x_TH, const Tensor& w_VH, const Tensor& label_T, const Tensor& grad_T,
                          std::int64_t chunk_tokens, Tensor& loss_T, Tensor& dx_TH, Tensor& main_grad_VH,
                          const LogitOptions& options = {}, Write write = Write::kAccumulate);

/// Loss only, chunked (evaluation).
void linear_cross_entropy_loss(const Tensor& x_TH, const Tensor& w_VH, const Tensor& label_T, std::int64_t chunk_tokens,
                               Tensor& loss_T, const LogitOptions& options = {});

}  // namespace primus::ops
