#include "ops/zone.hpp"

namespace primus::ops {
namespace {

std::array<ZoneTime, kNumZones> times;
thread_local ZoneScope* innermost = nullptr;

constexpr std::array<std::string_view, kNumZones> kNames = {"linear.forward",
                                                            "linear.dgrad",
                                                            "linear.wgrad",
                                                            "grouped.forward",
                                                            "grouped.dgrad",
                                                            "grouped.wgrad",
                                                            "attention.forward",
                                                            "attention.backward",
                                                            "rms_norm",
                                                            "rope",
                                                            "output_gate",
                                                            "router",
                                                            "permute",
                                                            "swiglu",
                                                            "bias",
                                                            "dropout",
                                                            "embedding",
                                                            "loss",
                                                            "gradient_norm",
                                                            "optimizer",
                                                            "zero_gradients"};
static_assert(static_cast<int>(Zone::kZeroGradients) + 1 == kNumZones);

}  // namespace

std::string_view name(Zone zone) {
  return kNames[static_cast<std::size_t>(zone)];
}

void set_zone_timers(ZoneTimers timers, void (*wait)()) {
  times = {};
  ZoneScope::wait_ = wait;
  ZoneScope::is_on_ = timers == ZoneTimers::kOn;
}

std::array<ZoneTime, kNumZones> zone_times() {
  return times;
}

void ZoneScope::enter(Zone zone) {
  has_entered_ = true;
  zone_ = zone;
  outer_ = innermost;
  innermost = this;
  if (wait_ != nullptr) wait_();
  start_ = Clock::now();
}

void ZoneScope::leave() {
  if (wait_ != nullptr) wait_();
  const Clock::duration all = Clock::now() - start_;
  ZoneTime& time = times[static_cast<std::size_t>(zone_)];
  time.seconds += std::chrono::duration<double>(all - inner_).count();
  ++time.num_calls;
  if (outer_ != nullptr) outer_->inner_ += all;
  innermost = outer_;
}

}  // namespace primus::ops
