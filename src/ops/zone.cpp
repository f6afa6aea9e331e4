#include "ops/zone.hpp"

namespace primus::ops {
namespace {

std::array<ZoneTime, kNumZones> times;
thread_local ZoneScope* innermost = nullptr;
ZoneTimers timers_in_use = ZoneTimers::kOff;
ZoneMarks marks_in_use;

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
                                                            "short_conv",
                                                            "hyper_connection",
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
  timers_in_use = timers;
  ZoneScope::wait_ = timers == ZoneTimers::kOn ? wait : nullptr;
  ZoneScope::is_on_ = timers == ZoneTimers::kOn || marks_in_use.begin != nullptr;
}

void set_zone_marks(ZoneMarks marks) {
  marks_in_use = marks;
  ZoneScope::is_on_ = timers_in_use == ZoneTimers::kOn || marks.begin != nullptr;
}

std::array<ZoneTime, kNumZones> zone_times() {
  return times;
}

void ZoneScope::enter(Zone zone) {
  has_entered_ = true;
  zone_ = zone;
  outer_ = innermost;
  innermost = this;
  end_mark_ = marks_in_use.end;
  if (marks_in_use.begin != nullptr) marks_in_use.begin(name(zone));
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
  if (end_mark_ != nullptr) end_mark_();
}

}  // namespace primus::ops
