#pragma once
// The look-up of tokens, with what a model does to it: a factor by width, and dropout. Legend: T tokens, H hidden.
#include "nn/residual_dropout.hpp"

namespace primus::nn {

class TokenEmbedding {
 public:
  /// `user` names who looks up: its dropout has a stream of its own.
  TokenEmbedding(const model::ModelSpec& spec, const std::string& user, ParameterStore& parameters);

  /// x_TH (overwritten, of the activations' type or wider) = dropout(factor · (rows of the ids + added_TH)).
  void forward(const Tensor& ids_T, const StepContext& step, Tensor& x_TH, const Tensor& added_TH = {}) const;
  /// Adds to the embedding's main gradient; returns the gradient of added_TH, in the storage of dx_TH.
  Tensor backward(const Tensor& ids_T, Tensor dx_TH, const StepContext& step);

 private:
  Parameter& weight_;
  double factor_;
  ResidualDropout dropout_;
};

}  // namespace primus::nn
