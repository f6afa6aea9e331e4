// Words that the command line refuses, and what its help says.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.hpp"
#include "cli/program.hpp"

namespace primus::cli {
namespace {

const std::string kQuickstart = std::string(PRIMUS_SOURCE_DIR) + "/examples/quickstart/deepseek_v2_tiny.yaml";
const std::string kV3 =
    std::string(PRIMUS_SOURCE_DIR) + "/examples/megatron/configs/MI355X/deepseek_v3-BF16-pretrain.yaml";

using Words = std::vector<std::string>;

struct Refused {
  const char* name;
  Words words;
  std::string message;  // of standard error, without "error: "
};

class RefusedWords : public testing::TestWithParam<Refused> {};

TEST_P(RefusedWords, EndWithTwo) {
  const ProgramResult result = run_program(GetParam().words);
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "error: command line: " + GetParam().message + "\n");
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedWords,
    testing::Values(
        Refused{"command",
                {"trian"},
                "unknown command 'trian' (expected one of direct, slurm, container, train, data, checkpoint, config, "
                "projection, view, benchmark, "
                "completion); did you mean "
                "'train'?"},
        Refused{"no_command",
                {"--dry-run"},
                "command is missing (expected one of direct, slurm, container, train, data, checkpoint, config, "
                "projection, view, benchmark, "
                "completion)"},
        Refused{"nothing_to_run",
                {"direct", "--"},
                "command is missing (expected one of train, data, checkpoint, config, projection, view, benchmark, "
                "completion)"},
        Refused{"global_option",
                {"--dryrun", "train"},
                "unknown option '--dryrun' (expected one of --config, --dry-run, --debug, --format, --version, "
                "--help); did you "
                "mean '--dry-run'?"},
        Refused{"launcher_file",
                {"--config", "/nowhere/x.yaml", "direct", "train", "pretrain", "--config", kQuickstart, "--mock_data"},
                "--config: there is no launcher file /nowhere/x.yaml; an experiment's --config stands behind its "
                "command: train pretrain --config FILE"},
        Refused{"launcher_file_missing", {"--config"}, "--config: needs a value"},
        Refused{"slurm",
                {"slurm", "-N", "2", "--", "direct", "--", "train", "pretrain", "--config", kQuickstart,
                 "--global_batch_size=128"},
                "slurm: starting a run through Slurm is planned for a later release; --dry-run prints what would run"},
        Refused{"container",
                {"container", "--image", "x", "--", "train", "pretrain", "--config", kQuickstart},
                "container: starting a run in a container is planned for a later release; --dry-run prints what would "
                "run"},
        Refused{"slurm_without_command",
                {"slurm", "srun", "-N", "2", "--"},
                "slurm: there is no command behind `--`; see primus-cli slurm --help"},
        Refused{"slurm_stray",
                {"--dry-run", "slurm", "srun", "-N", "2", "train", "--", "train", "pretrain", "--config", kQuickstart},
                "unexpected 'train' among the options of slurm; the command stands behind `--`"},
        Refused{"slurm_nodes",
                {"--dry-run", "slurm", "-N", "none", "--", "direct", "train", "pretrain", "--config", kQuickstart},
                "--nodes: not a number (expected integer from 1 to 1000000, found 'none')"},
        Refused{"container_memory",
                {"--dry-run", "container", "--memory", "much", "--", "train", "pretrain", "--config", kQuickstart},
                "--memory: not an amount of memory (expected digits and b, k, m or g, found 'much')"},
        Refused{"container_volume",
                {"--dry-run", "container", "-v", "/a:/b:rx", "--", "train", "pretrain", "--config", kQuickstart},
                "--volume: unknown mount option 'rx' (expected ro, rw, z, Z or a propagation, found '/a:/b:rx')"},
        Refused{"patch",
                {"direct", "--patch", "/nowhere.sh", "--", "train", "pretrain", "--config", kQuickstart},
                "--patch: there is no file /nowhere.sh (expected a script)"},
        Refused{"format", {"--format", "xml", "config", "keys"}, "unknown format 'xml' (expected one of text, json)"},
        Refused{"projection",
                {"projection", "performance"},
                "projection performance: projecting time is planned for a later release"},
        Refused{"direct_option",
                {"direct", "--nprocs", "2"},
                "unknown option of direct '--nprocs' (expected one of --config, --dry-run, --debug, --nproc, --single, "
                "--device, --env, --patch, --log_file, --silent, --numa, --no-numa, --script, --help); did you mean "
                "'--nproc'?"},
        Refused{"nproc_text",
                {"direct", "--nproc", "two", "--", "config", "keys"},
                "--nproc: not a number of processes (expected integer >= 1, found 'two')"},
        Refused{"nproc_missing", {"direct", "--nproc"}, "--nproc: needs a value"},
        Refused{"several",
                {"direct", "--nproc=2", "--", "train", "pretrain", "--config", kQuickstart, "--mock_data"},
                "--nproc: training in several processes is planned for a later release (expected 1, found 2)"},
        Refused{"variable",
                {"direct", "--env", "1NAME=2", "--", "config", "keys"},
                "--env: not a variable (expected NAME=value, a NAME, or a file of such lines, found '1NAME=2')"},
        Refused{"mode_twice",
                {"direct", "direct", "--", "config", "keys"},
                "mode 'direct' behind another mode; modes are: direct; slurm; container; slurm ... -- container; slurm "
                "... -- direct"},
        Refused{"group_left_out",
                {"pretrain", "--config", kQuickstart},
                "unknown command 'pretrain'; did you mean 'train pretrain'?"},
        Refused{"group_of_several_left_out",
                {"memory", "--config", kQuickstart},
                "unknown command 'memory'; did you mean 'projection memory' or 'view memory'?"},
        Refused{"dashes_twice",
                {"direct", "--", "--", "train", "pretrain", "--config", kQuickstart},
                "a second '--' where a command should stand; leave it out"},
        Refused{"dashes_behind_a_command",
                {"config", "show", "--config", kQuickstart, "--", "--lr", "3e-4"},
                "unexpected '--'; leave it out: it stands between a mode and its command only"},
        Refused{"dashes_behind_plain_sizes",
                {"view", "pipeline", "--stages", "4", "--micro-batches", "4", "--"},
                "unexpected '--'; leave it out: it stands between a mode and its command only"},
        Refused{"nodes_backwards",
                {"--dry-run", "slurm", "-N", "4-2", "--", "direct", "train", "pretrain", "--config", kQuickstart,
                 "--mock_data"},
                "--nodes: a range that runs backwards (expected the smaller number first, found '4-2')"},
        Refused{"schedule_by_its_end",
                {"view", "pipeline", "--stages", "4", "--micro-batches", "8", "--schedule", "interleaved"},
                "--schedule: unknown schedule 'interleaved' (expected one of 1f1b, 1f1b-interleaved, 1f1b-overlap, "
                "zero-bubble, zbv-formatted, v-half, v-min, dualpipe-v, zero-bubble-heuristic, 1f1b-v); did you mean "
                "'1f1b-interleaved'?"},
        Refused{"schedule_of_the_original",
                {"view", "pipeline", "--stages", "4", "--micro-batches", "8", "--schedule", "zbv-greedy-half"},
                "--schedule: unknown schedule 'zbv-greedy-half' (expected one of 1f1b, 1f1b-interleaved, 1f1b-overlap, "
                "zero-bubble, zbv-formatted, v-half, v-min, dualpipe-v, zero-bubble-heuristic, 1f1b-v); did you mean "
                "'v-half'?"},
        Refused{"schedule_twice",
                {"view", "pipeline", "--stages", "4", "--micro-batches", "8", "--schedule", "1f1b,1f1b"},
                "--schedule: 1f1b is named twice (expected each schedule once)"},
        Refused{"late_option",
                {"direct", "--", "--dry-run", "train", "pretrain", "--config", kQuickstart},
                "option '--dry-run' where a command should stand; options stand before the `--`"},
        Refused{"single_and_several",
                {"--dry-run", "direct", "--nproc", "2", "--single", "--", "train", "pretrain", "--config", kQuickstart,
                 "--mock_data", "--global_batch_size=128"},
                "--single: contradicts --nproc (expected one of the two)"},
        Refused{"two_worlds",
                {"direct", "--nproc", "2", "--", "train", "pretrain", "--config", kQuickstart, "--mock_data",
                 "--world-size", "4", "--dry-run"},
                "--world-size: contradicts --nproc 2 (expected one number of processes, found 4)"},
        Refused{
            "volume_without_value",
            {"--dry-run", "container", "--image", "x", "--volume", "--", "train", "pretrain", "--config", kQuickstart},
            "--volume: needs a value"},
        Refused{"prefix_is_a_folder",
                {"data", "prepare", "--input", "a", "--output-prefix", "data/"},
                "--output-prefix: names a folder (expected folder and beginning of the file names, found 'data/'); for "
                "instance data/train"},
        Refused{"run_without_metrics",
                {"view", "loss", "--run", "/usr"},
                "--run: there is no /usr/metrics.jsonl (expected folder of a run that has logged a step)"},
        Refused{"suite",
                {"train", "pretain"},
                "unknown command of train 'pretain' (expected pretrain); did you mean 'pretrain'?"},
        Refused{"posttrain", {"train", "posttrain"}, "train posttrain: fine-tuning is planned for a later release"},
        Refused{"no_config",
                {"train", "pretrain", "--lr", "1"},
                "--config: is missing (expected FILE.yaml); see primus-cli train pretrain --help"},
        Refused{"misspelt_config",
                {"train", "pretrain", "--confg", "x"},
                "unknown option '--confg'; did you mean '--config'?"},
        Refused{"device",
                {"train", "pretrain", "--config", kQuickstart, "--device", "tpu", "--mock_data"},
                "unknown device 'tpu' (expected one of cpu, cuda); did you mean 'cpu'?"},
        Refused{"data_action",
                {"data", "prepar"},
                "unknown command of data 'prepar' (expected one of prepare, train-tokenizer, encode, decode, info, "
                "verify, merge, shuffle); "
                "did you mean 'prepare'?"},
        Refused{"data_option",
                {"data", "prepare", "--input", "a", "--output-prefix", "b", "--tokeniser-type", "c"},
                "unknown option '--tokeniser-type'; did you mean '--tokenizer-type'?"},
        Refused{"held_out",
                {"data", "prepare", "--input", "a", "--output-prefix", "b", "--held-out", "a"},
                "--held-out: needs --held-out-prefix (expected prefix of the held-out data)"},
        Refused{"held_out_part",
                {"data", "prepare", "--input", "a", "--output-prefix", "b", "--held-out", "a", "--held-out-prefix", "c",
                 "--held-out-fraction", "2"},
                "--held-out-fraction: needed beside --held-out (expected number above 0, at most 1)"},
        Refused{"picture",
                {"view", "los"},
                "unknown command of view 'los' (expected one of loss, pipeline, layout, memory); did you mean 'loss'?"},
        Refused{"run_folder",
                {"view", "loss", "--run", "/nowhere"},
                "--run: there is no folder /nowhere (expected folder of a run)"},
        Refused{
            "stray", {"view", "loss", "--run", "/tmp", "more"}, "unexpected 'more'; see primus-cli view loss --help"}),
    [](const auto& refused) { return refused.param.name; });

TEST(Refusals, SeveralProblemsInOneRun) {
  const ProgramResult result =
      run_program({"train", "pretrain", "--config", kQuickstart, "--lrr", "3", "stray", "--num_layers", "-1"});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err,
            "error: 3 problems\n"
            "  command line: unexpected 'stray'; overrides are --key value, --key=value or key=value\n"
            "  command line: --lrr: unknown key; did you mean 'lr'?\n"
            "  command line: --num_layers: out of range (expected integer >= 1, found -1)\n");
}

TEST(Help, EveryCommandFitsOneScreen) {
  std::vector<Words> asked = {{},
                              {"--help"},
                              {"-h"},
                              {"direct", "--help"},
                              {"slurm", "--help"},
                              {"container", "--help"},
                              {"train", "--help"},
                              {"data", "--help"},
                              {"config", "--help"},
                              {"checkpoint", "--help"},
                              {"view", "loss", "-h"}};
  for (Words command : all_commands()) {
    command.push_back("--help");
    asked.push_back(std::move(command));
  }
  EXPECT_GT(asked.size(), 30U);
  for (const Words& words : asked) {
    const ProgramResult result = run_program(words);
    const std::string name = testing::PrintToString(words);
    EXPECT_EQ(result.code, 0) << name;
    EXPECT_EQ(result.err, "") << name;
    EXPECT_LE(std::count(result.out.begin(), result.out.end(), '\n'), 40) << name;
    EXPECT_NE(result.out.find("example"), std::string::npos) << result.out;
    EXPECT_TRUE(result.out.ends_with('\n'));
    for (const std::string& line : split(result.out, '\n')) EXPECT_LE(line.size(), 100U) << name << ": " << line;
  }
  EXPECT_TRUE(run_program({"--version"}).out.starts_with("primus-cli "));
}

TEST(DryRun, OfDeepSeekV3PrintsThePlan) {
  // Options may stand before the mode, behind it, or behind the command.
  for (const Words& words : {Words{"--dry-run", "direct", "--", "train", "pretrain", "--config", kV3},
                             Words{"direct", "--dry-run", "train", "pretrain", "--config", kV3},
                             Words{"train", "pretrain", "--config=" + kV3, "--dry-run"}}) {
    const test::TestFolder folder;
    const ProgramResult result = run_program(words, folder.path().string());
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.err, "");
    for (const char* part : {"671,052,109,312", "128 processes (the smallest that is legal)", "256 accumulated",
                             "use_turbo_deepep = true", "vocab_size: null -> 131072", "primus-worker --experiment"}) {
      EXPECT_NE(result.out.find(part), std::string::npos) << part;
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "a dry run writes nothing";
  }
}

TEST(DryRun, SaysWhatEachOverrideDid) {
  const ProgramResult result =
      run_program({"--dry-run", "train", "pretrain", "--config", kQuickstart, "--mock_data", "--lr", "-0", "--lr=1e-3",
                   "--manual_gc", "--recompute_granularity", "selective"});
  EXPECT_EQ(result.code, 2) << "a negative zero is no learning rate, whoever comes later";
  const ProgramResult plan =
      run_program({"--dry-run", "train", "pretrain", "--config", kQuickstart, "--mock_data", "--lr=1e-3", "--manual_gc",
                   "--recompute_granularity", "selective", "--world-size", "4", "--micro_batch_size=2"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  for (const char* part :
       {"lr = 0.001: Highest learning rate. [works]\n      was 0.002 in ",
        "manual_gc = true: Run Python's garbage collector by hand. [no effect: there is no Python runtime]",
        "recompute_granularity = selective: Keep whole layers' inputs, or leave out parts of them. [works]",
        "4 processes (--world-size)", "16 sequences = 2 micro x 4 data ranks x 2 accumulated"}) {
    EXPECT_NE(plan.out.find(part), std::string::npos) << part << "\n" << plan.out;
  }
}

// The guide's own command, with the two variables that it exports; only the program's path is another.
TEST(DryRun, OfTheDeepDivesCommand) {
  const std::string root = PRIMUS_SOURCE_DIR;
  const std::string baseline = root + "/examples/moe_package/configs/MI355X/deepseek_v2_lite-pretrain-baseline.yaml";
  const ProgramResult plan = run_program({"--dry-run", "direct",
                                          "--",        "train",
                                          "pretrain",  "--config",
                                          baseline,    "--enable_primus_turbo",
                                          "True",      "--use_turbo_deepep",
                                          "True",      "--turbo_deepep_num_cu",
                                          "64",        "--moe_router_dtype",
                                          "fp32",      "--turbo_sync_free_moe_stage",
                                          "1",         "--cross_entropy_fusion_impl",
                                          "te",        "--cross_entropy_loss_fusion",
                                          "True",      "--manual_gc",
                                          "True",      "--manual_gc_interval",
                                          "1"},
                                         "/tmp", {{"ENABLE_NUMA_BINDING", "1"}, {"HSA_KERNARG_POOL_SIZE", "12582912"}});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(plan.err, "");
  for (const char* part :
       {"plan of deepseek_v2_lite-pretrain",
        "  use_turbo_deepep = true: ", "-> moe_shared_expert_overlap: true -> false",
        "-> moe_token_dispatcher_type: ", "  turbo_sync_free_moe_stage = 1: ", "-> moe_permute_fusion: false (",
        "-> moe_use_fused_router_with_aux_score: false (", "manual_gc, manual_gc_interval: there is no Python runtime",
        "ENABLE_NUMA_BINDING=1: where it is 1, a GPU's worker", "HSA_KERNARG_POOL_SIZE=12582912: passed on",
        "768 sequences = 12 micro x 8 data ranks x 8 accumulated", "planned (a real train refuses these)"}) {
    EXPECT_NE(plan.out.find(part), std::string::npos) << part << "\n" << plan.out;
  }
}

TEST(Colours, OnlyOnATerminal) {
  if (!has_terminals()) GTEST_SKIP() << "no pseudo-terminals here (is /dev/pts mounted?)";
  EXPECT_EQ(run_program({"trian"}).err.find('\x1b'), std::string::npos);
  Program on_terminal({"trian"}, "/tmp", {}, Program::Output::kTerminal);
  EXPECT_NE(on_terminal.wait().out.find('\x1b'), std::string::npos);
  Program plain({"trian"}, "/tmp", {{"NO_COLOR", "1"}}, Program::Output::kTerminal);
  EXPECT_EQ(plain.wait().out.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace primus::cli
