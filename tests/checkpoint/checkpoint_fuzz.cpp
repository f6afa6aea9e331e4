// libFuzzer: safetensors headers and files, checkpoint.json, and Hugging Face's index of shards, as the first byte
// says. Built by clang only:
//   cmake --build --preset ci --target checkpoint_fuzz && build/ci/bin/checkpoint_fuzz -max_total_time=600
#include <unistd.h>

#include <cstdint>
#include <filesystem>

#include "checkpoint/hostile_input.hpp"

namespace {

/// A folder of this process, in memory where the system has one.
const std::string& folder() {
  static const std::string path = [] {
    const std::string base = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
    std::string made = base + "/primus_checkpoint_fuzz_" + std::to_string(::getpid());
    primus::checkpoint::prepare_hostile(made);
    return made;
  }();
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto kind = static_cast<primus::checkpoint::HostileKind>(data[0] % primus::checkpoint::kNumHostileKinds);
  primus::checkpoint::read_hostile(kind, content, folder());
  return 0;
}
