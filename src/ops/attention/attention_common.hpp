#pragma once
// What attention's forward and backward share: sizes, heads in any layout, dynamic sharing of units, scratch.
#include "model/host_cuts.hpp"
#include "ops/attention/tile_product.hpp"
#include "ops/for_each_unit.hpp"
#include "ops/scratch.hpp"
#include "ops/simd_math.hpp"

namespace primus::ops::attention {

using Cuts = model::AttentionCuts;
using Sizes = model::AttentionSizes;

// A [B, S, heads, width] tensor whose heads are dense.
template <typename T>
struct Heads {
  T* data;
  std::int64_t batch_stride, stride, head_stride;

  T* at(std::int64_t batch, std::int64_t head) const { return data + batch * batch_stride + head * head_stride; }
};

template <typename T>
Heads<T> as_heads(const Tensor& x, const Sizes& sizes, std::int64_t heads, std::int64_t width, const char* name) {
  PRIMUS_CHECK(x.dim() == 4 && x.size(0) == sizes.batch && x.size(1) == sizes.sequence && x.size(2) == heads &&
                   x.size(3) == width,
               "attention: shape of {}", name);
  PRIMUS_CHECK(x.stride(3) == 1 || width <= 1, "attention: heads of {} must be dense", name);
  PRIMUS_CHECK(x.scalar_type() == c10::CppTypeToScalarType<T>::value, "attention: element type of {}", name);
  return {x.data_ptr<T>(), x.stride(0), x.stride(1), x.stride(2)};
}

inline Sizes sizes_of(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV, const Tensor& lse_BAS) {
  PRIMUS_CHECK(q_BSAD.dim() == 4 && k_BSGD.dim() == 4 && v_BSGV.dim() == 4, "attention: q, k, v have four axes");
  const Sizes sizes{q_BSAD.size(0), q_BSAD.size(1), q_BSAD.size(2), k_BSGD.size(2), q_BSAD.size(3), v_BSGV.size(3)};
  PRIMUS_CHECK(sizes.groups > 0 && sizes.heads % sizes.groups == 0, "attention: {} heads over {} key/value heads",
               sizes.heads, sizes.groups);
  PRIMUS_CHECK(lse_BAS.is_contiguous() && lse_BAS.dim() == 3 && lse_BAS.size(0) == sizes.batch &&
                   lse_BAS.size(1) == sizes.heads && lse_BAS.size(2) == sizes.sequence,
               "attention: shape of lse");
  PRIMUS_CHECK(lse_BAS.scalar_type() == accumulator_type(q_BSAD.scalar_type()), "attention: element type of lse");
  return sizes;
}

// The heads' sink logits, or nullptr.
template <typename Acc>
const Acc* sink_data(const Sizes& sizes, const Tensor& sink_A) {
  if (!sink_A.defined()) return nullptr;
  PRIMUS_CHECK(sink_A.is_contiguous() && sink_A.numel() == sizes.heads, "attention: shape of the sinks");
  PRIMUS_CHECK(sink_A.scalar_type() == c10::CppTypeToScalarType<Acc>::value, "attention: element type of the sinks");
  return sink_A.data_ptr<Acc>();
}

template <typename Acc>
Tensor scratch(std::int64_t rows, std::int64_t elements) {
  return ops::scratch({rows, elements}, c10::CppTypeToScalarType<Acc>::value);
}

// Rows side by side in the accumulator's type. Also where they have that type already: heads lie a multiple of the head
// size apart, often a power of two, and six such rows read together share too few cache sets.
template <typename T, typename Acc>
void copy_rows(const T* source, std::int64_t stride, std::int64_t rows, std::int64_t width, Acc* target) {
  for (std::int64_t s = 0; s < rows; ++s) {
#pragma omp simd
    for (std::int64_t d = 0; d < width; ++d) target[s * width + d] = static_cast<Acc>(source[s * stride + d]);
  }
}

template <typename T, typename Acc>
void store_row(const Acc* source, Acc factor, std::int64_t width, T* target) {
#pragma omp simd
  for (std::int64_t d = 0; d < width; ++d) target[d] = to_storage<T>(source[d] * factor);
}

}  // namespace primus::ops::attention
