#include "ops/gemm/measured_choice.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

#include "ops/gpu/device.hpp"

namespace primus::ops::cuda {
namespace {

constexpr int kRounds = 4;  // the first of which warms up
constexpr double kMeasuredFlops = 4e9;
constexpr float kWorthChanging = 0.98F;

/// A span of the device's time.
class Stopwatch {
 public:
  explicit Stopwatch(gpu::Stream stream) : stream_(stream) {
    for (cudaEvent_t& event : events_) PRIMUS_CUDA_CHECK(cudaEventCreate(&event));
  }
  ~Stopwatch() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void start() { PRIMUS_CUDA_CHECK(cudaEventRecord(events_[0], stream_)); }
  float stop_ms() {
    PRIMUS_CUDA_CHECK(cudaEventRecord(events_[1], stream_));
    PRIMUS_CUDA_CHECK(cudaEventSynchronize(events_[1]));
    float ms = 0.0F;
    PRIMUS_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[0], events_[1]));
    return ms;
  }

 private:
  gpu::Stream stream_;
  std::array<cudaEvent_t, 2> events_{};
};

}  // namespace

bool may_measure(double flops, gpu::Stream stream) {
  if (flops < kMeasuredFlops || gpu::determinism() == Determinism::kSameBits) return false;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  PRIMUS_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
  return capture == cudaStreamCaptureStatusNone;
}

int fastest(int num_candidates, gpu::Stream stream, const std::function<bool(int)>& run) {
  Stopwatch watch(stream);
  std::vector<float> ms(static_cast<std::size_t>(num_candidates), std::numeric_limits<float>::infinity());
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < num_candidates; ++i) {
      watch.start();
      const bool is_done = run(i);
      const float took_ms = watch.stop_ms();
      auto& best = ms[static_cast<std::size_t>(i)];
      if (round > 0 && is_done) best = std::min(best, took_ms);
    }
  }
  const auto best = std::min_element(ms.begin(), ms.end());
  return *best < kWorthChanging * ms[0] ? static_cast<int>(best - ms.begin()) : 0;
}

bool logs_choices() {
  return std::getenv("PRIMUS_LOG_GEMM") != nullptr;
}

}  // namespace primus::ops::cuda
