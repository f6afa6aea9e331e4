#include "model/pass_ledger.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace primus::model {

PassTensor::Block::Block(PassLedger& in, std::int64_t elements, DType type, PassMemory kind)
    : ledger(in),
      num_elements(elements),
      num_bytes(in.counted_bytes(elements * size_bytes(type), kind)),
      dtype(type),
      memory(kind) {
  ledger.add(num_bytes, memory);
}

PassTensor::Block::~Block() {
  ledger.add(-num_bytes, memory);
}

std::int64_t PassTensor::num_elements() const {
  PRIMUS_CHECK(is_defined(), "a tensor that is not there");
  return block_->num_elements;
}

DType PassTensor::dtype() const {
  PRIMUS_CHECK(is_defined(), "a tensor that is not there");
  return block_->dtype;
}

PassTensor PassLedger::tensor(std::int64_t num_elements, DType dtype, PassMemory memory) {
  PassTensor tensor;
  tensor.block_ = std::make_shared<const PassTensor::Block>(*this, num_elements, dtype, memory);
  return tensor;
}

PassTensor PassLedger::converted(const PassTensor& x, DType dtype) {
  return x.dtype() == dtype ? x : tensor(x.num_elements(), dtype);
}

void PassLedger::convert_briefly(std::int64_t num_elements, DType from, DType to) {
  if (from != to) tensor(num_elements, to);
}

void PassLedger::combine_into(std::int64_t num_elements, DType y, DType x) {
  if (y == x) return;
  if (size_bytes(x) < size_bytes(y)) {
    tensor(num_elements, y);
    return;
  }
  const PassTensor result = tensor(num_elements, x);
  const PassTensor widened = tensor(num_elements, x);
}

std::vector<PassTensor> PassLedger::number(DType dtype) {
  const PassTensor wide = tensor(1, DType::kFloat64);
  return {wide, converted(wide, dtype)};
}

void PassLedger::begin_pass() {
  peaks_ = {.saved = now_.saved,
            .workspace = now_.workspace,
            .together = now_.saved + now_.workspace,
            .rows = now_.rows,
            .fullest = now_};
}

std::int64_t PassLedger::counted_bytes(std::int64_t num_bytes, PassMemory memory) {
  if (memory == PassMemory::kSaved || memory == PassMemory::kGradients || num_bytes == 0) return num_bytes;
  return num_tensors_++ == left_out_ ? 0 : num_bytes;
}

void PassLedger::add(std::int64_t num_bytes, PassMemory memory) {
  if (memory == PassMemory::kSaved) {
    now_.saved += num_bytes;
  } else if (memory == PassMemory::kGradients) {
    now_.gradients += num_bytes;
  } else {
    now_.workspace += num_bytes;
    if (memory == PassMemory::kRows) now_.rows += num_bytes;
    peaks_.workspace_allocated += std::max<std::int64_t>(num_bytes, 0);
  }
  if (num_bytes <= 0) return;
  peaks_.saved = std::max(peaks_.saved, now_.saved);
  peaks_.together = std::max(peaks_.together, now_.saved + now_.workspace);
  if (now_.workspace > peaks_.workspace) {
    peaks_.workspace = now_.workspace;
    peaks_.rows = now_.rows;
  }
  if (now_.total() > peaks_.fullest.total()) peaks_.fullest = now_;
}

PassSaved::PassSaved(const SavedDeclaration& declaration, PassLedger& ledger)
    : declaration_(&declaration), ledger_(&ledger), tensors_(declaration.tensors.size()) {
  children_.reserve(declaration.children.size());
  for (const SavedDeclaration& child : declaration.children) children_.emplace_back(child, ledger);
}

const PassTensor& PassSaved::allocate(int slot) {
  const SavedTensor& saved = declared(slot);
  PassTensor& tensor = tensors_[static_cast<std::size_t>(slot)];
  PRIMUS_CHECK(!tensor.is_defined(), "saved tensor '{}' is declared twice in a pass", saved.name);
  return tensor = ledger_->tensor(saved.num_elements(), saved.dtype, PassMemory::kSaved);
}

const PassTensor& PassSaved::at(int slot) const {
  const PassTensor& tensor = tensors_.at(static_cast<std::size_t>(slot));
  PRIMUS_CHECK(tensor.is_defined(), "saved tensor '{}' is not there", declared(slot).name);
  return tensor;
}

bool PassSaved::is_missing(int slot) const {
  return declared(slot).num_elements() > 0 && !tensors_.at(static_cast<std::size_t>(slot)).is_defined();
}

void PassSaved::drop_remade() {
  for (std::size_t slot = 0; slot < tensors_.size(); ++slot) {
    if (declaration_->tensors[slot].lifetime == Lifetime::kRemade) tensors_[slot].reset();
  }
  for (PassSaved& child : children_) child.drop_remade();
}

void PassSaved::release_all() {
  for (PassTensor& tensor : tensors_) tensor.reset();
  for (PassSaved& child : children_) child.release_all();
}

}  // namespace primus::model
