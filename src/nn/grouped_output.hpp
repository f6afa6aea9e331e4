#pragma once
// The way back from attention's context through a low rank, groups of heads apart: each group has a product of its own,
// and one product mixes what they give. Legend: T tokens, V context width, L width of all groups' low ranks, H hidden.
#include "nn/layer.hpp"

namespace primus::nn {

class GroupedOutput {
 public:
  GroupedOutput(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

  void down(const Tensor& context_TV, Tensor& down_TL) const;
  /// residual_TH += the groups mixed.
  void project(const Tensor& down_TL, Tensor& residual_TH) const;
  /// Both products' input gradients, overwritten.
  void backward(const Tensor& dy_TH, Tensor& ddown_TL, Tensor& dcontext_TV) const;
  void add_weight_gradients(const Tensor& dy_TH, const Tensor& down_TL, const Tensor& ddown_TL,
                            const Tensor& context_TV);

 private:
  std::int64_t num_groups_;
  Parameter& down_;
  Parameter& projection_;
};

}  // namespace primus::nn
