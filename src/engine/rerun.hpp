#pragma once
// A step whose result looks wrong is computed once more before it moves anything: other bits are a fault of the
// machine, the same bits are not.
#include <functional>
#include <optional>
#include <string>

#include "ops/dtype.hpp"

namespace primus::engine {

enum class RerunMode {
  kDisabled,
  kValidate,  // a suspicious step is computed again
  kReport,    // every step is, and how far the two lie apart is told
};

/// What is wrong on purpose, to see that it is found.
enum class InjectedError {
  kCorrectResult,    // a sound result is called suspicious
  kTransientError,   // the first result is another one
  kPersistentError,  // both are wrong alike
};

struct RerunSettings {
  RerunMode mode = RerunMode::kDisabled;
  std::int64_t injection_rate = 0;  // a step of so many, drawn by its number; 0: none
  InjectedError injection = InjectedError::kTransientError;
  std::uint64_t seed = 0;
};

/// Sums that a step's bits are compared by: the losses and the gradients' squares, fp64.
struct StepSums {
  at::Tensor loss, square;
};

/// What two computations of a step showed.
struct RerunVerdict {
  enum class Kind { kSame, kDifferent } kind = Kind::kSame;
  double loss_difference = 0.0;  // relative
  double norm_difference = 0.0;
  std::string why;  // the step was computed again; empty: it was asked for in every step
};

/// Decides for each step whether it is computed again, and compares.
class Rerun {
 public:
  /// `suspicion` says what is wrong with a loss and a gradient norm, if anything.
  using Suspicion = std::function<std::optional<std::string>(double loss, double grad_norm)>;

  explicit Rerun(const RerunSettings& settings) : settings_(settings) {}

  bool is_on() const { return settings_.mode != RerunMode::kDisabled; }

  /// Sums of a first pass through step number `step`. Returns why it is to be computed again.
  std::optional<std::string> first(std::int64_t step, StepSums sums, const Suspicion& suspicion);
  /// Sums of the second pass.
  RerunVerdict second(const StepSums& sums);

 private:
  bool is_injected(std::int64_t step) const;

  RerunSettings settings_;
  StepSums first_;
  std::string why_;
  bool is_persistent_ = false;  // the step at hand has a wrong result in both passes
};

}  // namespace primus::engine
