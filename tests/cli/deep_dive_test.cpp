// The guide's own command, taken literally but for the program's path and --dry-run.
#include <gtest/gtest.h>

#include "cli/program.hpp"
#include "config/test_folder.hpp"

namespace primus::cli {
namespace {

TEST(DeepDive, ItsOwnCommandIsPlannedUnchanged) {
  const test::TestFolder folder;
  const ProgramResult result = run_program(
      {"direct",
       "--dry-run",
       "--",
       "train",
       "pretrain",
       "--config",
       std::string(PRIMUS_SOURCE_DIR) + "/examples/moe_package/configs/MI355X/deepseek_v2_lite-pretrain-baseline.yaml",
       "--enable_primus_turbo",
       "True",
       "--use_turbo_deepep",
       "True",
       "--turbo_deepep_num_cu",
       "64",
       "--moe_router_dtype",
       "fp32",
       "--turbo_sync_free_moe_stage",
       "1",
       "--cross_entropy_fusion_impl",
       "te",
       "--cross_entropy_loss_fusion",
       "True",
       "--manual_gc",
       "True",
       "--manual_gc_interval",
       "1"},
      folder.path().string(), {{"ENABLE_NUMA_BINDING", "1"}, {"HSA_KERNARG_POOL_SIZE", "12582912"}});
  EXPECT_EQ(result.code, 0) << result.err;
  // What each flag did: its line, and what it changed elsewhere.
  for (const char* part :
       {"enable_primus_turbo = true", "use_turbo_deepep = true", "turbo_deepep_num_cu = 64", "moe_router_dtype = fp32",
        "turbo_sync_free_moe_stage = 1", "cross_entropy_fusion_impl = te", "cross_entropy_loss_fusion = true",
        "manual_gc = true", "manual_gc_interval = 1",
        "moe_shared_expert_overlap: true -> false, because of use_turbo_deepep",
        "-> true, because of turbo_sync_free_moe_stage 1, which was written later",
        "moe_token_dispatcher_type: alltoall -> flex, because of use_turbo_deepep", "there is no Python runtime"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
}

}  // namespace
}  // namespace primus::cli
