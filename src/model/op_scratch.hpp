#pragma once
// What an op takes for itself while it runs, in bytes, from the sizes that the ops cut their work by.
#include "base/dtype.hpp"
#include "model/host_cuts.hpp"
#include "model/model_spec.hpp"

namespace primus::model {

/// Whose ops run.
enum class OpDevice { kHost, kGpu };

/// A linear layer: y[tokens, outputs] = x[tokens, inputs] · wᵀ.
struct ProductSizes {
  std::int64_t tokens = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
};
struct ProductTypes {
  DType operand = DType::kFloat32;  // of x and w
  DType result = DType::kFloat32;   // of y and its gradient
};

/// On the host: exact for one thread where the router does not decide how many rows an expert gets, else a bound. On a
/// GPU: what our own kernels take; the libraries' workspaces are part of what the framework takes.
struct OpScratch {
  OpDevice device = OpDevice::kHost;
  std::int64_t num_threads = 1;
  /// Does the host pack an operand of fp32 products itself (AVX-512)? Then a bound.
  Part packed_products = Part::kAbsent;

  std::int64_t product_forward(const ProductSizes& sizes, const ProductTypes& types) const;
  /// The larger of the input's and the weight's gradient.
  std::int64_t product_backward(const ProductSizes& sizes, const ProductTypes& types) const;
  std::int64_t weight_gradient(const ProductSizes& sizes, const ProductTypes& types) const;
  /// The same where each thread multiplies the rows of one expert at a time.
  std::int64_t grouped_forward(const ProductSizes& sizes, const ProductTypes& types) const;
  std::int64_t grouped_backward(const ProductSizes& sizes, const ProductTypes& types) const;
  /// `num_sums`: gradients that a norm adds up, of its weight, or of weight and bias.
  std::int64_t norm_backward(std::int64_t rows, std::int64_t width, std::int64_t num_sums, DType sums) const;
  /// Margins of every token and expert, by which a bias moves to a quantile.
  std::int64_t margins(std::int64_t tokens, std::int64_t experts, DType bias) const;
  std::int64_t attention_forward(const AttentionSizes& sizes, DType sums) const;
  std::int64_t attention_backward(const AttentionSizes& sizes, DType sums) const;
  std::int64_t delta_rule_forward(const DeltaSizes& sizes, DType sums) const;
  std::int64_t delta_rule_backward(const DeltaSizes& sizes, DType sums) const;
  /// Of a delta net: partial sums of the gradients of the decays' parameters, and of the output norm's weight over
  /// `rows` heads of tokens.
  std::int64_t decay_gate_backward(std::int64_t tokens, std::int64_t heads, DType sums) const;
  std::int64_t gated_norm_backward(std::int64_t rows, std::int64_t width, DType sums) const;
  /// The indexer of sparse attention, `sizes` its heads': the choice of keys; the loss beside attention whose queries
  /// are `width` wide.
  std::int64_t indexer_choice(const AttentionSizes& sizes, DType sums) const;
  std::int64_t indexer_loss(const AttentionSizes& sizes, std::int64_t width, DType sums) const;
  /// Hyper-connections between `tokens` tokens' streams of `hidden`: the larger of forward's functions, of backward's.
  std::int64_t hyper_forward(std::int64_t tokens, const HyperCuts& cuts, DType sums) const;
  std::int64_t hyper_backward(std::int64_t tokens, std::int64_t hidden, const HyperCuts& cuts, DType sums) const;
  /// A fused loss's chunk of logits, and the products that make and read it.
  std::int64_t fused_loss(const ProductSizes& sizes, const ProductTypes& types) const;

 private:
  std::int64_t product(std::int64_t rows, std::int64_t columns, std::int64_t depth, DType a, DType b, DType c) const;
};

}  // namespace primus::model
