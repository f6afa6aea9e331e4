#include "ops/router/quantile_rule.hpp"

#include "ops/allocator.hpp"
#include "ops/not_on_gpu.hpp"
#include "ops/router/router_rows.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kTokensPerTask = 256;

/// margin_TE of every token.
template <typename T>
void margins(const Tensor& logits_TE, const Tensor& bias_E, const MarginOptions& options, Tensor& margin_TE) {
  const std::int64_t experts = logits_TE.size(1);
  const T* logits = logits_TE.data_ptr<T>();
  const Tensor bias = bias_E.to(at::kDouble);
  const double* added = bias.data_ptr<double>();
  double* margin = margin_TE.data_ptr<double>();
  at::parallel_for(0, logits_TE.size(0), kTokensPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> biased(static_cast<std::size_t>(experts));
    for (std::int64_t t = begin; t < end; ++t) {
      double* row = margin + t * experts;
      for (std::int64_t e = 0; e < experts; ++e) {
        const auto logit = static_cast<double>(logits[t * experts + e]);
        const double cap = options.logit_softcap;
        biased[static_cast<std::size_t>(e)] = cap > 0.0 ? cap * std::tanh(logit / cap) : logit;
      }
      router::scores(options.score_function, biased.data(), experts, row);
      for (std::int64_t e = 0; e < experts; ++e) biased[static_cast<std::size_t>(e)] = row[e] + added[e];
      std::nth_element(biased.begin(), biased.begin() + options.top_k, biased.end(), std::greater<>());
      const double cutoff = biased[static_cast<std::size_t>(options.top_k)];
      for (std::int64_t e = 0; e < experts; ++e) row[e] -= cutoff;
    }
  });
}

double bin_width(const MarginOptions& options, std::int64_t bins) {
  return (options.highest - options.lowest) / static_cast<double>(bins);
}

}  // namespace

void count_margins(const Tensor& logits_TE, const Tensor& bias_E, const Tensor& is_routed_T,
                   const MarginOptions& options, Tensor& histogram_EB) {
  const ZoneScope zone(Zone::kRouter);
  const MemoryScope scope(MemoryTag::kOpScratch);
  const std::int64_t tokens = logits_TE.size(0);
  const std::int64_t experts = logits_TE.size(1);
  PRIMUS_CHECK(logits_TE.is_contiguous() && bias_E.numel() == experts && options.top_k < experts,
               "margins of {} experts, {} a token", experts, options.top_k);
  PRIMUS_CHECK(histogram_EB.scalar_type() == at::kLong && histogram_EB.is_contiguous() && histogram_EB.dim() == 2 &&
                   histogram_EB.size(0) == experts,
               "margins: the histogram must be int64 [E, B]");
  if (logits_TE.is_cuda()) throw_not_on_gpu("moe_router_bias_update_rule: quantile");
  Tensor margin_TE = at::empty({tokens, experts}, at::kDouble);
  dispatch_floating(logits_TE.scalar_type(), "count_margins",
                    [&](auto tag) { margins<typename decltype(tag)::type>(logits_TE, bias_E, options, margin_TE); });
  const std::int64_t bins = histogram_EB.size(1);
  const double width = bin_width(options, bins);
  const double* margin = margin_TE.data_ptr<double>();
  const bool* is_routed = is_routed_T.defined() ? is_routed_T.data_ptr<bool>() : nullptr;
  auto* count = histogram_EB.data_ptr<std::int64_t>();
  at::parallel_for(0, experts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t e = begin; e < end; ++e) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        if (is_routed != nullptr && !is_routed[t]) continue;
        const double place = (margin[t * experts + e] - options.lowest) / width;
        const double bin = std::clamp(std::floor(place), 0.0, static_cast<double>(bins - 1));
        ++count[e * bins + static_cast<std::int64_t>(bin)];
      }
    }
  });
}

void quantile_bias(const Tensor& histogram_EB, const MarginOptions& options, Tensor& bias_E) {
  const std::int64_t experts = histogram_EB.size(0);
  const std::int64_t bins = histogram_EB.size(1);
  const double quantile = 1.0 - static_cast<double>(options.top_k) / static_cast<double>(experts);
  const auto* count = histogram_EB.data_ptr<std::int64_t>();
  auto* bias = bias_E.data_ptr<double>();
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto* own = count + e * bins;
    std::int64_t total = 0;
    for (std::int64_t b = 0; b < bins; ++b) total += own[b];
    const double target = static_cast<double>(total) * quantile;
    double before = 0.0;
    std::int64_t bin = 0;
    while (bin < bins - 1 && before + static_cast<double>(own[bin]) < target) before += static_cast<double>(own[bin++]);
    const double within = (target - before) / std::max(static_cast<double>(own[bin]), 1.0);
    const double place = static_cast<double>(bin) + std::clamp(within, 0.0, 1.0);
    bias[e] = -(options.lowest + bin_width(options, bins) * place);
  }
}

}  // namespace primus::ops
