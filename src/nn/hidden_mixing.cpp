#include "nn/hidden_mixing.hpp"

#include <ATen/TensorOperators.h>

#include "base/philox.hpp"

namespace primus::nn {
namespace {

/// Is token t + shift in the sequence and in the document of token t?
class Reach {
 public:
  Reach(const MicroBatchInput& input, std::int64_t seq_length) : seq_length_(seq_length) {
    if (input.document_T.defined()) document_T_ = input.document_T.to(at::kCPU).contiguous();
  }
  bool holds(std::int64_t token, std::int64_t shift) const {
    if (token % seq_length_ + shift >= seq_length_) return false;
    if (!document_T_.defined()) return true;
    const auto* document = document_T_.const_data_ptr<std::int64_t>();
    return document[token] == document[token + shift];
  }

 private:
  std::int64_t seq_length_;
  Tensor document_T_;
};

Tensor int64_of(std::vector<std::int64_t> values, at::Device device) {
  return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kLong).clone().to(device);
}

}  // namespace

HiddenMixing::HiddenMixing(int depth, const MicroBatchInput& input, const StepContext& step) {
  const Philox philox(step.seed, fmt::format("mtp.layers.{}.mixing", depth));
  const Reach reach(input, step.batch.seq_length);
  std::vector<std::vector<std::int64_t>> target(static_cast<std::size_t>(depth) + 1);
  std::vector<std::vector<std::int64_t>> source(target.size());
  for (std::int64_t t = 0; t < step.batch.num_tokens(); ++t) {
    const double drawn = philox.uniform(static_cast<std::uint64_t>(step.first_token + t));
    auto part = std::min(static_cast<std::int64_t>(drawn * (depth + 1)), static_cast<std::int64_t>(depth));
    if (!reach.holds(t, depth - part)) part = depth;
    target[static_cast<std::size_t>(part)].push_back(t);
    source[static_cast<std::size_t>(part)].push_back(t + depth - part);
  }
  const at::Device device = input.ids_T.device();
  for (std::size_t part = 0; part < target.size(); ++part) {
    rows_J_.push_back({int64_of(std::move(target[part]), device), int64_of(std::move(source[part]), device)});
  }
}

Tensor HiddenMixing::mixed(const std::function<Tensor(int)>& part_of) const {
  const int newest = static_cast<int>(rows_J_.size()) - 1;
  Tensor mixed_TH = part_of(newest);
  for (int part = 0; part < newest; ++part) {
    const Rows& rows = rows_J_[static_cast<std::size_t>(part)];
    if (rows.target.numel() == 0) continue;
    mixed_TH.index_copy_(0, rows.target, part_of(part).index_select(0, rows.source));
  }
  return mixed_TH;
}

void HiddenMixing::distribute(const Tensor& dmixed_TH, std::vector<Tensor>& dparts) const {
  for (std::size_t part = 0; part < rows_J_.size(); ++part) {
    Tensor& dpart_TH = dparts.at(part);
    if (!dpart_TH.defined()) dpart_TH = at::zeros_like(dmixed_TH);
    const Rows& rows = rows_J_[part];
    // Each row is read once, so the order of the sums is that of the parts.
    dpart_TH.index_add_(0, rows.source, dmixed_TH.index_select(0, rows.target));
  }
}

}  // namespace primus::nn
