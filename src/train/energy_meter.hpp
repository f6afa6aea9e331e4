#pragma once
// log_energy: what the GPU, or on a CPU the processors, have consumed.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace primus::train {

class EnergyMeter {
 public:
  virtual ~EnergyMeter() = default;
  /// Since the meter was made; nothing if the counter cannot be read now.
  virtual std::optional<double> joules() = 0;
};

/// A meter, or why there is none.
struct FoundMeter {
  std::unique_ptr<EnergyMeter> meter;
  std::string why_not;
};

/// The packages' counters that Linux shows under this folder (RAPL). They start again at 0 at times, which is counted
/// right as long as a meter is asked once in between.
FoundMeter processor_meter(const std::filesystem::path& powercap = "/sys/class/powercap");

/// The counter of the first visible NVIDIA GPU, by NVML, which is loaded when it is asked for.
FoundMeter gpu_meter();

}  // namespace primus::train
