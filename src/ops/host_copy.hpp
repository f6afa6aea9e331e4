#pragma once
// Values on their way from a device to the host, which does something else meanwhile.
#include "ops/dtype.hpp"

namespace primus::ops {

class HostCopy {
 public:
  /// Begins to copy; what is launched later may overwrite the tensors.
  explicit HostCopy(const std::vector<Tensor>& tensors);
  HostCopy(HostCopy&&) noexcept;
  ~HostCopy();

  /// The values on the host; waits until they are there.
  const std::vector<Tensor>& wait();

 private:
  struct Event;
  std::vector<Tensor> host_;
  std::unique_ptr<Event> event_;  // nullptr: they have always been there
};

/// A tensor on the host from which a copy to `device` need not wait.
Tensor staging(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);

}  // namespace primus::ops
