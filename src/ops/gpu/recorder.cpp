#include "ops/gpu/recorder.hpp"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

namespace primus::gpu {
namespace {

class GraphRecorder : public ops::Recorder {
 public:
  GraphRecorder() : pool_(at::cuda::graph_pool_handle()), stream_(c10::cuda::getStreamFromPool()) {
    c10::cuda::CUDACachingAllocator::emptyCache();
  }

  std::size_t record(const std::function<void()>& work) override {
    // The stream of everything else cannot be captured.
    c10::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard guard(stream_);
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    graph->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      end_broken(*graph);
      throw;
    }
    graph->capture_end();
    graphs_.push_back(std::move(graph));
    return graphs_.size() - 1;
  }

  void replay(std::size_t piece) override { graphs_.at(piece)->replay(); }

 private:
  /// A capture has to be ended, also one that failed; why it failed is told already.
  static void end_broken(at::cuda::CUDAGraph& graph) {
    try {
      graph.capture_end();
    } catch (const std::exception&) {
      return;
    }
  }

  at::cuda::MempoolId_t pool_;
  c10::cuda::CUDAStream stream_;
  std::vector<std::unique_ptr<at::cuda::CUDAGraph>> graphs_;
};

}  // namespace

std::unique_ptr<ops::Recorder> make_recorder() {
  return std::make_unique<GraphRecorder>();
}

}  // namespace primus::gpu
