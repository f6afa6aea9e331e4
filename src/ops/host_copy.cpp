#include "ops/host_copy.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace primus::ops {

struct HostCopy::Event {
  c10::Event event;
};

HostCopy::HostCopy(const std::vector<Tensor>& tensors) {
  host_.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    // Into page-locked memory, which the copy does not wait for.
    host_.push_back(tensor.is_cpu() ? tensor : tensor.to(tensor.options().device(at::kCPU), /*non_blocking=*/true));
  }
  const auto on_device = std::find_if(tensors.begin(), tensors.end(), [](const Tensor& x) { return !x.is_cpu(); });
  if (on_device == tensors.end()) return;
  const at::Device device = on_device->device();
  event_ = std::make_unique<Event>(Event{c10::Event(device.type())});
  event_->event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

HostCopy::HostCopy(HostCopy&&) noexcept = default;
HostCopy::~HostCopy() = default;

const std::vector<Tensor>& HostCopy::wait() {
  if (event_) event_->event.synchronize();
  event_.reset();
  return host_;
}

Tensor staging(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  return at::empty(shape, at::TensorOptions(dtype).pinned_memory(device.is_cuda()));
}

}  // namespace primus::ops
