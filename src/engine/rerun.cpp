#include "engine/rerun.hpp"

#include <ATen/TensorOperators.h>

#include "base/philox.hpp"

namespace primus::engine {
namespace {

double relative_difference(double a, double b) {
  if (a == b) return 0.0;
  return std::abs(a - b) / std::max(std::abs(a), std::abs(b));
}

double norm_of(const StepSums& sums) {
  return std::sqrt(sums.square.item<double>());
}

double loss_of(const StepSums& sums) {
  return sums.loss.narrow(0, 0, 1).item<double>();
}

/// NaN is the same as NaN here: the bits count.
bool has_same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.view(at::kLong), b.view(at::kLong));
}

/// A result that a broken machine could give.
StepSums wrong(const StepSums& sums) {
  return {sums.loss * 1.5, sums.square.clone()};
}

}  // namespace

bool Rerun::is_injected(std::int64_t step) const {
  if (settings_.injection_rate == 0) return false;
  const Philox philox(settings_.seed, "error_injection");
  return philox.uniform(static_cast<std::uint64_t>(step)) * static_cast<double>(settings_.injection_rate) < 1.0;
}

std::optional<std::string> Rerun::first(std::int64_t step, StepSums sums, const Suspicion& suspicion) {
  if (!is_on()) return std::nullopt;
  const bool is_injected_here = is_injected(step);
  is_persistent_ = is_injected_here && settings_.injection == InjectedError::kPersistentError;
  const bool is_wrong = is_persistent_ || (is_injected_here && settings_.injection == InjectedError::kTransientError);
  first_ = is_wrong ? wrong(sums) : StepSums{sums.loss.clone(), sums.square.clone()};
  std::optional<std::string> why = suspicion(loss_of(first_), norm_of(first_));
  if (is_injected_here) why = "an error was injected";
  if (!why && settings_.mode == RerunMode::kReport) why = "";
  why_ = why.value_or("");
  return why;
}

RerunVerdict Rerun::second(const StepSums& sums) {
  const StepSums again = is_persistent_ ? wrong(sums) : sums;
  const bool is_same = has_same_bits(first_.loss, again.loss) && has_same_bits(first_.square, again.square);
  return {.kind = is_same ? RerunVerdict::Kind::kSame : RerunVerdict::Kind::kDifferent,
          .loss_difference = relative_difference(loss_of(first_), loss_of(again)),
          .norm_difference = relative_difference(norm_of(first_), norm_of(again)),
          .why = why_};
}

}  // namespace primus::engine
