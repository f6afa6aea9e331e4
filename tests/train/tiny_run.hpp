#pragma once
// Runs of a tiny DeepSeek-V2 on a text that is made up, in a folder that goes away with the test.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "config/resolve.hpp"
#include "data/prepare.hpp"
#include "ops/allocator.hpp"
#include "train/interrupt.hpp"
#include "train/trainer.hpp"

namespace primus::train {

class TinyRun : public ::testing::Test {
 protected:
  void SetUp() override {
    ops::install_allocator();
    clear_interrupt();
    folder_ = std::filesystem::temp_directory_path() / fmt::format("primus_train_{}", ::getpid());
    std::filesystem::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) text << "the quick brown fox number " << i % 10 << " jumps over the lazy dog. ";
    text.close();
    prepare({(folder_ / "text.txt").string()}, (folder_ / "text").string());
  }
  static void prepare(const std::vector<std::string>& inputs, const std::string& prefix) {
    // Field by field: GCC 12 takes the fields that a list of initialisers leaves out for uninitialised.
    data::PrepareOptions options;
    options.inputs = inputs;
    options.output_prefix = prefix;
    data::prepare(options, {});
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    clear_interrupt();
  }

  /// Starts anew and saves nothing unless the overrides say so. `exp_name`: the run's folder.
  config::Experiment experiment(std::vector<std::string> overrides, const std::string& exp_name = "run") const {
    const std::filesystem::path file = folder_ / "experiment.yaml";
    std::ofstream out(file);
    out << "work_group: t\nuser_name: t\nexp_name: " << exp_name << "\nworkspace: " << folder_.string()
        << "\nmodules:\n  pre_trainer:\n    framework: megatron\n    config: pre_trainer.yaml\n"
           "    model: deepseek_v2_tiny.yaml\n    overrides:\n"
           "      num_layers: 2\n      moe_layer_freq: ([0]*1+[1]*1)\n      hidden_size: 32\n      ffn_hidden_size: "
           "48\n"
           "      num_attention_heads: 2\n      kv_lora_rank: 16\n      num_experts: 4\n      moe_ffn_hidden_size: 24\n"
           "      moe_shared_expert_intermediate_size: 24\n      seq_length: 32\n      max_position_embeddings: 32\n"
           "      micro_batch_size: 2\n      global_batch_size: 4\n      train_iters: 30\n      bf16: false\n"
           "      lr: 5.0e-3\n      min_lr: 5.0e-4\n      lr_warmup_iters: 3\n      init_method_std: 0.05\n"
           "      cross_entropy_loss_fusion: true\n      dataloader_type: cyclic\n      log_interval: 1\n"
           "      auto_continue_train: false\n      disable_last_saving: true\n"
           "      train_data_path: "
        << (folder_ / "text_text_document").string()
        << "\n      valid_data_path: " << (folder_ / "text_text_document").string()
        << "\n      eval_iters: 2\n      eval_interval: 10\n";
    out.close();
    return config::resolve({.file = file, .overrides = std::move(overrides), .purpose = config::Purpose::kTrain})
        .experiment;
  }

  /// Six steps, of which a profiler takes two.
  static std::vector<std::string> profiled_steps(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"--train_iters=6", "--profile=true", "--profile_step_start=2",
                                      "--profile_step_end=4"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::filesystem::path run_folder(const std::string& exp_name = "run") const { return folder_ / "t/t" / exp_name; }

  /// As run_experiment does, without its summary.
  RunSummary run(const config::Experiment& what) const {
    Trainer trainer(what);
    const bool goes_on = trainer.start().own_run == Start::OwnRun::kContinued;
    Reporter reporter(what.run_folder(), RunOptions::PerLayerLog::kNo, goes_on ? trainer.first_iteration() : 0);
    return trainer.run(reporter);
  }

  /// lm_loss and eval_loss of each line, as text: equal text is equal bits.
  std::vector<std::string> losses() const {
    std::vector<std::string> found;
    std::ifstream in(run_folder() / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const std::size_t at = line.find("_loss\":");
      found.push_back(line.substr(at, line.find(',', at) - at));
    }
    return found;
  }

  std::filesystem::path folder_;
};

}  // namespace primus::train
