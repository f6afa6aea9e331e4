#pragma once
// What forward leaves for backward, owned per micro-batch and allocated from the layers' declarations.
#include <memory>
#include <vector>

#include "model/saved_tensors.hpp"
#include "ops/dtype.hpp"

namespace primus::nn {

using at::Tensor;

/// The saved tensors of one layer and one micro-batch; sublayers are children. Slots: the enums in
/// model/saved_tensors.hpp.
class Saved {
 public:
  explicit Saved(const model::SavedDeclaration& declaration, at::Device device = at::kCPU);

  /// Allocate the tensor of a slot, as declared, tagged with its category. InternalError if it is already there.
  Tensor& allocate(int slot);
  /// The tensor of a slot; InternalError if it is not there.
  Tensor& at(int slot);
  void release(int slot);
  /// A slot without elements of its own takes another layer's tensor, whose memory is counted there.
  void borrow(int slot, const Tensor& tensor);
  /// Does the model have this slot's tensor, and is it not there: dropped, to be made again?
  bool is_missing(int slot) const;
  Saved& child(int index) { return children_.at(static_cast<std::size_t>(index)); }

  /// Everything of this layer and its sublayers.
  void release_all();
  /// What is declared to be made again in backward, here and in the sublayers. Called once forward is done with it.
  void drop_remade();

  /// What backward hands to a deferred weight_grad, in the order that the layer chose. Counted as workspace.
  std::vector<Tensor>& deferred() { return deferred_; }

 private:
  const model::SavedTensor& declared(int slot) const;

  at::Device device_;
  std::vector<model::SavedTensor> declaration_;
  std::vector<Tensor> tensors_;
  std::vector<Saved> children_;
  std::vector<Tensor> deferred_;
};

}  // namespace primus::nn
