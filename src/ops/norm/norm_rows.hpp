#pragma once
// Rows of the tensors that norms work on, shared by the kinds of norm.
#include "model/host_cuts.hpp"
#include "ops/dtype.hpp"
#include "ops/scratch.hpp"

namespace primus::ops::norm {

/// Rows of a [T, H] tensor, or of a [T, A, H] one: the heads of a token one after another.
template <typename T>
struct Rows {
  T* data;
  std::int64_t token_stride, head_stride, heads;

  explicit Rows(const Tensor& x)
      : data(x.data_ptr<std::remove_const_t<T>>()),
        token_stride(x.stride(0)),
        head_stride(x.dim() == 3 ? x.stride(1) : 0),
        heads(x.dim() == 3 ? x.size(1) : 1) {}
  T* at(std::int64_t row) const { return data + row / heads * token_stride + row % heads * head_stride; }
};

inline std::int64_t num_rows(const Tensor& x) {
  return x.dim() == 3 ? x.size(0) * x.size(1) : x.size(0);
}

inline void check_rows(const Tensor& rows_TH, const Tensor& like_TH, const char* op, const char* name) {
  PRIMUS_CHECK((rows_TH.dim() == 2 || rows_TH.dim() == 3) && rows_TH.sizes() == like_TH.sizes(), "{}: shape of {}", op,
               name);
  PRIMUS_CHECK(rows_TH.stride(-1) == 1 || rows_TH.size(-1) <= 1, "{}: rows of {} must be dense", op, name);
  PRIMUS_CHECK(rows_TH.scalar_type() == like_TH.scalar_type(), "{}: element type of {}", op, name);
}

}  // namespace primus::ops::norm
