// benchmark step: how fast whole training steps of an experiment are, on mock data.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/commands.hpp"
#include "cli/config_common.hpp"
#include "cli/output_aside.hpp"

namespace primus::cli {
namespace {

struct StepWords {
  ReadOptions read;
  std::string device;
  int steps = 12;
  int warm_up = 4;
};

void add_options(CLI::App& app, StepWords& read) {
  add_config_option(app, read.read);
  app.add_option("--steps", read.steps, "Steps that are run")->check(CLI::Range(2, 100000))->capture_default_str();
  app.add_option("--warm-up,--warm_up", read.warm_up, "Steps at the beginning that do not count")
      ->check(CLI::Range(0, 99999))
      ->capture_default_str();
  add_choice(app, "--device", read.device, "Where (default: as in training)", {"cpu", "cuda"});
  add_format_option(app, read.read.format, {"text", "json"});
}

/// A folder of this process's own, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "primus-benchmark-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw UserError(fmt::format("{}: cannot be made", pattern));
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The words of a train of the experiment: steps alone, each one told, and nothing left behind.
std::vector<std::string> train_words(const StepWords& read, const std::filesystem::path& workspace) {
  std::vector<std::string> words = {"--config", read.read.config};
  if (!read.device.empty()) words.insert(words.end(), {"--device", read.device});
  words.insert(words.end(), read.read.overrides.begin(), read.read.overrides.end());
  for (const char* word : {"mock_data=true", "train_data_path=null", "valid_data_path=null", "test_data_path=null",
                           "data_path=null", "eval_iters=0", "save=null", "load=null", "auto_continue_train=false",
                           "log_interval=1", "log_avg_skip_iterations=0", "lr_warmup_iters=0"}) {
    words.emplace_back(word);
  }
  words.push_back(fmt::format("train_iters={}", read.steps));
  words.push_back(fmt::format("workspace={}", workspace.string()));
  return words;
}

std::filesystem::path metrics_under(const std::filesystem::path& workspace) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(workspace)) {
    if (entry.path().filename() == "metrics.jsonl") return entry.path();
  }
  throw UserError("the run left no metrics");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

/// Records of the steps that count, by figure.
struct Records {
  std::vector<double> ms, tokens_per_s, tflop_s;
  double peak_bytes = 0.0, reserved_bytes = 0.0;

  double deviation_ms() const {
    std::vector<double> distances;
    for (const double value : ms) distances.push_back(std::abs(value - median(ms)));
    return median(distances);
  }
};

Records records_of(const std::filesystem::path& metrics, int warm_up) {
  Records records;
  for (const std::string& line : split(read_file(metrics), '\n')) {
    const Json record = Json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("lm_loss")) continue;
    records.peak_bytes = std::max(records.peak_bytes, record.at("memory_peak_bytes").get<double>());
    records.reserved_bytes = std::max(records.reserved_bytes, record.at("memory_reserved_bytes").get<double>());
    if (record.at("iteration").get<int>() <= warm_up) continue;
    records.ms.push_back(record.at("elapsed_ms").get<double>());
    records.tokens_per_s.push_back(record.at("tokens_per_s_per_device").get<double>());
    records.tflop_s.push_back(record.at("tflops_per_device").get<double>());
  }
  if (records.ms.empty()) throw UserError("the run left no record of a step");
  return records;
}

Json json_of(const StepWords& read, const Records& records) {
  return {{"ok", true},
          {"config", read.read.config},
          {"steps", records.ms.size()},
          {"warm_up", read.warm_up},
          {"median_ms", median(records.ms)},
          {"mad_ms", records.deviation_ms()},
          {"least_ms", *std::min_element(records.ms.begin(), records.ms.end())},
          {"most_ms", *std::max_element(records.ms.begin(), records.ms.end())},
          {"tokens_per_s_per_device", median(records.tokens_per_s)},
          {"tflops_per_device", median(records.tflop_s)},
          {"memory_peak_bytes", records.peak_bytes},
          {"memory_reserved_bytes", records.reserved_bytes}};
}

std::string text_of(const StepWords& read, const Records& records) {
  return fmt::format(
      "{}: {} steps after {}\n"
      "  ms a step          {:.1f} ± {:.1f} (median, MAD; {:.1f} to {:.1f})\n"
      "  tokens/s/device    {:.0f}\n"
      "  model TFLOP/s      {:.4g}\n"
      "  memory             peak {}, reserved {}\n",
      read.read.config, records.ms.size(), read.warm_up, median(records.ms), records.deviation_ms(),
      *std::min_element(records.ms.begin(), records.ms.end()), *std::max_element(records.ms.begin(), records.ms.end()),
      median(records.tokens_per_s), median(records.tflop_s),
      format_bytes(static_cast<std::int64_t>(records.peak_bytes)),
      format_bytes(static_cast<std::int64_t>(records.reserved_bytes)));
}

void check(const StepWords& read) {
  if (read.warm_up < read.steps) return;
  throw ConfigError({{.file = "command line",
                      .key = "--warm-up",
                      .message = "leaves no step that counts",
                      .expected = fmt::format("fewer than --steps, {}", read.steps),
                      .found = std::to_string(read.warm_up)}});
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  StepWords read;
  CLI::App app("Run some steps of an experiment on mock data and tell how fast they are. Other words override keys.",
               "primus-cli benchmark step");
  add_options(app, read);
  app.footer(
      "The training's own lines go to standard error; nothing is kept.\n"
      "example\n  primus-cli benchmark step --config bench/step/w1.yaml --device cuda --micro_batch_size 8 \\\n"
      "    --global_batch_size 8");
  if (parse_options(app, words, Rest::kReturn, read.read.overrides) == Parsed::kHelpShown) return 0;
  check(read);
  const TemporaryFolder folder;
  LaunchOptions train = launch;
  train.format = Format::kText;
  const bool is_json = launch.format == Format::kJson || format_of(read.read.format) == Format::kJson;
  if (launch.action == Action::kDryRun) return kTrainPretrain.run(train_words(read, folder.path()), launch);
  int code = 0;
  {
    const OutputAside aside;
    code = kTrainPretrain.run(train_words(read, folder.path()), train);
  }
  if (code != 0) return code;
  const Records records = records_of(metrics_under(folder.path()), read.warm_up);
  if (is_json) {
    print_json(json_of(read, records));
  } else {
    fmt::print("{}", text_of(read, records));
  }
  return 0;
}

}  // namespace

const Command kBenchmarkStep = {"benchmark",
                                "step",
                                "--config FILE [--steps N] [overrides]",
                                "speed of an experiment's steps",
                                Starts::kWorkers,
                                Rest::kReturn,
                                "",
                                [](CLI::App& app) {
                                  static StepWords unused;
                                  add_options(app, unused);
                                },
                                run};

}  // namespace primus::cli
