#include "train/energy_meter.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace primus::train {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> number_in(const fs::path& path) {
  std::ifstream in(path);
  std::uint64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

// ---- processors ----

class ProcessorMeter final : public EnergyMeter {
 public:
  struct Package {
    fs::path counter;
    std::uint64_t range_uj = 0;  // after which it starts again at 0
    std::uint64_t last_uj = 0;
  };

  explicit ProcessorMeter(std::vector<Package> packages) : packages_(std::move(packages)) {}

  std::optional<double> joules() override {
    constexpr double kMicro = 1e-6;
    for (Package& package : packages_) {
      const auto now = number_in(package.counter);
      if (!now) return std::nullopt;
      sum_uj_ += *now >= package.last_uj ? *now - package.last_uj : *now + package.range_uj - package.last_uj;
      package.last_uj = *now;
    }
    return static_cast<double>(sum_uj_) * kMicro;
  }

 private:
  std::vector<Package> packages_;
  std::uint64_t sum_uj_ = 0;
};

// ---- NVIDIA GPUs ----

class GpuMeter final : public EnergyMeter {
 public:
  using Handle = void*;
  using ReadEnergy = int (*)(Handle, unsigned long long*);

  GpuMeter(Handle device, ReadEnergy read) : device_(device), read_(read) { first_mj_ = now().value_or(0); }

  std::optional<double> joules() override {
    constexpr double kMilli = 1e-3;
    const auto mj = now();
    if (!mj) return std::nullopt;
    return static_cast<double>(*mj - first_mj_) * kMilli;
  }

  std::optional<unsigned long long> now() const {
    unsigned long long mj = 0;
    return read_(device_, &mj) == 0 ? std::optional(mj) : std::nullopt;
  }

 private:
  Handle device_;
  ReadEnergy read_;
  unsigned long long first_mj_ = 0;
};

template <typename Function>
Function function_of(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

/// The first GPU that this process sees: CUDA_VISIBLE_DEVICES names it by number or by its own name.
GpuMeter::Handle first_gpu(void* library) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string first = visible == nullptr ? "0" : std::string(visible).substr(0, std::string(visible).find(','));
  GpuMeter::Handle device = nullptr;
  if (first.starts_with("GPU-")) {
    const auto by_name = function_of<int (*)(const char*, GpuMeter::Handle*)>(library, "nvmlDeviceGetHandleByUUID");
    return by_name != nullptr && by_name(first.c_str(), &device) == 0 ? device : nullptr;
  }
  const auto by_number = function_of<int (*)(unsigned, GpuMeter::Handle*)>(library, "nvmlDeviceGetHandleByIndex_v2");
  const auto number = static_cast<unsigned>(std::strtoul(first.c_str(), nullptr, 10));
  return by_number != nullptr && by_number(number, &device) == 0 ? device : nullptr;
}

}  // namespace

FoundMeter processor_meter(const fs::path& powercap) {
  std::vector<ProcessorMeter::Package> packages;
  std::error_code error;
  bool is_closed = false;
  for (const auto& entry : fs::directory_iterator(powercap, error)) {
    const std::string zone = entry.path().filename().string();
    // "intel-rapl:0" is a package (AMD's as well), "intel-rapl:0:1" a part of it, "psys" the whole board.
    if (!zone.starts_with("intel-rapl:") || std::ranges::count(zone, ':') != 1) continue;
    std::string name;
    std::ifstream(entry.path() / "name") >> name;
    if (!name.starts_with("package")) continue;
    const auto range = number_in(entry.path() / "max_energy_range_uj");
    const auto now = number_in(entry.path() / "energy_uj");
    is_closed = is_closed || !now;
    if (range && now) packages.push_back({entry.path() / "energy_uj", *range, *now});
  }
  if (is_closed) return {nullptr, fmt::format("the counters under {} can be read by root alone", powercap.string())};
  if (packages.empty()) return {nullptr, fmt::format("there are no counters under {}", powercap.string())};
  return {std::make_unique<ProcessorMeter>(std::move(packages)), ""};
}

FoundMeter gpu_meter() {
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {nullptr, "libnvidia-ml.so.1 is not there"};
  const auto start = function_of<int (*)()>(library, "nvmlInit_v2");
  const auto read = function_of<GpuMeter::ReadEnergy>(library, "nvmlDeviceGetTotalEnergyConsumption");
  if (start == nullptr || read == nullptr || start() != 0) return {nullptr, "NVML cannot be used"};
  const GpuMeter::Handle device = first_gpu(library);
  if (device == nullptr) return {nullptr, "NVML does not know the GPU"};
  auto meter = std::make_unique<GpuMeter>(device, read);
  if (!meter->now()) return {nullptr, "the GPU has no energy counter"};
  return {std::move(meter), ""};
}

}  // namespace primus::train
