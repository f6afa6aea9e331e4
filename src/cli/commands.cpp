#include "cli/commands.hpp"

#include <array>
#include <vector>

namespace primus::cli {

std::span<const Command> commands() {
  // In the order in which the help lists them.
  static const std::array<Command, 33> table = {
      kTrainPretrain,     kDataPrepare,       kDataTrainTokenizer, kDataEncode,       kDataDecode,
      kDataInfo,          kDataVerify,        kDataMerge,          kDataShuffle,      kCheckpointImport,
      kCheckpointExport,  kCheckpointUpcycle, kCheckpointInfo,     kCheckpointVerify, kCheckpointDiff,
      kCheckpointAverage, kCheckpointPrune,   kCheckpointLogits,   kConfigShow,       kConfigDiff,
      kConfigParams,      kConfigKeys,        kConfigCheck,        kConfigExplain,    kProjectionMemory,
      kProjectionCompare, kViewLoss,          kViewPipeline,       kViewLayout,       kViewMemory,
      kBenchmarkOps,      kBenchmarkStep,     kCompletion};
  return table;
}

const Command* find_command(std::string_view group, std::string_view name) {
  for (const Command& command : commands()) {
    if (command.group == group && command.name == name) return &command;
  }
  return nullptr;
}

}  // namespace primus::cli
