#include "faults/worker_run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/text.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/checkpoint_root.hpp"
#include "config/resolve.hpp"

namespace primus::faults {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExperiment = R"(work_group: t
user_name: t
exp_name: run
workspace: {}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: deepseek_v2_tiny.yaml
    overrides:
      mock_data: true
      vocab_size: 200
      num_layers: 2
      moe_layer_freq: ([0]*1+[1]*1)
      hidden_size: 32
      ffn_hidden_size: 48
      num_attention_heads: 2
      kv_lora_rank: 16
      num_experts: 4
      moe_ffn_hidden_size: 24
      moe_shared_expert_intermediate_size: 24
      moe_input_jitter_eps: 0.1
      seq_length: 32
      max_position_embeddings: 32
      micro_batch_size: 2
      global_batch_size: 4
      train_iters: 12
      eval_iters: 1
      eval_interval: 6
      log_interval: 1
      bf16: false
      lr: 5.0e-3
      deterministic_mode: true
      save_interval: 2
)";

void redirect(int descriptor, const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  ::dup2(file, descriptor);
  ::close(file);
}

}  // namespace

WorkerRun::WorkerRun(const std::vector<std::string>& overrides) {
  const std::string file = folder_ / "experiment.yaml";
  std::string text = kExperiment;
  text.replace(text.find("{}"), 2, folder_.path());
  write_file(file, text);
  const config::Experiment experiment =
      config::resolve({.file = file, .overrides = overrides, .purpose = config::Purpose::kTrain}).experiment;
  run_folder_ = experiment.run_folder();
  make_folder(run_folder_);
  write_file(run_folder_ / "experiment.json", experiment.to_json());
}

Ended WorkerRun::run(const std::string& fault, std::optional<std::chrono::milliseconds> kill_after) const {
  const std::string out = folder_ / "out";
  const std::string err = folder_ / "err";
  const std::string experiment = run_folder_ / "experiment.json";
  const pid_t worker = ::fork();
  if (worker == 0) {
    redirect(STDOUT_FILENO, out);
    redirect(STDERR_FILENO, err);
    if (!fault.empty()) {
      ::setenv("PRIMUS_FILE_FAULT", fault.c_str(), 1);
      ::setenv("LD_PRELOAD", PRIMUS_FILE_FAULTS, 1);
    }
    ::execl(PRIMUS_BIN_DIR "/primus-worker", "primus-worker", "--experiment", experiment.c_str(), "--device", "cpu",
            nullptr);
    ::_exit(127);
  }
  if (kill_after) {
    std::this_thread::sleep_for(*kill_after);
    ::kill(worker, SIGKILL);
  }
  int status = 0;
  ::waitpid(worker, &status, 0);
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
          .out = read_file(out),
          .err = read_file(err)};
}

fs::path WorkerRun::checkpoints() const {
  return run_folder_ / "checkpoints";
}

std::vector<std::string> WorkerRun::curve() const {
  std::vector<std::string> lines;
  for (const std::string& line : split(read_file(run_folder_ / "metrics.jsonl"), '\n')) {
    if (line.empty()) continue;
    nlohmann::json json = nlohmann::json::parse(line);
    for (const char* key :
         {"elapsed_ms", "tokens_per_s_per_device", "tflops_per_device", "memory_peak_bytes", "memory_reserved_bytes"})
      json.erase(key);
    lines.push_back(json.dump());
  }
  return lines;
}

std::vector<std::string> WorkerRun::state(std::int64_t iteration) const {
  const checkpoint::CheckpointReader reader(checkpoint::CheckpointRoot(checkpoints()).folder(iteration));
  for (const std::string& damage : find_damage(reader, [](std::int64_t, std::int64_t) {})) ADD_FAILURE() << damage;
  std::vector<std::string> lines;
  for (const checkpoint::GlobalTensor& tensor : reader.index().tensors)
    lines.push_back(fmt::format("{} {} {:08x}", tensor.kind, tensor.name, tensor.pieces.front().crc32c));
  nlohmann::ordered_json numbers = to_json(*reader.index().training);
  numbers["log_interval"].erase("seconds");
  lines.push_back(numbers.dump());
  return lines;
}

long WorkerRun::num_operations(const std::string& op) const {
  const std::string report = folder_ / "operations";
  fs::remove_all(checkpoints());
  fs::remove(report);
  const Ended ended = run(fmt::format("path={};op={};do=count;report={}", checkpoints().string(), op, report));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  return std::stol(read_file(report));
}

}  // namespace primus::faults
