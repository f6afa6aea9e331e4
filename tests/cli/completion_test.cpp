// What a shell is offered, from the program itself and through bash.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.hpp"
#include "cli/program.hpp"
#include "config/key_table.hpp"

namespace primus::cli {
namespace {

using Words = std::vector<std::string>;

Words offered(const std::string& line, const std::string& folder = "/tmp") {
  const ProgramResult result = run_program({"completion", "--line", "primus-cli " + line}, folder);
  EXPECT_EQ(result.code, 0) << result.err;
  Words words = split(result.out, '\n');
  words.pop_back();
  return words;
}

bool holds(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST(Completion, CommandsAndModes) {
  const Words first = offered("");
  for (const char* word : {"train", "config", "data", "view", "direct", "slurm", "container", "completion"})
    EXPECT_TRUE(holds(first, word)) << word;
  EXPECT_EQ(offered("conf"), Words{"config"});
  EXPECT_EQ(offered("config "), (Words{"check", "diff", "explain", "keys", "params", "show"}));
  EXPECT_EQ(offered("--dry-run direct --nproc 1 -- tr"), Words{"train"});
  EXPECT_EQ(offered("direct --n"), (Words{"--no-numa", "--nproc", "--numa"}));
  EXPECT_EQ(offered("slurm s"), (Words{"sbatch", "srun"}));
  EXPECT_EQ(offered("slurm srun -N 2 -- container --image x -- config sh"), Words{"show"});
}

TEST(Completion, OptionsKeysAndTheirValues) {
  const Words options = offered("train pretrain --");
  EXPECT_TRUE(holds(options, "--config"));
  EXPECT_TRUE(holds(options, "--micro_batch_size"));
  EXPECT_EQ(offered("train pretrain --micro-batch"), Words{"--micro-batch-size"});
  EXPECT_EQ(offered("train pretrain --moe-router-lo"), Words{"--moe-router-load-balancing-type"});
  EXPECT_TRUE(holds(offered("train pretrain --no-b"), "--no-bf16"));
  EXPECT_TRUE(holds(offered("train pretrain --no_b"), "--no_bf16"));
  EXPECT_EQ(offered("data prepare --tokenizer-type B"), Words{"ByteTokenizer"});
  EXPECT_EQ(offered("train pretrain --train_it"), Words{"--train_iters"});
  EXPECT_EQ(offered("train pretrain train_it"), Words{"train_iters="});
  EXPECT_EQ(offered("train pretrain --mock_data "), (Words{"false", "true"}));
  const Words dispatchers = offered("train pretrain --config x.yaml --moe_token_dispatcher_type=a");
  EXPECT_EQ(dispatchers, (Words{"--moe_token_dispatcher_type=allgather", "--moe_token_dispatcher_type=alltoall"}));
  EXPECT_EQ(offered("config show --format "), (Words{"json", "yaml"}));
  EXPECT_EQ(offered("config params --preset deepseek_v2_l"), Words{"deepseek_v2_lite"});
  EXPECT_TRUE(holds(offered("config keys --area "), "learning-rate"));
  EXPECT_EQ(offered("config keys --state n"), Words{"no-effect"});
  EXPECT_EQ(offered("config explain train_it"), Words{"train_iters"});
  EXPECT_EQ(offered("completion z"), Words{"zsh"});
}

TEST(Completion, EntriesOfMaps) {
  EXPECT_EQ(offered("train pretrain --lor"), Words{"--lora"}) << "a map's entries wait for its name";
  const Words entries = offered("train pretrain --lora.");
  EXPECT_TRUE(holds(entries, "--lora.dim")) << entries.size();
  EXPECT_EQ(entries.size(), 8U);
  EXPECT_EQ(offered("train pretrain --lora.dropout_p"), Words{"--lora.dropout_position"});
  EXPECT_EQ(offered("train pretrain lora.al"), Words{"lora.alpha="});
  EXPECT_EQ(offered("train pretrain --torch-compile.b"), Words{"--torch-compile.backend"});
  EXPECT_EQ(offered("train pretrain --lora.enabled "), (Words{"false", "true"}));
  EXPECT_EQ(offered("train pretrain --lora.dropout_position=p"),
            (Words{"--lora.dropout_position=post", "--lora.dropout_position=pre"}));
  EXPECT_EQ(offered("config explain lora.di"), Words{"lora.dim"});
  EXPECT_EQ(offered("data prepare --documents "), (Words{"auto", "file", "json", "line"}));
}

TEST(Completion, EveryKeyAndEveryChoice) {
  const Words keys = offered("train pretrain --");
  for (const config::KeySection& section : config::key_sections()) {
    for (const config::Key& key : section.keys) EXPECT_TRUE(holds(keys, "--" + std::string(key.name))) << key.name;
  }
}

TEST(Completion, Files) {
  const test::TestFolder folder;
  folder.write("exps/one.yaml", "");
  folder.write("exps/two.yaml", "");
  folder.write("exps/notes.txt", "");
  const std::string path = folder.path().string();
  EXPECT_EQ(offered("train pretrain --config ex", path), Words{"exps/"});
  EXPECT_EQ(offered("train pretrain --config exps/", path), (Words{"exps/one.yaml", "exps/two.yaml"}));
  EXPECT_EQ(offered("train pretrain --config=exps/o", path), Words{"--config=exps/one.yaml"});
  EXPECT_EQ(offered("config check exps/one.yaml exps/t", path), Words{"exps/two.yaml"});
  EXPECT_EQ(offered("train pretrain --train_data_path exps/n", path), Words{"exps/notes.txt"});
}

TEST(Completion, NonsenseOffersNothing) {
  EXPECT_EQ(offered("nonsense "), Words{});
  EXPECT_EQ(offered("config nonsense --"), Words{});
  EXPECT_EQ(offered("train pretrain --no_such_key="), Words{});
  EXPECT_EQ(run_program({"completion"}).code, 2);
  EXPECT_EQ(run_program({"completion", "fish"}).err,
            "error: command line: unknown shell 'fish' (expected one of bash, zsh)\n");
}

/// What bash would insert, asked as its completion machinery asks.
std::string through_bash(const std::string& line) {
  const test::TestFolder folder;
  const std::string program = std::string(PRIMUS_BIN_DIR) + "/primus-cli";
  const std::string script = folder.write("ask.sh", "source <(" + program + " completion bash)\nCOMP_LINE='" + line +
                                                        "'\nCOMP_POINT=${#COMP_LINE}\nCOMP_WORDS=('" + program +
                                                        "')\n_primus_cli\nprintf '%s ' \"${COMPREPLY[@]}\" > " +
                                                        (folder.path() / "out").string() + "\n");
  EXPECT_EQ(std::system(("bash " + script).c_str()), 0);
  return read_file(folder.path() / "out");
}

TEST(Completion, ThroughBash) {
  EXPECT_EQ(through_bash("primus-cli conf"), "config ");
  EXPECT_EQ(through_bash("primus-cli train pretrain --mock_data=t"), "true ");
  EXPECT_EQ(through_bash("primus-cli config explain train_it"), "train_iters ");
}

bool has_zsh() {
  return std::system("command -v zsh > /dev/null 2>&1") == 0;
}

/// What zsh would offer: the script is loaded behind compinit, and compadd shows what it is given.
std::string through_zsh(const std::string& line) {
  const test::TestFolder folder;
  const std::string program = std::string(PRIMUS_BIN_DIR) + "/primus-cli";
  const std::string out = (folder.path() / "out").string();
  const std::string script = folder.write(
      "ask.zsh", "autoload -Uz compinit\ncompinit -u -d " + (folder.path() / "dump").string() + "\nsource <(" +
                     program +
                     " completion zsh)\n[[ ${_comps[primus-cli]} == _primus_cli ]] || exit 3\n"
                     "compadd() { while [[ $1 == -* && $1 != -- ]]; do shift; done; [[ $1 == -- ]] && shift\n"
                     "  print -r -- \"$@\" >> " +
                     out +
                     "; }\n"
                     "BUFFER='" +
                     line + "'\nLBUFFER=$BUFFER\nPREFIX=${BUFFER##* }\nwords=(" + program +
                     " ${(z)BUFFER#* })\nCURRENT=$#words\n_primus_cli\n");
  EXPECT_EQ(std::system(("zsh -f " + script).c_str()), 0);
  return read_file(out);
}

TEST(Completion, ThroughZsh) {
  if (!has_zsh()) GTEST_SKIP() << "no zsh on this machine";
  EXPECT_NE(through_zsh("primus-cli conf").find("config"), std::string::npos);
  EXPECT_NE(through_zsh("primus-cli train pretrain --mock_data=t").find("--mock_data=true"), std::string::npos);
  EXPECT_NE(through_zsh("primus-cli config explain train_it").find("train_iters"), std::string::npos);
}

TEST(Completion, ScriptsAreValid) {
  const test::TestFolder folder;
  const std::string script = folder.write("bash.sh", run_program({"completion", "bash"}).out);
  EXPECT_EQ(std::system(("bash -n " + script).c_str()), 0);
  const std::string zsh = run_program({"completion", "zsh"}).out;
  EXPECT_TRUE(zsh.starts_with("#compdef primus-cli\n"));
  if (!has_zsh()) GTEST_SKIP() << "no zsh on this machine";
  EXPECT_EQ(std::system(("zsh -n " + folder.write("zsh.sh", zsh)).c_str()), 0);
}

}  // namespace
}  // namespace primus::cli
