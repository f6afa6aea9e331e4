// libFuzzer: YAML files, override lists and layouts, as the first byte says. Built by clang only:
//   cmake --build --preset ci --target config_fuzz && build/ci/bin/config_fuzz -max_total_time=600
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "config/fuzz_input.hpp"
#include "config/layer_pattern.hpp"
#include "config/merge.hpp"
#include "config/overrides.hpp"
#include "config/yaml_reader.hpp"

namespace {

using namespace primus;
using namespace primus::config;

void settings(const Node& node, std::vector<Problem>& problems) {
  SettingMerger merger(problems);
  merger.add_layer(node, Layer::kExperiment, "");
  Experiment experiment;
  merger.apply_to(experiment);
}

void overrides(std::string_view text, std::vector<Problem>& problems) {
  const std::vector<std::string> words = split(text, '\n');
  SettingMerger merger(problems);
  for (const Override& item : parse_overrides(words, problems)) {
    merger.add(item.key, item.value, Layer::kCommandLine, item.written);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<Problem> problems;
  switch (data[0] % 4) {
    case 0:
      settings(read_yaml(text, "fuzz.yaml", problems), problems);
      break;
    case 1:
      overrides(text, problems);
      break;
    case 2:
      check_layout(text);
      break;
    default:
      parse_list_expression(text);
  }
  for (const Problem& problem : problems) to_text(problem);
  return 0;
}
