#include "nn/mtp_input.hpp"

#include <ATen/TensorOperators.h>

namespace primus::nn {
namespace {

/// Is place t + shift in the sequence and in the document of place t? [B, S], in the type of masks.
Tensor reachable(const MicroBatchInput& input, model::BatchShape batch, std::int64_t shift) {
  const Tensor& like = input.loss.mask_T;
  Tensor is_reachable = at::zeros({batch.num_sequences, batch.seq_length}, like.options());
  const std::int64_t rest = batch.seq_length - shift;
  if (rest <= 0) return is_reachable;
  Tensor inside = is_reachable.narrow(1, 0, rest);
  if (!input.document_T.defined()) {
    inside.fill_(1.0);
    return is_reachable;
  }
  const Tensor document = input.document_T.view({batch.num_sequences, batch.seq_length});
  inside.copy_(document.narrow(1, 0, rest).eq(document.narrow(1, shift, rest)));
  return is_reachable;
}

/// x[t + shift] where reachable, else 0.
Tensor shifted(const Tensor& x_T, const Tensor& is_reachable, std::int64_t shift) {
  const std::int64_t sequences = is_reachable.size(0);
  const std::int64_t length = is_reachable.size(1);
  Tensor result = at::zeros({sequences, length}, x_T.options());
  if (const std::int64_t rest = length - shift; rest > 0) {
    result.narrow(1, 0, rest).copy_(x_T.view({sequences, length}).narrow(1, shift, rest));
  }
  return result.mul_(is_reachable.to(x_T.scalar_type())).view({-1});
}

}  // namespace

std::vector<double> add_depths(std::vector<MicroBatchInput>& micro_batches, model::BatchShape batch,
                               std::int64_t num_depths, double scale) {
  std::vector<double> counts;
  for (std::int64_t depth = 0; depth < num_depths; ++depth) {
    double count = 0.0;
    for (MicroBatchInput& input : micro_batches) {
      const Tensor is_reachable = reachable(input, batch, depth + 1);
      DepthInput shifted_input{.ids_T = shifted(input.ids_T, is_reachable, depth + 1),
                               .loss = {.label_T = shifted(input.loss.label_T, is_reachable, depth + 1),
                                        .mask_T = shifted(input.loss.mask_T, is_reachable, depth + 1)}};
      count += shifted_input.loss.mask_T.sum(at::kDouble).item<double>();
      input.depths.push_back(std::move(shifted_input));
    }
    counts.push_back(std::max(count, 1.0));
    for (MicroBatchInput& input : micro_batches) {
      input.depths.back().loss.inverse_num_tokens = scale / static_cast<double>(num_depths) / counts.back();
    }
  }
  return counts;
}

}  // namespace primus::nn
