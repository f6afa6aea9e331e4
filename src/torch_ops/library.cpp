// Registers torch.ops.primus. Gradients and shapes of tensors without data are registered by python/primus_ops.py.
#include <torch/library.h>

#include "torch_ops/ops.hpp"

namespace primus::torch_ops {
namespace {

void implement(torch::Library& library) {
  library.impl("router", router);
  library.impl("router_backward", router_backward);
  library.impl("permute_plan", permute_plan);
  library.impl("permute", permute);
  library.impl("unpermute", unpermute);
  library.impl("permute_probs", permute_probs);
  library.impl("unpermute_probs", unpermute_probs);
  library.impl("grouped_mlp", grouped_mlp);
  library.impl("grouped_mlp_backward", grouped_mlp_backward);
  library.impl("linear_cross_entropy", linear_cross_entropy);
}

}  // namespace
}  // namespace primus::torch_ops

TORCH_LIBRARY(primus, library) {
  library.def(
      "router(Tensor logits, Tensor? bias, int topk, str score_function, bool use_pre_softmax, float scaling_factor, "
      "int num_groups, int group_topk, float aux_loss_coeff, float z_loss_coeff) -> "
      "(Tensor prob, Tensor index, Tensor num_tokens, Tensor loss, Tensor slope)");
  library.def(
      "router_backward(Tensor? dprob, Tensor? dloss, Tensor logits, Tensor prob, Tensor index, Tensor slope, int topk, "
      "str score_function, bool use_pre_softmax, float scaling_factor, int num_groups, int group_topk, "
      "float aux_loss_coeff, float z_loss_coeff) -> Tensor");
  library.def("permute_plan(Tensor index, int num_experts) -> (Tensor offsets, Tensor row_of, Tensor slot_of)");
  library.def("permute(Tensor x, Tensor row_of) -> Tensor");
  library.def("unpermute(Tensor y, Tensor row_of) -> Tensor");
  library.def("permute_probs(Tensor prob, Tensor slot_of) -> Tensor");
  library.def("unpermute_probs(Tensor prob, Tensor row_of) -> Tensor");
  library.def(
      "grouped_mlp(Tensor x, Tensor offsets, Tensor prob, Tensor w1, Tensor w2) -> (Tensor y, Tensor pre_activation)");
  library.def(
      "grouped_mlp_backward(Tensor dy, Tensor x, Tensor offsets, Tensor prob, Tensor w1, Tensor w2, "
      "Tensor pre_activation) -> (Tensor dx, Tensor dprob, Tensor dw1, Tensor dw2)");
  library.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor label, int ignore_index) -> "
      "(Tensor loss, Tensor dx, Tensor dweight)");
}

TORCH_LIBRARY_IMPL(primus, CPU, library) {
  primus::torch_ops::implement(library);
}

TORCH_LIBRARY_IMPL(primus, CUDA, library) {
  primus::torch_ops::implement(library);
}
