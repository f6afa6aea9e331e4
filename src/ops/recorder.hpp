#pragma once
// Pieces of work on a device that are launched once for recording and then replayed as a whole: a CUDA graph each.
#include <functional>
#include <memory>

#include "ops/dtype.hpp"

namespace primus::ops {

/// Recorded pieces, which share memory: what one of them allocates and still holds is there for the next ones. They are
/// replayed in the order in which they were recorded, again and again.
class Recorder {
 public:
  virtual ~Recorder() = default;

  /// Records what `work` launches; nothing of it runs. Returns the piece's number. Addresses and host values are taken
  /// as they are now; `work` may not wait for the device.
  virtual std::size_t record(const std::function<void()>& work) = 0;
  virtual void replay(std::size_t piece) = 0;
};

/// For a GPU; cached memory that no tensor holds is given back first.
std::unique_ptr<Recorder> make_recorder();

}  // namespace primus::ops
