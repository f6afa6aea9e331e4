#include "torch_ops/arguments.hpp"

#include <fmt/ranges.h>

#include "ops/cuda_plugin.hpp"

namespace primus::torch_ops {
namespace {

const char* text(Kind kind) {
  switch (kind) {
    case Kind::kFloating:
      return "floating-point";
    case Kind::kStatistics:
      return "float32 or float64";
    case Kind::kInt32:
      return "int32";
    case Kind::kInt64:
      return "int64";
  }
  PRIMUS_CHECK(false, "a kind of tensor without a name");
}

bool is_of(Kind kind, at::ScalarType type) {
  switch (kind) {
    case Kind::kFloating:
      return at::isFloatingType(type);
    case Kind::kStatistics:
      return type == at::kFloat || type == at::kDouble;
    case Kind::kInt32:
      return type == at::kInt;
    case Kind::kInt64:
      return type == at::kLong;
  }
  return false;
}

bool fits(const std::vector<std::int64_t>& shape, at::IntArrayRef sizes) {
  if (shape.size() != sizes.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != -1 && shape[i] != sizes[i]) return false;
  }
  return true;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> words;
  for (const std::int64_t size : shape) words.push_back(size == -1 ? "any" : std::to_string(size));
  return fmt::format("[{}]", fmt::join(words, ", "));
}

}  // namespace

Tensor checked(const Tensor& tensor, const Expected& expected) {
  if (!is_of(expected.kind, tensor.scalar_type()) || !fits(expected.shape, tensor.sizes())) {
    throw UserError(fmt::format("primus::{}: {}: expected {} {}, found {} {}", expected.op, expected.name,
                                text(expected.kind), shape_text(expected.shape), c10::toString(tensor.scalar_type()),
                                shape_text(tensor.sizes().vec())));
  }
  return tensor.contiguous();
}

void require_same_device(const char* op, const Tensor& a, const Tensor& b) {
  if (a.device() == b.device()) return;
  throw UserError(fmt::format("primus::{}: all tensors must lie on one device, found {} and {}", op, a.device().str(),
                              b.device().str()));
}

void require_device(const Tensor& tensor) {
  if (tensor.is_cuda()) ops::load_cuda_plugin();
}

}  // namespace primus::torch_ops
