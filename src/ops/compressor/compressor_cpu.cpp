#include "model/host_cuts.hpp"
#include "ops/compressor/compressor.hpp"
#include "ops/for_each_unit.hpp"
#include "ops/not_on_gpu.hpp"
#include "ops/scratch.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

/// Rows of a tensor [B, S, width] or [B, C, width].
template <typename T>
struct Plane {
  T* data = nullptr;
  std::int64_t batch_stride = 0, stride = 0;

  Plane(const Tensor& x, std::int64_t batch, std::int64_t rows, std::int64_t width, const char* name)
      : data(x.data_ptr<T>()), batch_stride(x.stride(0)), stride(x.stride(1)) {
    PRIMUS_CHECK(x.dim() == 3 && x.size(0) == batch && x.size(1) == rows && x.size(2) == width &&
                     (x.stride(2) == 1 || width <= 1),
                 "compressor: shape of {}", name);
  }
  T* at(std::int64_t batch, std::int64_t row) const { return data + batch * batch_stride + row * stride; }
};

/// One term of an entry: a token, and where its channels stand in rows of width E.
struct Term {
  std::int64_t token, row_of_bias, column;
};

template <typename T>
class Compressor {
 public:
  using Acc = acc_t<T>;

  Compressor(const CompressorInput& in, const Windowing& windowing, WindowOverlap overlap, std::int64_t size)
      : batch_(in.key_BSE.size(0)),
        sequence_(in.key_BSE.size(1)),
        size_(size),
        width_(overlap == WindowOverlap::kPrevious ? 2 * size : size),
        overlap_(overlap),
        windows_(windowing, batch_, sequence_),
        key_(in.key_BSE, batch_, sequence_, width_, "the keys"),
        gate_(in.gate_BSE, batch_, sequence_, width_, "the gates") {
    PRIMUS_CHECK(in.bias_RE.is_contiguous() && in.bias_RE.numel() == windows_.ratio() * width_ &&
                     in.bias_RE.scalar_type() == c10::CppTypeToScalarType<Acc>::value,
                 "compressor: shape or type of the bias");
    bias_ = in.bias_RE.const_data_ptr<Acc>();
  }

  void forward(Tensor& entry_BCD) const {
    const Plane<T> entry(entry_BCD, batch_, windows_.capacity(), size_, "the entries");
    for_each_unit(batch_ * windows_.capacity(), [&](std::int64_t, std::int64_t unit) {
      const std::int64_t batch = unit / windows_.capacity();
      const std::int64_t index = unit % windows_.capacity();
      T* target = entry.at(batch, index);
      if (index >= windows_.num_entries(batch)) return static_cast<void>(std::fill_n(target, size_, T(0)));
      Row row(size_, 2 * windows_.ratio());
      pool(batch, index, row);
      for (std::int64_t d = 0; d < size_; ++d) target[d] = to_storage<T>(row.pooled[static_cast<std::size_t>(d)]);
    });
  }

  void backward(const Tensor& dentry_BCD, CompressorInput& gradient) const {
    const Plane<T> dentry(dentry_BCD, batch_, windows_.capacity(), size_, "the entries' gradient");
    const Plane<T> dkey(gradient.key_BSE, batch_, sequence_, width_, "the keys' gradient");
    const Plane<T> dgate(gradient.gate_BSE, batch_, sequence_, width_, "the gates' gradient");
    PRIMUS_CHECK(gradient.bias_RE.is_contiguous() && gradient.bias_RE.numel() == windows_.ratio() * width_ &&
                     gradient.bias_RE.scalar_type() == c10::CppTypeToScalarType<Acc>::value,
                 "compressor: shape or type of the bias's gradient");
    for_each_unit(batch_ * sequence_, [&](std::int64_t, std::int64_t unit) {
      std::fill_n(dkey.at(unit / sequence_, unit % sequence_), width_, T(0));
      std::fill_n(dgate.at(unit / sequence_, unit % sequence_), width_, T(0));
    });
    const std::int64_t entries = batch_ * windows_.capacity();
    const std::int64_t parts = model::compressor_parts(entries);
    if (parts == 0) return;
    const Tensor sums = zeroed_scratch({parts, windows_.ratio() * width_}, c10::CppTypeToScalarType<Acc>::value);
    const std::int64_t entries_of_part = model::divide_up(entries, parts);
    for_each_unit(parts, [&](std::int64_t, std::int64_t part) {
      Acc* dbias = sums.data_ptr<Acc>() + part * sums.size(1);
      Row row(size_, 2 * windows_.ratio());
      const std::int64_t last = std::min(entries, (part + 1) * entries_of_part);
      for (std::int64_t unit = part * entries_of_part; unit < last; ++unit) {
        const std::int64_t batch = unit / windows_.capacity();
        const std::int64_t index = unit % windows_.capacity();
        if (index >= windows_.num_entries(batch)) continue;
        spread(batch, index, dentry.at(batch, index), row, dkey, dgate, dbias);
      }
    });
    Acc* target = gradient.bias_RE.data_ptr<Acc>();
    for (std::int64_t part = 0; part < parts; ++part) {
      const Acc* own = sums.const_data_ptr<Acc>() + part * sums.size(1);
      for (std::int64_t i = 0; i < sums.size(1); ++i) target[i] += own[i];
    }
  }

 private:
  /// What an entry is computed in: its weights, term by term, and sums over them.
  struct Row {
    std::vector<Term> terms;
    std::vector<Acc> weight, sum, highest, pooled;

    Row(std::int64_t size, std::int64_t num_terms)
        : weight(static_cast<std::size_t>(size * num_terms)),
          sum(static_cast<std::size_t>(size)),
          highest(static_cast<std::size_t>(size)),
          pooled(static_cast<std::size_t>(size)) {}
  };

  void collect(std::int64_t batch, std::int64_t index, std::vector<Term>& terms) const {
    terms.clear();
    const std::int64_t first = windows_.first_token(batch, index);
    const std::int64_t ratio = windows_.ratio();
    if (overlap_ == WindowOverlap::kPrevious && windows_.has_previous(batch, index)) {
      for (std::int64_t j = 0; j < ratio; ++j) terms.push_back({first - ratio + j, j, 0});
    }
    for (std::int64_t j = 0; j < ratio; ++j) terms.push_back({first + j, j, width_ - size_});
  }

  /// The terms' weights (softmax over the terms, channel by channel) and their sum of keys.
  void pool(std::int64_t batch, std::int64_t index, Row& row) const {
    collect(batch, index, row.terms);
    std::fill(row.highest.begin(), row.highest.end(), -std::numeric_limits<Acc>::infinity());
    std::fill(row.sum.begin(), row.sum.end(), Acc{0});
    std::fill(row.pooled.begin(), row.pooled.end(), Acc{0});
    Acc* const highest = row.highest.data();
    Acc* const sum = row.sum.data();
    Acc* const pooled = row.pooled.data();
    for (std::size_t i = 0; i < row.terms.size(); ++i) {
      const Term& term = row.terms[i];
      const T* gate = gate_.at(batch, term.token) + term.column;
      const Acc* bias = bias_ + term.row_of_bias * width_ + term.column;
      Acc* logit = row.weight.data() + static_cast<std::int64_t>(i) * size_;
#pragma omp simd
      for (std::int64_t d = 0; d < size_; ++d) {
        logit[d] = static_cast<Acc>(gate[d]) + bias[d];
        highest[d] = logit[d] > highest[d] ? logit[d] : highest[d];
      }
    }
    for (std::size_t i = 0; i < row.terms.size(); ++i) {
      const Term& term = row.terms[i];
      const T* key = key_.at(batch, term.token) + term.column;
      Acc* weight = row.weight.data() + static_cast<std::int64_t>(i) * size_;
#pragma omp simd
      for (std::int64_t d = 0; d < size_; ++d) {
        weight[d] = fast_exp(weight[d] - highest[d]);
        sum[d] += weight[d];
        pooled[d] += weight[d] * static_cast<Acc>(key[d]);
      }
    }
#pragma omp simd
    for (std::int64_t d = 0; d < size_; ++d) {
      sum[d] = Acc{1} / sum[d];
      pooled[d] *= sum[d];
    }
  }

  /// The gradients of one entry's terms: of keys w · dentry, of gates w · (key − entry) · dentry.
  void spread(std::int64_t batch, std::int64_t index, const T* dentry, Row& row, const Plane<T>& dkey,
              const Plane<T>& dgate, Acc* dbias) const {
    pool(batch, index, row);
    const Acc* inverse = row.sum.data();
    const Acc* pooled = row.pooled.data();
    for (std::size_t i = 0; i < row.terms.size(); ++i) {
      const Term& term = row.terms[i];
      const T* key = key_.at(batch, term.token) + term.column;
      const Acc* weight = row.weight.data() + static_cast<std::int64_t>(i) * size_;
      T* key_gradient = dkey.at(batch, term.token) + term.column;
      T* gate_gradient = dgate.at(batch, term.token) + term.column;
      Acc* bias_gradient = dbias + term.row_of_bias * width_ + term.column;
#pragma omp simd
      for (std::int64_t d = 0; d < size_; ++d) {
        const Acc share = weight[d] * inverse[d] * static_cast<Acc>(dentry[d]);
        const Acc of_gate = share * (static_cast<Acc>(key[d]) - pooled[d]);
        key_gradient[d] = to_storage<T>(share);
        gate_gradient[d] = to_storage<T>(of_gate);
        bias_gradient[d] += of_gate;
      }
    }
  }

  std::int64_t batch_, sequence_, size_, width_;
  WindowOverlap overlap_;
  Windows windows_;
  Plane<T> key_, gate_;
  const Acc* bias_ = nullptr;
};

}  // namespace

void compressor_forward(const CompressorInput& in, const Windowing& windowing, WindowOverlap overlap,
                        Tensor& entry_BCD) {
  const ZoneScope zone(Zone::kAttentionForward);
  if (in.key_BSE.is_cuda()) throw_not_on_gpu("compress_ratios");
  dispatch_floating(in.key_BSE.scalar_type(), "compressor_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    Compressor<T>(in, windowing, overlap, entry_BCD.size(2)).forward(entry_BCD);
  });
}

void compressor_backward(const Tensor& dentry_BCD, const CompressorInput& in, const Windowing& windowing,
                         WindowOverlap overlap, CompressorInput& gradient) {
  const ZoneScope zone(Zone::kAttentionBackward);
  dispatch_floating(in.key_BSE.scalar_type(), "compressor_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    Compressor<T>(in, windowing, overlap, dentry_BCD.size(2)).backward(dentry_BCD, gradient);
  });
}

}  // namespace primus::ops
