#pragma once
// A norm of the model, over hidden states, heads or latent vectors: its parameters, and its statistics, which backward
// needs and which may be asked for again.
#include "nn/parameter.hpp"
#include "nn/saved.hpp"
#include "ops/norm/norm.hpp"

namespace primus::nn {

class Norm {
 public:
  /// `name` without ".weight". x may be of a wider type than the parameters: the norm is then taken in x's.
  Norm(const model::ModelSpec& spec, const std::string& name, ParameterStore& parameters);

  /// An RMSNorm over `width` values without a weight, for tensors like `like`.
  static Norm without_weight(double epsilon, std::int64_t width, const Tensor& like);

  /// y from x over its last axis, its statistics taken from `saved`, or made and left there.
  void forward(const Tensor& x, int statistics_slot, Saved& saved, Tensor& y) const;
  /// y from x; returns the statistics.
  Tensor forward(const Tensor& x, Tensor& y) const;
  /// y again.
  void apply(const Tensor& x, const Tensor& statistics, Tensor& y) const;
  /// dx (+)= d/dx; what the parameters' gradients get is added to them.
  void backward(const Tensor& dy, const Tensor& x, const Tensor& statistics, Tensor& dx, ops::Write write);

 private:
  Norm() = default;
  /// Weight and bias in the type of x.
  ops::NormParameters values(const Tensor& x) const;

  ops::NormOptions options_;
  Parameter* weight_ = nullptr;  // nullptr: ones_H_, and a gradient that nobody reads
  Parameter* bias_ = nullptr;
  Tensor ones_H_, unread_H_;
};

}  // namespace primus::nn
