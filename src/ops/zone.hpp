#pragma once
// The one list of zone names, the timers behind them (where a step's time goes, by op) and the marks that carry the
// same names into a profiler's trace. Off (the default) a zone costs one load and a branch.
#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace primus::ops {

enum class Zone : int {
  kLinearForward,
  kLinearDgrad,
  kLinearWgrad,
  kGroupedForward,
  kGroupedDgrad,
  kGroupedWgrad,
  kAttentionForward,
  kAttentionBackward,
  kRmsNorm,
  kRope,
  kOutputGate,
  kShortConv,
  kHyperConnection,
  kRouter,
  kPermute,
  kSwiglu,
  kBias,
  kDropout,
  kEmbedding,
  kLoss,
  kGradientNorm,
  kOptimizer,
  kZeroGradients,
};
inline constexpr int kNumZones = static_cast<int>(Zone::kZeroGradients) + 1;
std::string_view name(Zone zone);

enum class ZoneTimers { kOff, kOn };
/// `wait` is called at each border of a zone, where work goes on behind the host's back: times are then the device's,
/// and a step is slower for it.
void set_zone_timers(ZoneTimers timers, void (*wait)() = nullptr);

/// Called at the borders of a zone, for a profiler; both or neither.
struct ZoneMarks {
  void (*begin)(std::string_view name) = nullptr;
  void (*end)() = nullptr;
};
void set_zone_marks(ZoneMarks marks);

/// Time since the timers were switched on. A zone inside another counts in the inner one only.
struct ZoneTime {
  double seconds = 0.0;
  std::int64_t num_calls = 0;
};
std::array<ZoneTime, kNumZones> zone_times();

/// Times the rest of its block. For the thread that runs the step; not inside parallel regions.
class ZoneScope {
 public:
  explicit ZoneScope(Zone zone) {
    if (is_on_) [[unlikely]] {
      enter(zone);
    }
  }
  ~ZoneScope() {
    if (has_entered_) [[unlikely]] {
      leave();
    }
  }
  ZoneScope(const ZoneScope&) = delete;
  ZoneScope& operator=(const ZoneScope&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  friend void set_zone_timers(ZoneTimers timers, void (*wait)());
  friend void set_zone_marks(ZoneMarks marks);

  void enter(Zone zone);
  void leave();

  static inline bool is_on_ = false;
  static inline void (*wait_)() = nullptr;
  bool has_entered_ = false;
  Zone zone_ = Zone::kLinearForward;
  Clock::time_point start_;
  Clock::duration inner_{};  // spent in zones inside this one
  ZoneScope* outer_ = nullptr;
  void (*end_mark_)() = nullptr;  // of the marks at the zone's beginning, which may have been taken away since
};

}  // namespace primus::ops
