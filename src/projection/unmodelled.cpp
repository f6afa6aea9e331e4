#include "projection/unmodelled.hpp"

namespace primus::projection {
namespace {

struct Row {
  std::string_view key;
  std::string_view counted_as;
};

constexpr std::string_view kOnDevice = "everything on the device";

constexpr Row kTexts[] = {{"fp8", "activations and products in the compute type, without scales and copies"},
                          {"fp4", "activations and products in the compute type, without scales and copies"}};
constexpr Row kSwitches[] = {{"fp8_param_gather", "weights in the compute type"},
                             {"fp4_param", "weights in the compute type"},
                             {"fine_grained_activation_offloading", kOnDevice},
                             {"offload", kOnDevice},
                             {"cpu_offload", kOnDevice}};
constexpr Row kCounts[] = {{"cpu_offloading_num_layers", kOnDevice}};

}  // namespace

std::vector<Unmodelled> unmodelled(const config::Experiment& experiment) {
  std::vector<Unmodelled> all;
  const auto add = [&](const Row& row) { all.push_back({std::string(row.key), std::string(row.counted_as)}); };
  for (const Row& row : kTexts) {
    if (!experiment.is_null(row.key)) add(row);
  }
  for (const Row& row : kSwitches) {
    if (experiment.get_bool(row.key)) add(row);
  }
  for (const Row& row : kCounts) {
    if (experiment.get_int(row.key) > 0) add(row);
  }
  return all;
}

}  // namespace primus::projection
