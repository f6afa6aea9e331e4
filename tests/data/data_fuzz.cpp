// libFuzzer: .idx, tokenizer.json, JSON lines and .model files, as the first byte says. Built by clang only:
//   cmake --build --preset ci --target data_fuzz && build/ci/bin/data_fuzz -max_total_time=600 -rss_limit_mb=2048
#include <unistd.h>

#include <cstdint>
#include <filesystem>

#include "data/hostile_input.hpp"

namespace {

/// A folder of this process, in memory where the system has one.
const std::string& folder() {
  static const std::string path = [] {
    const std::string base = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
    std::string made = base + "/primus_data_fuzz_" + std::to_string(::getpid());
    std::filesystem::create_directories(made);
    primus::write_file(made + "/x.bin", std::string(primus::data::kBinBytes, '\1'));
    return made;
  }();
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  primus::data::read_hostile(static_cast<primus::data::HostileKind>(data[0] % primus::data::kNumHostileKinds), content,
                             folder());
  return 0;
}
