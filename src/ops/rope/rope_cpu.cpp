#include "ops/rope/rope.hpp"

#include "ops/cuda_ops.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kElementsPerTask = 16384;

// A [T, A, D] tensor whose elements of one head are dense.
template <typename T>
struct Heads {
  T* data;
  std::int64_t row_stride, head_stride, heads, width;

  T* at(std::int64_t row, std::int64_t head) const { return data + row * row_stride + head * head_stride; }
};

template <typename T>
Heads<T> as_heads(const Tensor& x_TAD, std::int64_t rows, std::int64_t heads, const char* name) {
  PRIMUS_CHECK(x_TAD.dim() == 3 && x_TAD.size(0) == rows && x_TAD.size(1) == heads, "rope: shape of {}", name);
  PRIMUS_CHECK(x_TAD.stride(2) == 1 || x_TAD.size(2) <= 1, "rope: heads of {} must be dense", name);
  PRIMUS_CHECK(x_TAD.scalar_type() == c10::CppTypeToScalarType<T>::value, "rope: element type of {}", name);
  return {x_TAD.data_ptr<T>(), x_TAD.stride(0), x_TAD.stride(1), heads, x_TAD.size(2)};
}

// cos and sin [S, P/2].
template <typename Acc>
struct Tables {
  const Acc* cos;
  const Acc* sin;
  std::int64_t sequence, pairs;
};

template <typename Acc>
Tables<Acc> as_tables(const Tensor& cos_SP, const Tensor& sin_SP, std::int64_t rows) {
  for (const Tensor& table : {cos_SP, sin_SP}) {
    PRIMUS_CHECK(table.dim() == 2 && table.is_contiguous() && table.sizes() == cos_SP.sizes(), "rope: table shapes");
    PRIMUS_CHECK(table.scalar_type() == c10::CppTypeToScalarType<Acc>::value, "rope: tables must be {}, not {}",
                 c10::toString(c10::CppTypeToScalarType<Acc>::value), c10::toString(table.scalar_type()));
  }
  PRIMUS_CHECK(rows == 0 || cos_SP.size(0) > 0, "rope: tables without positions");
  return {cos_SP.data_ptr<Acc>(), sin_SP.data_ptr<Acc>(), cos_SP.size(0), cos_SP.size(1)};
}

// What mla_assemble takes apart and puts together; forward and backward name the same five tensors.
template <typename T>
struct MlaHeads {
  std::int64_t rows, heads;
  Heads<T> kv, k_pe, q, k, v;
  std::int64_t rotary, nope;  // the two parts of a query or key head

  MlaHeads(const Tensor& kv_TAD, const Tensor& k_pe_TP, const Tensor& q_TAQ, const Tensor& k_TAQ, const Tensor& v_TAV,
           std::int64_t num_pairs)
      : rows(kv_TAD.size(0)),
        heads(kv_TAD.size(1)),
        kv(as_heads<T>(kv_TAD, rows, heads, "kv")),
        k_pe(as_heads<T>(k_pe_TP.unsqueeze(1), rows, 1, "k_pe")),
        q(as_heads<T>(q_TAQ, rows, heads, "q")),
        k(as_heads<T>(k_TAQ, rows, heads, "k")),
        v(as_heads<T>(v_TAV, rows, heads, "v")),
        rotary(2 * num_pairs),
        nope(q.width - rotary) {
    PRIMUS_CHECK(k_pe.width == rotary && nope >= 0 && k.width == q.width && kv.width == nope + v.width,
                 "mla_assemble: head sizes do not agree");
  }

  std::int64_t elements_per_row() const { return heads * (2 * q.width + v.width); }
};

// target <- source rotated by the position's angles; source may be target. The backward rotation is by minus the angle.
template <typename Source, typename Target, typename Acc, RopeLayout layout, RopeDirection direction>
void rotate(const Source* source, const Acc* cos, const Acc* sin, std::int64_t pairs, Target* target) {
  constexpr Acc sign = direction == RopeDirection::kForward ? Acc{1} : Acc{-1};
  const std::int64_t step = layout == RopeLayout::kHalves ? 1 : 2;
  const std::int64_t partner = layout == RopeLayout::kHalves ? pairs : 1;
#pragma omp simd
  for (std::int64_t i = 0; i < pairs; ++i) {
    const Acc first = static_cast<Acc>(source[i * step]);
    const Acc second = static_cast<Acc>(source[i * step + partner]);
    target[i * step] = to_storage<Target>(first * cos[i] - sign * second * sin[i]);
    target[i * step + partner] = to_storage<Target>(second * cos[i] + sign * first * sin[i]);
  }
}

template <RopeLayout value>
struct LayoutTag {
  static constexpr RopeLayout kLayout = value;
};

template <typename Body>
void dispatch_layout(RopeLayout layout, Body&& body) {
  if (layout == RopeLayout::kHalves) return body(LayoutTag<RopeLayout::kHalves>{});
  body(LayoutTag<RopeLayout::kInterleaved>{});
}

// body(row, position) for every row, shared among the threads.
template <typename Body>
void for_each_row(std::int64_t rows, std::int64_t elements_per_row, std::int64_t sequence, const Body& body) {
  const std::int64_t grain = std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(elements_per_row, 1));
  at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) body(t, t % sequence);
  });
}

}  // namespace

void mla_assemble_forward(const Tensor& kv_TAD, const Tensor& k_pe_TP, const Tensor& cos_SP, const Tensor& sin_SP,
                          RopeLayout layout, Tensor& q_TAQ, Tensor& k_TAQ, Tensor& v_TAV) {
  const ZoneScope zone(Zone::kRope);
  PRIMUS_CHECK(kv_TAD.dim() == 3 && k_pe_TP.dim() == 2, "mla_assemble: kv must be [T, A, N+V], k_pe [T, P]");
  dispatch_floating(kv_TAD.scalar_type(), "mla_assemble_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const auto tables = as_tables<Acc>(cos_SP, sin_SP, kv_TAD.size(0));
    const MlaHeads<T> x(kv_TAD, k_pe_TP, q_TAQ, k_TAQ, v_TAV, tables.pairs);
    if (kv_TAD.is_cuda()) {
      return cuda_ops().mla_assemble_forward(kv_TAD, k_pe_TP, cos_SP, sin_SP, layout, q_TAQ, k_TAQ, v_TAV);
    }
    dispatch_layout(layout, [&](auto layout_tag) {
      constexpr RopeLayout kLayout = decltype(layout_tag)::kLayout;
      for_each_row(x.rows, x.elements_per_row(), tables.sequence, [&](std::int64_t t, std::int64_t s) {
        const Acc* cos = tables.cos + s * tables.pairs;
        const Acc* sin = tables.sin + s * tables.pairs;
        // The shared key is rotated once, in the first head's place, and copied to the others.
        T* rotated = x.k.at(t, 0) + x.nope;
        if (x.heads > 0) {
          rotate<T, T, Acc, kLayout, RopeDirection::kForward>(x.k_pe.at(t, 0), cos, sin, tables.pairs, rotated);
        }
        for (std::int64_t a = 0; a < x.heads; ++a) {
          T* query = x.q.at(t, a) + x.nope;
          rotate<T, T, Acc, kLayout, RopeDirection::kForward>(query, cos, sin, tables.pairs, query);
          std::copy_n(x.kv.at(t, a), x.nope, x.k.at(t, a));
          if (a > 0) std::copy_n(rotated, x.rotary, x.k.at(t, a) + x.nope);
          std::copy_n(x.kv.at(t, a) + x.nope, x.v.width, x.v.at(t, a));
        }
      });
    });
  });
}

void mla_assemble_backward(const Tensor& dk_TAQ, const Tensor& dv_TAV, const Tensor& cos_SP, const Tensor& sin_SP,
                           RopeLayout layout, Tensor& dq_TAQ, Tensor& dkv_TAD, Tensor& dk_pe_TP) {
  const ZoneScope zone(Zone::kRope);
  PRIMUS_CHECK(dkv_TAD.dim() == 3 && dk_pe_TP.dim() == 2, "mla_assemble: dkv must be [T, A, N+V], dk_pe [T, P]");
  dispatch_floating(dkv_TAD.scalar_type(), "mla_assemble_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const auto tables = as_tables<Acc>(cos_SP, sin_SP, dkv_TAD.size(0));
    const MlaHeads<T> d(dkv_TAD, dk_pe_TP, dq_TAQ, dk_TAQ, dv_TAV, tables.pairs);
    if (dkv_TAD.is_cuda()) {
      return cuda_ops().mla_assemble_backward(dk_TAQ, dv_TAV, cos_SP, sin_SP, layout, dq_TAQ, dkv_TAD, dk_pe_TP);
    }
    dispatch_layout(layout, [&](auto layout_tag) {
      constexpr RopeLayout kLayout = decltype(layout_tag)::kLayout;
      for_each_row(d.rows, d.elements_per_row(), tables.sequence, [&](std::int64_t t, std::int64_t s) {
        const Acc* cos = tables.cos + s * tables.pairs;
        const Acc* sin = tables.sin + s * tables.pairs;
        // Rotating back is linear: the heads are summed first, in the accumulator's type, and rotated once.
        thread_local std::vector<Acc> sum;
        sum.assign(static_cast<std::size_t>(d.rotary), Acc{0});
        Acc* const shared = sum.data();
        for (std::int64_t a = 0; a < d.heads; ++a) {
          T* query = d.q.at(t, a) + d.nope;
          rotate<T, T, Acc, kLayout, RopeDirection::kBackward>(query, cos, sin, tables.pairs, query);
          std::copy_n(d.k.at(t, a), d.nope, d.kv.at(t, a));
          std::copy_n(d.v.at(t, a), d.v.width, d.kv.at(t, a) + d.nope);
          const T* key = d.k.at(t, a) + d.nope;
#pragma omp simd
          for (std::int64_t i = 0; i < d.rotary; ++i) shared[i] += static_cast<Acc>(key[i]);
        }
        rotate<Acc, T, Acc, kLayout, RopeDirection::kBackward>(shared, cos, sin, tables.pairs, d.k_pe.at(t, 0));
      });
    });
  });
}

void rope_apply(const Tensor& cos_SP, const Tensor& sin_SP, RopeLayout layout, RopeDirection direction, Tensor& x_TAD) {
  const ZoneScope zone(Zone::kRope);
  PRIMUS_CHECK(x_TAD.dim() == 3, "rope: x must be [T, A, D]");
  dispatch_floating(x_TAD.scalar_type(), "rope_apply", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const auto tables = as_tables<Acc>(cos_SP, sin_SP, x_TAD.size(0));
    const auto x = as_heads<T>(x_TAD, x_TAD.size(0), x_TAD.size(1), "x");
    PRIMUS_CHECK(2 * tables.pairs <= x.width, "rope: head size {} is smaller than the rotary size {}", x.width,
                 2 * tables.pairs);
    if (x_TAD.is_cuda()) return cuda_ops().rope_apply(cos_SP, sin_SP, layout, direction, x_TAD);
    dispatch_layout(layout, [&](auto layout_tag) {
      constexpr RopeLayout kLayout = decltype(layout_tag)::kLayout;
      for_each_row(x_TAD.size(0), x.heads * x.width, tables.sequence, [&](std::int64_t t, std::int64_t s) {
        const Acc* cos = tables.cos + s * tables.pairs;
        const Acc* sin = tables.sin + s * tables.pairs;
        for (std::int64_t a = 0; a < x.heads; ++a) {
          T* head = x.at(t, a);
          if (direction == RopeDirection::kForward) {
            rotate<T, T, Acc, kLayout, RopeDirection::kForward>(head, cos, sin, tables.pairs, head);
          } else {
            rotate<T, T, Acc, kLayout, RopeDirection::kBackward>(head, cos, sin, tables.pairs, head);
          }
        }
      });
    });
  });
}

}  // namespace primus::ops
