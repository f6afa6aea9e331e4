// view loss --csv: records of all kinds in one table.
#include <gtest/gtest.h>

#include "cli/program.hpp"

namespace primus::cli {
namespace {

TEST(RecordsCsv, OneTableOfAllRecords) {
  const test::TestFolder folder;
  folder.write("metrics.jsonl",
               "{\"iteration\": 1, \"lm_loss\": 5.9, \"expert_load\": [{\"layer\": 1, \"dead_experts\": 2}]}\n"
               "{\"iteration\": 2, \"lm_loss\": null}\n"
               "{\"iteration\": 2, \"eval_split\": \"a,\\\"b\\\"\", \"eval_loss\": 3.25}\n"
               "{\"iteration\": 3, \"lm_lo");
  const std::string table =
      "iteration,lm_loss,expert_load_1_dead_experts,eval_split,eval_loss\n"
      "1,5.9,2,,\n"
      "2,,,,\n"
      "2,,,\"a,\"\"b\"\"\",3.25\n";
  const ProgramResult written =
      run_program({"view", "loss", "--run", ".", "--csv", "records.csv"}, folder.path().string());
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_NE(written.out.find("table          records.csv\n"), std::string::npos) << written.out;
  EXPECT_EQ(read_file(folder.path() / "records.csv"), table);
  const ProgramResult two =
      run_program({"view", "loss", "--run", ".", "--run", ".", "--csv", "records.csv"}, folder.path().string());
  EXPECT_EQ(two.code, 2);
  EXPECT_NE(two.err.find("--csv: a table is of one run (expected one --run, found 2)"), std::string::npos) << two.err;
}

}  // namespace
}  // namespace primus::cli
