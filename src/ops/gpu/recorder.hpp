#pragma once
#include "ops/recorder.hpp"

namespace primus::gpu {

std::unique_ptr<ops::Recorder> make_recorder();

}  // namespace primus::gpu
