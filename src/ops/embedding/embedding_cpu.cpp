#include "ops/embedding/embedding.hpp"

#include "ops/cuda_ops.hpp"
#include "ops/zone.hpp"

#include <cstring>

namespace primus::ops {
namespace {

void check_shapes(const Tensor& ids_T, const Tensor& rows_TH, const Tensor& w_VH) {
  PRIMUS_CHECK(ids_T.scalar_type() == at::kLong && ids_T.is_contiguous(), "embedding: ids must be int64, contiguous");
  PRIMUS_CHECK(rows_TH.is_contiguous() && w_VH.is_contiguous(), "embedding: rows and weight must be contiguous");
  PRIMUS_CHECK(rows_TH.size(0) == ids_T.numel() && rows_TH.size(1) == w_VH.size(1), "embedding: shapes do not agree");
}

std::int64_t checked_id(std::int64_t id, std::int64_t vocabulary) {
  PRIMUS_CHECK(id >= 0 && id < vocabulary, "embedding: token id {} is outside the vocabulary of {}", id, vocabulary);
  return id;
}

}  // namespace

void embedding_forward(const Tensor& ids_T, const Tensor& w_VH, Tensor& x_TH) {
  const ZoneScope zone(Zone::kEmbedding);
  check_shapes(ids_T, x_TH, w_VH);
  const std::int64_t vocabulary = w_VH.size(0);
  const std::size_t row_bytes = static_cast<std::size_t>(w_VH.size(1)) * w_VH.element_size();
  PRIMUS_CHECK(x_TH.scalar_type() == w_VH.scalar_type(), "embedding: output and weight differ in type");
  if (w_VH.is_cuda()) return cuda_ops().embedding_forward(ids_T, w_VH, x_TH);
  const auto* ids = ids_T.data_ptr<std::int64_t>();
  const auto* weight = static_cast<const char*>(w_VH.data_ptr());
  auto* x = static_cast<char*>(x_TH.data_ptr());
  at::parallel_for(0, ids_T.numel(), 256, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const auto row = static_cast<std::size_t>(checked_id(ids[t], vocabulary));
      std::memcpy(x + static_cast<std::size_t>(t) * row_bytes, weight + row * row_bytes, row_bytes);
    }
  });
}

void embedding_backward(const Tensor& ids_T, const Tensor& dx_TH, Tensor& main_grad_VH) {
  const ZoneScope zone(Zone::kEmbedding);
  check_shapes(ids_T, dx_TH, main_grad_VH);
  PRIMUS_CHECK(main_grad_VH.scalar_type() == accumulator_type(dx_TH.scalar_type()), "embedding: type of main_grad");
  if (dx_TH.is_cuda()) return cuda_ops().embedding_backward(ids_T, dx_TH, main_grad_VH);
  const std::int64_t num_tokens = ids_T.numel();
  const std::int64_t hidden = dx_TH.size(1);
  const std::int64_t vocabulary = main_grad_VH.size(0);
  const auto* ids = ids_T.data_ptr<std::int64_t>();
  for (std::int64_t t = 0; t < num_tokens; ++t) checked_id(ids[t], vocabulary);
  dispatch_floating(dx_TH.scalar_type(), "embedding_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const T* dx = dx_TH.data_ptr<T>();
    Acc* grad = main_grad_VH.data_ptr<Acc>();
    // Threads share the columns, not the tokens: two tokens with one id never race, and the order of additions is t's.
    at::parallel_for(0, hidden, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = 0; t < num_tokens; ++t) {
        const T* source = dx + t * hidden;
        Acc* target = grad + ids[t] * hidden;
        for (std::int64_t h = begin; h < end; ++h) target[h] += static_cast<Acc>(source[h]);
      }
    });
  });
}

}  // namespace primus::ops
