#include "nn/saved.hpp"

#include "ops/allocator.hpp"

namespace primus::nn {

Saved::Saved(const model::SavedDeclaration& declaration, at::Device device)
    : device_(device), declaration_(declaration.tensors), tensors_(declaration.tensors.size()) {
  children_.reserve(declaration.children.size());
  for (const model::SavedDeclaration& child_declaration : declaration.children) {
    children_.emplace_back(child_declaration, device);
  }
}

const model::SavedTensor& Saved::declared(int slot) const {
  return declaration_.at(static_cast<std::size_t>(slot));
}

Tensor& Saved::allocate(int slot) {
  const model::SavedTensor& saved = declared(slot);
  Tensor& tensor = tensors_[static_cast<std::size_t>(slot)];
  PRIMUS_CHECK(!tensor.defined(), "saved tensor '{}' is allocated twice", saved.name);
  const ops::MemoryScope scope(ops::saved_tag(saved.category));
  tensor = at::empty(saved.shape, at::TensorOptions(ops::to_aten(saved.dtype)).device(device_));
  return tensor;
}

Tensor& Saved::at(int slot) {
  Tensor& tensor = tensors_.at(static_cast<std::size_t>(slot));
  PRIMUS_CHECK(tensor.defined(), "saved tensor '{}' is not there", declared(slot).name);
  return tensor;
}

void Saved::borrow(int slot, const Tensor& tensor) {
  PRIMUS_CHECK(declared(slot).num_elements() == 0, "saved tensor '{}' has memory of its own", declared(slot).name);
  tensors_.at(static_cast<std::size_t>(slot)) = tensor;
}

void Saved::release(int slot) {
  tensors_.at(static_cast<std::size_t>(slot)).reset();
}

bool Saved::is_missing(int slot) const {
  return declared(slot).num_elements() > 0 && !tensors_.at(static_cast<std::size_t>(slot)).defined();
}

void Saved::drop_remade() {
  for (std::size_t slot = 0; slot < tensors_.size(); ++slot) {
    if (declaration_[slot].lifetime == model::Lifetime::kRemade) tensors_[slot].reset();
  }
  for (Saved& layer : children_) layer.drop_remade();
}

void Saved::release_all() {
  for (Tensor& tensor : tensors_) tensor.reset();
  for (Saved& layer : children_) layer.release_all();
  deferred_.clear();
}

}  // namespace primus::nn
