// projection memory and compare, view layout and memory: answers for people and programs, wrong input, speed.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "cli/program.hpp"

namespace primus::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

const std::string kExamples = std::string(PRIMUS_SOURCE_DIR) + "/examples";
const std::string kLite = kExamples + "/moe_package/configs/MI355X/deepseek_v2_lite-pretrain-baseline.yaml";
const std::string k1T = kExamples + "/moe_package/configs/MI355X/moe_1T-pretrain-baseline.yaml";
const std::string k2T = kExamples + "/moe_package/configs/MI355X/moe_2T-pretrain-baseline.yaml";

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Json json_of(Words words) {
  const ProgramResult result = run_program(with(std::move(words), {"--format", "json"}));
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  return Json::parse(result.out);
}

const Words kMemory1T = {"projection", "memory", "--config", k1T, "--world-size", "768"};

TEST(ProjectionMemory, TellsStagesContributorsAndWhatWouldHelp) {
  const ProgramResult result = run_program(with(kMemory1T, {"--gpu", "MI355X"}));
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"TP 1 x CP 1 x DP 32 x PP 24; experts ETP 1 x EP 8 x DP 4", "by pipeline rank (GiB)",
                            "planned    a real train refuses today: expert_model_parallel_size, microbatch_group",
                            "activations in flight", "largest contributors", "what would help",
                            "--context_parallel_size 2", "fits: ", "of 288.0 GiB on MI355X"});
}

TEST(ProjectionMemory, BareAndBehindDirectAreTheSame) {
  const ProgramResult bare = run_program(kMemory1T);
  const ProgramResult direct = run_program(with({"direct", "--"}, kMemory1T));
  EXPECT_EQ(direct.code, 0) << direct.err;
  EXPECT_EQ(direct.out, bare.out);
}

TEST(ProjectionMemory, TheNumberOfProcessesIsItsWorld) {
  const ProgramResult result =
      run_program({"direct", "--nproc", "16", "--", "projection", "memory", "--config", kLite});
  EXPECT_EQ(result.err, "");
  expect_holds(result.out, {"16 ranks (--nproc)"});
  expect_holds(run_program({"direct", "--nproc", "16", "--", "config", "keys", "lr"}).err,
               {"--nproc has no effect: config starts no worker"});
}

TEST(ProjectionMemory, AsJsonEverythingAddsUp) {
  const Json json = json_of(with(kMemory1T, {"--hbm", "192GiB"}));
  EXPECT_EQ(json["ranks"].size(), 24U);
  std::int64_t most = 0;
  for (const Json& rank : json["ranks"]) {
    std::int64_t sum = 0;
    for (const Json& bytes : rank["bytes"]) sum += bytes.get<std::int64_t>();
    EXPECT_EQ(sum, rank["total_bytes"]);
    std::int64_t activations = 0;
    for (const Json& bytes : rank["activations"]) activations += bytes.get<std::int64_t>();
    EXPECT_EQ(activations, rank["bytes"]["activations"]);
    most = std::max(most, rank["total_bytes"].get<std::int64_t>());
  }
  EXPECT_EQ(json["largest"]["total_bytes"], most);
  EXPECT_EQ(json["fits"].get<bool>(), most <= std::int64_t{192} << 30);
  ASSERT_EQ(json["contributors"].size(), 5U);
  EXPECT_EQ(json["contributors"][0]["bytes"], json["ranks"][0]["activations"]["experts"]);
  for (const Json& remedy : json["remedies"])
    EXPECT_EQ(remedy["total_bytes"].get<std::int64_t>() + remedy["saved_bytes"].get<std::int64_t>(), most);
}

TEST(ProjectionMemory, SaysWhereAnImbalanceIsBounded) {
  const Words lite = {"projection", "memory", "--config", kLite, "--imbalance"};
  expect_holds(run_program(with(lite, {"2.5"})).out, {"the busiest rank's experts get 2.5 times their share\n"});
  expect_holds(run_program(with(lite, {"100"})).out, {"get 8 times their share (of 100 asked for): no more rows can"});
  EXPECT_EQ(json_of(with(lite, {"100"}))["layout"]["counted_imbalance"], 8.0);
}

TEST(ProjectionMemory, NamesWhatIsNotCountedAndWhatWouldNotHelp) {
  const Words lite = {"projection", "memory", "--config", kLite};
  expect_holds(run_program(with(lite, {"--fp8", "hybrid"})).out, {"uncounted  fp8: counted as"});
  EXPECT_EQ(json_of(with(lite, {"--fp8", "hybrid"}))["not_counted"][0]["key"], "fp8");
  const Words oss = {"projection", "memory", "--config",
                     kExamples + "/megatron/configs/MI355X/gpt_oss_20B-BF16-pretrain.yaml"};
  expect_holds(run_program(oss).out, {"what would not", "--context_parallel_size 2"});
}

TEST(ProjectionMemory, OneRankAndAllRanks) {
  const ProgramResult one = run_program(with(kMemory1T, {"--rank", "767"}));
  EXPECT_EQ(one.code, 0) << one.err;
  expect_holds(one.out, {"rank 767: tensor 0, context 0, data 31, pipeline 23; expert 7, expert data 3"});
  const ProgramResult all = run_program(with(kMemory1T, {"--all-ranks", "--format", "csv"}));
  EXPECT_EQ(std::count(all.out.begin(), all.out.end(), '\n'), 769);
  const ProgramResult stages = run_program(with(kMemory1T, {"--format", "csv"}));
  EXPECT_EQ(std::count(stages.out.begin(), stages.out.end(), '\n'), 25);
}

TEST(ProjectionMemory, OtherAccountings) {
  // Two of the deep-dive's bars: 1T on PP24 EP8, one layer a virtual stage.
  const Json blog = json_of(with(kMemory1T, {"--accounting", "blog"}));
  EXPECT_NEAR(blog["activation_bytes"].get<double>() / 1e9, 153.4, 0.05);
  const Json twice = json_of(with(kMemory1T, {"--accounting", "blog", "--context_parallel_size", "2"}));
  EXPECT_NEAR(twice["activation_bytes"].get<double>() / 1e9, 76.7, 0.05);
  const Json primus = json_of(with(kMemory1T, {"--accounting", "primus"}));
  EXPECT_EQ(primus["ranks"].size(), 24U);
  EXPECT_NEAR(primus["ranks"][0]["activation_bytes"].get<double>() / 0x1p30, 134.46, 0.01);
  expect_holds(run_program(with(kMemory1T, {"--accounting", "primus", "--gpu", "MI355X"})).out,
               {"6,907,166,720", "fits: 244.6 of 288.0 GiB on MI355X"});
  expect_holds(run_program(with(kMemory1T, {"--accounting", "blog", "--gpu", "MI300X"})).out, {"fits: 181.5 of 192.0"});
  EXPECT_FALSE(json_of(with(kMemory1T, {"--accounting", "blog", "--hbm", "100GiB"}))["fits"].get<bool>());
}

TEST(ProjectionMemory, AsAPageItNeedsNoNetwork) {
  const test::TestFolder folder;
  const std::string file = folder.path().string() + "/memory.html";
  const ProgramResult result = run_program(with(kMemory1T, {"--format", "html", "--out", file, "--gpu", "MI300X"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "wrote " + file + "\n");
  const std::string page = read_file(file);
  expect_holds(page, {"<!DOCTYPE html>", "<svg", "prefers-color-scheme: dark", "rank 23", "MI300X",
                      "Largest contributors", "activations: experts", "What would help", "--context_parallel_size 2",
                      "fits: 189.5 of 192.0 GiB on MI300X, 2.50 GiB left", "largest: pipeline rank 0"});
  // A rank, or all of them, are told on a page as in text.
  EXPECT_EQ(run_program(with(kMemory1T, {"--rank", "767", "--out", file})).code, 0);
  expect_holds(read_file(file), {"rank 767: tensor 0, context 0, data 31, pipeline 23"});
  expect_holds(run_program(with(kMemory1T, {"--hbm", "140GiB"})).out,
               {"does not fit: 189.5 of 140.0 GiB on a device, 49.5 GiB too much"});
  EXPECT_EQ(run_program(with(kMemory1T, {"--all-ranks", "--out", file})).code, 0);
  expect_holds(read_file(file), {">rank 767<"});
  for (const char* reference : {"src=", "href=", "@import", "url("}) {
    EXPECT_EQ(page.find(reference), std::string::npos) << reference;
  }
}

struct Refused {
  Words words;
  Words parts;  // of what is told
};

TEST(ProjectionMemory, WrongInputIsToldAndEndsWithTwo) {
  const Words lite = {"projection", "memory", "--config", kLite};
  const Refused cases[] = {
      {with(lite, {"--gpu", "MI335X"}), {"--gpu: unknown device", "did you mean"}},
      {with(lite, {"--gpu", "MI300X", "--hbm", "1GiB"}), {"--gpu says it already"}},
      {with(lite, {"--hbm", "-3GiB"}), {"a device has some memory"}},
      {with(lite, {"--hbm", "lots"}), {"not a size of memory", "lots"}},
      {with(lite, {"--hbm", "99999999999GiB"}), {"beyond 2^63 bytes"}},
      {with(lite, {"--rank", "8"}), {"--rank: the world has 8 ranks", "0 to 7"}},
      {with(lite, {"--rank", "-1"}), {"--rank: is no rank (expected 0 to 7, found -1)"}},
      {with(lite, {"--rank", "1.5"}), {"--rank: is no rank (expected 0 to 7, found 1.5)"}},
      {with(lite, {"--rank", "99999999999999999999"}),
       {"--rank: the world has 8 ranks (expected 0 to 7, found 99999999999999999999)"}},
      {with(lite, {"--gpu", ""}), {"--gpu: needs a value"}},
      {with(lite, {"--hbm", ""}), {"--hbm: needs a value"}},
      {with(lite, {"--out", ""}), {"--out: needs a value"}},
      {with(lite, {"--hbm", "140"}), {"--hbm: a unit is missing", "140GiB"}},
      {with(lite, {"--imbalance", "0.5"}),
       {"--imbalance: is no share", "expected 1 (balanced) to 1,000,000, found 0.5"}},
      {with(lite, {"--imbalance", "nan"}), {"found nan"}},
      {with(lite, {"--imbalance", "1e300"}), {"found 1e+300"}},
      {with(lite, {"--world-size", "0"}), {"--world-size"}},
      {with(lite, {"--world-size", "99999999999999999999"}), {"--world-size"}},
      {with(lite, {"--world-size", "9223372036854775800"}), {"no run has so many processes"}},
      {with(lite, {"--num_layers", "1000000"}), {"num_layers", "expected at most 100,000"}},
      {with(lite, {"--padded_vocab_size", "9000000000000000000"}),
       {"padded_vocab_size", "may take more than 2^63 bytes", "a vocabulary of 9000000000000000000"}},
      {with(lite, {"--accounting", "theirs"}), {"--accounting"}},
      {with(lite, {"--accounting", "blog", "--format", "csv"}), {"answers as text or json"}},
      {with(lite, {"--accounting", "blog", "--rank", "1"}), {"--rank: --accounting blog knows no such thing"}},
      {with(lite, {"--accounting", "primus", "--imbalance", "2"}), {"--imbalance: --accounting primus knows no such"}},
      {with(lite, {"--world-size", "12"}), {"expert_model_parallel_size"}},
      {with(lite, {"--pipeline_model_parallel_size", "4"}), {"does not divide"}},
      {with(lite, {"--pipeline_model_parallel_size", "4", "--pipeline_model_parallel_layout", "Et*7|t*7|t*7|t*6"}),
       {"the loss is missing", "^"}},
      {with(lite, {"--pipeline_model_parallel_size", "4", "--pipeline_model_parallel_layout", "Et*7|t*7|t*7|t*5,L"}),
       {"places 26 layers, but num_layers 27"}},
      {with(lite, {"--hidden_size", "-5"}), {"hidden_size"}},
      {with(lite, {"--seq_length", "1000000001"}), {"seq_length", "larger than any machine could hold"}},
      {with(lite, {"--seq_length", "1000000000", "--max_position_embeddings", "1000000000", "--micro_batch_size",
                   "10000000", "--global_batch_size", "80000000"}),
       {"micro_batch_size: the activations of this run may take more than 2^63 bytes"}},
      {{"projection", "memory"}, {"--config: is missing"}},
      {{"projection", "compare"}, {"no experiment is named"}},
      {{"projection", "compare", kLite, "--sweep", "cq=1"}, {"unknown setting 'cq'"}},
      {{"projection", "compare", kLite, "--sweep", "ep=3,5"}, {"expert_model_parallel_size"}},
      {{"projection", "memori", "--config", kLite}, {"did you mean 'memory'?"}},
      {{"view", "memory", "--config", kLite, "--format", "png"}, {"a terminal shows no PNG"}},
      {{"view", "memory", "--config", kLite, "--format", "gif"}, {"expected one of text, svg, html, png, json"}},
      {{"view", "memory", "--config", kLite, "--out", "x.gif"},
       {"the ending says what to write", ".txt, .svg, .html, .png, .json", "x.gif"}},
      {{"view", "layout", "--config", kLite, "--out", "x.svg", "--format", "html"},
       {"the ending and --format name two formats"}},
      {{"view", "memory", "--config", kLite, "--picture", "both"}, {"--picture"}},
  };
  for (const Refused& refused : cases) {
    const ProgramResult result = run_program(refused.words);
    EXPECT_EQ(result.code, 2) << result.out;
    expect_holds(result.err, refused.parts);
  }
}

TEST(ProjectionMemory, LinearAttentionIsNotGuessed) {
  const test::TestFolder folder;
  const std::string file = folder.write(
      "linear.yaml",
      "work_group: t\nuser_name: t\nexp_name: linear\nworkspace: ./output\nmodules:\n  pre_trainer:\n"
      "    framework: megatron\n    config: pre_trainer.yaml\n    model: lfm2_8B_A1B.yaml\n    overrides:\n"
      "      train_iters: 1\n      mock_data: true\n");
  // Short convolutions are described; a kind that is not is refused, and never counted as nothing.
  EXPECT_EQ(run_program({"projection", "memory", "--config", file}).code, 0);
  const ProgramResult result = run_program({"projection", "memory", "--config", file, "--lfm_layer_types=null",
                                            "--experimental_attention_variant=gdn2", "--linear_attention_freq=4"});
  EXPECT_EQ(result.code, 2) << result.out;
  expect_holds(result.err, {"its memory cannot be projected"});
  const Json layout = json_of({"view", "layout", "--config", file});
  EXPECT_EQ(layout["ranks"][0]["chunks"][0]["layers"], 24);
  const Json params = json_of({"config", "params", "--config", file});
  EXPECT_EQ(layout["ranks"][0]["flops_per_token"], params["flops_per_token"]);
  EXPECT_EQ(layout["ranks"][0]["parameters"], params["total"]);
}

TEST(ProjectionCompare, ARowALayoutWithWhatIsNotLegal) {
  const Words sweep = {"projection", "compare",  k1T,       "--world-size", "768",
                       "--sweep",    "cp=1,2,3", "--sweep", "ep=8,16"};
  const ProgramResult text = run_program(with(sweep, {"--gpu", "MI300X"}));
  EXPECT_EQ(text.code, 0) << text.err;
  expect_holds(text.out, {"cp 1, ep 8", "cp 2, ep 16", "not legal: ", "fits"});
  const Json json = json_of(sweep);
  EXPECT_EQ(json["layouts"].size(), 6U);
  EXPECT_FALSE(json["layouts"][4]["legal"].get<bool>());
  const auto total = [&](int i) {
    return json["layouts"][static_cast<std::size_t>(i)]["largest"]["total_bytes"].get<std::int64_t>();
  };
  EXPECT_LT(total(2), total(0)) << "context parallelism helps";
  const ProgramResult csv = run_program(with(sweep, {"--format", "csv"}));
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 7);
  const Json two = json_of({"projection", "compare", kLite, k1T});
  EXPECT_EQ(two["layouts"][0]["layout"], "deepseek_v2_lite-pretrain-baseline");
}

TEST(ProjectionCompare, EveryRowSaysOnHowManyRanks) {
  const Json json = json_of({"projection", "compare", kLite, "--sweep", "ep=8,16"});
  EXPECT_EQ(json["layouts"][0]["world_size"], 8);
  EXPECT_EQ(json["layouts"][1]["world_size"], 16);
  const ProgramResult text = run_program({"projection", "compare", kLite, "--sweep", "ep=8,16"});
  expect_holds(text.out, {"ranks"});
  const ProgramResult csv = run_program({"projection", "compare", kLite, "--sweep", "ep=8,16", "--format", "csv"});
  expect_holds(csv.out, {"layout,legal,world_size,", "ep 16,yes,16,"});
}

// What one command says of an experiment is what the other says of it.
TEST(ProjectionCompare, EveryAccountingGivesWhatMemoryGives) {
  for (const std::string accounting : {"blog", "primus", "ours"}) {
    const Words options = {"--world-size", "768", "--accounting", accounting, "--gpu", "MI300X"};
    const Json memory = json_of(with({"projection", "memory", "--config", k1T}, options));
    const Json row = json_of(with({"projection", "compare", k1T}, options))["layouts"][0];
    EXPECT_EQ(row["fits"], memory["fits"]) << accounting;
    if (accounting == "ours") {
      EXPECT_EQ(row["largest"]["total_bytes"], memory["largest"]["total_bytes"]);
    } else if (accounting == "blog") {
      for (const char* field : {"parameter_bytes", "gradient_bytes", "main_parameter_bytes", "moment_bytes",
                                "activation_bytes", "total_bytes"})
        EXPECT_EQ(row[field], memory[field]) << field;
    } else {
      double most = 0.0;
      for (const Json& rank : memory["ranks"]) most = std::max(most, rank["total_bytes"].get<double>());
      EXPECT_EQ(row["total_bytes"], most);
    }
    for (const char* format : {"text", "csv", "html"}) {
      const ProgramResult result =
          run_program(with(with({"projection", "compare", k1T}, options), {"--format", format}));
      EXPECT_EQ(result.code, 0) << accounting << " " << format << result.err;
      expect_holds(result.out, {"total"});
    }
  }
}

TEST(ProjectionCompare, WritesAFileByItsEnding) {
  const test::TestFolder folder;
  for (const char* name : {"a.txt", "a.csv", "a.json", "a.html"}) {
    const std::string file = (folder.path() / name).string();
    const ProgramResult result = run_program({"projection", "compare", kLite, "--sweep", "cp=1,2,3", "--out", file});
    EXPECT_EQ(result.out, "wrote " + file + "\n") << result.err;
    EXPECT_GT(std::filesystem::file_size(file), 100U);
  }
  const ProgramResult over = run_program({"projection", "compare", kLite, "--format", "csv", "--out", kLite});
  EXPECT_EQ(over.code, 2);
  expect_holds(over.err, {"would be written over"});
}

TEST(ProjectionCompare, WrongInputIsToldWithAWayOut) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--config", kLite}, "files stand without an option: compare "},
      {{kLite, "nowhere.yaml"}, "nowhere.yaml: file 'nowhere.yaml' does not exist"},
      {{kLite, "--sweep", "cp=1,2", "--context_parallel_size", "4"}, "--context_parallel_size: is swept"},
      {{kLite, "--sweep", "pipeline_model_parallel_layout=Et*13|t*14,L,Et*14|t*13,L"}, "stands in quotation marks"},
      {{kLite, "--accounting", "blog", "--imbalance", "2"}, "--imbalance: --accounting blog knows no such thing"},
  };
  for (const auto& [words, text] : cases) {
    const ProgramResult result = run_program(with({"projection", "compare"}, words));
    EXPECT_EQ(result.code, 2) << text;
    expect_holds(result.err, {text});
  }
}

TEST(ProjectionMemory, OptionsOfTheOriginalSayWhatStandsInTheirPlace) {
  for (const std::string option : {"--pipeline-schedule-algorithm", "--memory-mode", "--memory-safety-margin",
                                   "--target-nodes", "--benchmark-gpus", "--save-benchmark", "--load-benchmark"}) {
    const ProgramResult result = run_program({"projection", "memory", "--config", kLite, option, "x"});
    EXPECT_EQ(result.code, 2);
    expect_holds(result.err, {option + ": no option of projection memory; "});
  }
  expect_holds(run_program({"projection", "both", "--config", kLite}).err, {"planned for a later release"});
}

TEST(ProjectionMemory, SaysWhatEachOptimizerHolds) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"adam", "fp32 masters as the 16 bits that weights lack, fp32 moments;"},
      {"sgd", "fp32 masters as the 16 bits that weights lack, fp32 momentum;"},
      {"lion", "fp32 masters as the 16 bits that weights lack, fp32 momentum;"},
      {"muon", "fp32 momentum of matrices, fp32 moments of the rest;"}};
  for (const auto& [optimizer, text] : cases) {
    expect_holds(run_program({"projection", "memory", "--config", kLite, "--optimizer", optimizer}).out, {text});
  }
}

// Weights over parameters are the bytes of one, or a line says which rank holds more and why.
TEST(ProjectionMemory, NamesTheRanksThatHoldTheEmbeddingAgain) {
  const std::string v3 = kExamples + "/megatron/configs/MI355X/deepseek_v3-BF16-pretrain.yaml";
  expect_holds(run_program({"projection", "memory", "--config", v3}).out,
               {"pipeline rank 15 holds the word embedding again: "});
  expect_holds(run_program({"view", "layout", "--config", v3}).out,
               {"held again, in no rank's number: the word embedding, on rank 15"});
  const ProgramResult plain = run_program(kMemory1T);
  EXPECT_EQ(plain.out.find("holds the word embedding again"), std::string::npos);
}

TEST(ProjectionCompare, FilesOfOneNameAreToldApart) {
  const std::string mi300x = kExamples + "/megatron/configs/MI300X/deepseek_v2-BF16-pretrain.yaml";
  const std::string mi355x = kExamples + "/megatron/configs/MI355X/deepseek_v2-BF16-pretrain.yaml";
  const Json json = json_of({"projection", "compare", mi300x, mi355x, kLite});
  EXPECT_EQ(json["layouts"][0]["layout"], mi300x);
  EXPECT_EQ(json["layouts"][1]["layout"], mi355x);
  EXPECT_EQ(json["layouts"][2]["layout"], "deepseek_v2_lite-pretrain-baseline");
}

TEST(ViewLayout, EveryLayerOnceAndSharesThatAddUp) {
  const Json json = json_of({"view", "layout", "--config", k1T});
  int layers = 0;
  for (const Json& rank : json["ranks"]) {
    for (const Json& chunk : rank["chunks"]) layers += chunk["layers"].get<int>();
  }
  EXPECT_EQ(layers, 96);
  expect_holds(run_program({"view", "layout", "--config", k1T}).out,
               {"Et|(t|)*94t,L\n", "parameters are those of one rank of a stage; the model has "});
  const Json params = Json::parse(run_program({"config", "params", "--config", k1T, "--format", "json"}).out);
  EXPECT_EQ(json["parameters"], params["total"]);
  std::int64_t flops = 0;
  for (const Json& rank : json["ranks"]) flops += rank["flops_per_token"].get<std::int64_t>();
  EXPECT_EQ(flops, params["flops_per_token"].get<std::int64_t>());
  expect_holds(run_program({"view", "layout", "--config", k1T}).out,
               {"rank", "E 0,24,48,72", "above the mean", "a real train refuses today: expert_model_parallel_size"});
  expect_holds(run_program({"view", "pipeline", "--config", k1T}).out,
               {"a real train refuses today: expert_model_parallel_size"});
}

TEST(ViewMemory, PicturesInEveryFormat) {
  const Words base = {"view", "memory", "--config", kLite};
  expect_holds(run_program(with(base, {"--gpu", "MI355X"})).out, {"P parameters", "^ MI355X 288.0 GiB"});
  for (const char* picture : {"bars", "time"}) {
    const ProgramResult svg = run_program(with(base, {"--format", "svg", "--picture", picture}));
    EXPECT_EQ(svg.out.rfind("<svg", 0), 0U);
    EXPECT_EQ(svg.out.find("nan"), std::string::npos);
  }
  EXPECT_TRUE(json_of(base)["ok"].get<bool>());
  expect_holds(run_program(with(base, {"--picture", "time"})).out, {"rank 0 ", "tenths of"});
  // A curve's most is the projection's.
  const Json json = json_of(with(base, {"--picture", "time"}));
  std::int64_t most = 0;
  for (const Json& bytes : json["timeline"]["ranks"][0]["bytes"]) most = std::max(most, bytes.get<std::int64_t>());
  EXPECT_EQ(most, json["ranks"][0]["bytes"]["activations"].get<std::int64_t>() +
                      json["ranks"][0]["bytes"]["made_again"].get<std::int64_t>());
  const ProgramResult layout = run_program({"view", "layout", "--config", kLite, "--format", "html"});
  expect_holds(layout.out, {"<!DOCTYPE html>", "<svg"});
}

// A category's cells follow its bytes: each is within one cell of its share, and what takes more never has fewer.
TEST(ViewMemory, CellsFollowBytes) {
  const std::string v2 =
      std::string(PRIMUS_SOURCE_DIR) + "/examples/moe_package/configs/MI355X/deepseek_v2-pretrain-baseline.yaml";
  const Json ranks = json_of({"view", "memory", "--config", v2})["ranks"];
  const std::vector<std::string> lines = split(run_program({"view", "memory", "--config", v2}).out, '\n');
  const std::pair<char, const char*> letters[] = {{'P', "parameters"},    {'G', "gradients"},   {'O', "optimizer"},
                                                  {'A', "activations"},   {'r', "made_again"},  {'d', "dispatch"},
                                                  {'c', "communication"}, {'w', "working_set"}, {'f', "framework"}};
  double most = 0.0;
  for (const Json& rank : ranks) most = std::max(most, rank["total_bytes"].get<double>());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string bar = lines[2 + rank].substr(5, 72);
    const Json& bytes = ranks[rank]["bytes"];
    const auto cells = [&](char letter) { return static_cast<double>(std::count(bar.begin(), bar.end(), letter)); };
    for (const auto& [letter, category] : letters) {
      EXPECT_LT(std::abs(cells(letter) - bytes[category].get<double>() / most * 72.0), 1.0) << category;
      for (const auto& [other, other_category] : letters) {
        if (bytes[other_category].get<double>() > bytes[category].get<double>()) continue;
        EXPECT_LE(cells(other), cells(letter)) << other_category << " and " << category;
      }
    }
  }
}

// Curves cover the whole step, as the boxes of `view pipeline` do.
TEST(ViewMemory, TheStepIsWhole) {
  const std::string v3 =
      std::string(PRIMUS_SOURCE_DIR) + "/examples/megatron/configs/MI355X/deepseek_v3-BF16-pretrain.yaml";
  for (const Words& experiment : {Words{kLite}, Words{k1T, "--world-size", "768"}, Words{v3}}) {
    const Words memory = with({"view", "memory", "--picture", "time", "--config"}, experiment);
    const Json curves = json_of(memory)["timeline"];
    const Json boxes = json_of(with({"view", "pipeline", "--config"}, experiment))["charts"][0];
    EXPECT_EQ(curves["micro_batches"], boxes["micro_batches"]);
    EXPECT_NEAR(curves["ranks"][0]["time"].back().get<double>(), boxes["ranks"][0]["end"].get<double>(), 1e-9);
    EXPECT_EQ(run_program(memory).out.find(" micro-batches"), std::string::npos);
  }
}

// The ending of --out says what is written; a dry run writes nothing.
TEST(ViewMemory, EndingsChooseTheFormat) {
  const test::TestFolder folder;
  const auto file = [&](const std::string& name) { return folder.path().string() + "/" + name; };
  for (const auto& [name, begin] : std::vector<std::pair<std::string, std::string>>{
           {"a.svg", "<svg"}, {"sub/b.html", "<!DOCTYPE html>"}, {"c.json", "{"}, {"d.txt", "memory of "}}) {
    const Words words = {"view", "memory", "--config", kLite, "--out", file(name)};
    const ProgramResult dry = run_program(with({"--dry-run"}, words));
    EXPECT_EQ(dry.out, "would write " + file(name) + "\n") << dry.err;
    EXPECT_FALSE(std::filesystem::exists(file(name)));
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.out, "wrote " + file(name) + "\n") << result.err;
    EXPECT_EQ(read_file(file(name)).rfind(begin, 0), 0U) << name;
  }
  const Json json = Json::parse(
      run_program({"--format", "json", "view", "layout", "--config", kLite, "--out", file("layout.svg")}).out);
  EXPECT_EQ(json["written"], file("layout.svg"));
  EXPECT_EQ(read_file(file("layout.svg")).rfind("<svg", 0), 0U);
}

TEST(Projection, HelpFitsAScreen) {
  for (const Words& words :
       {Words{"projection", "memory"}, {"projection", "compare"}, {"view", "memory"}, {"view", "layout"}}) {
    const ProgramResult help = run_program(with(words, {"--help"}));
    EXPECT_EQ(help.code, 0);
    EXPECT_LE(std::count(help.out.begin(), help.out.end(), '\n'), 40) << help.out;
    expect_holds(help.out, {"examples"});
  }
}

// Every command on every model: seven models, a page of all 768 ranks of the largest among them.
TEST(Projection, EveryCommandOnEveryModelInMilliseconds) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "times mean nothing under a sanitizer";
#endif
  const std::string mi355x = kExamples + "/megatron/configs/MI355X/";
  const std::vector<Words> experiments = {
      {kLite},
      {kExamples + "/moe_package/configs/MI355X/deepseek_v2-pretrain-baseline.yaml"},
      {mi355x + "deepseek_v3-BF16-pretrain.yaml"},
      {k1T, "--world-size", "768"},
      {k2T, "--world-size", "768"},
      {mi355x + "mixtral_8x7B_v0.1-BF16-pretrain.yaml"},
      {mi355x + "qwen3_30B_A3B-BF16-pretrain.yaml"}};
  const test::TestFolder folder;
  const std::string page = folder.path().string() + "/page.html";
  for (const Words& experiment : experiments) {
    for (const Words& command :
         {Words{"projection", "memory", "--config"}, Words{"projection", "memory", "--all-ranks", "--config"},
          Words{"projection", "memory", "--format", "json", "--config"}, Words{"projection", "compare"},
          Words{"view", "memory", "--config"}, Words{"view", "memory", "--out", page, "--config"},
          Words{"view", "layout", "--config"}, Words{"view", "layout", "--out", page, "--config"},
          Words{"view", "memory", "--picture", "time", "--config"}, Words{"view", "pipeline", "--config"},
          Words{"view", "pipeline", "--out", page, "--config"},
          Words{"view", "pipeline", "--format", "json", "--config"}}) {
      expect_within(50.0, with(command, experiment));
    }
  }
}

}  // namespace
}  // namespace primus::cli
