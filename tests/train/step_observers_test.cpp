// What single steps dump and what the routing trace says: true to the step, complete, and without a trace in the step
// itself.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/text.hpp"
#include "checkpoint/safetensors.hpp"
#include "support/tensors.hpp"
#include "train/tiny_run.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using test::relative_error;
using Json = nlohmann::json;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

std::map<std::string, Tensor> tensors_of(const fs::path& path) {
  const checkpoint::SafetensorsFile file(path.string());
  std::map<std::string, Tensor> found;
  for (const checkpoint::StoredTensor& stored : file.tensors()) {
    Tensor values = at::empty(stored.shape, ops::to_aten(stored.type->dtype.value()));
    file.read(stored, 0, {static_cast<std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())});
    found.emplace(stored.name, values);
  }
  return found;
}

std::vector<Json> lines_of(const fs::path& path) {
  std::vector<Json> lines;
  for (const std::string& line : split(read_file(path), '\n')) {
    if (!line.empty()) lines.push_back(Json::parse(line));
  }
  return lines;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

class StepObserversTest : public TinyRun {
 protected:
  fs::path dumps() const { return folder_ / "saved"; }
  fs::path trace() const { return folder_ / "trace"; }

  std::vector<std::string> words(std::vector<std::string> more) const {
    std::vector<std::string> all = {"--train_iters=4", "--eval_iters=0", "--save=" + dumps().string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> dumping(std::vector<std::string> more = {}) const {
    std::vector<std::string> all =
        words({"--save_activations_interval=2", "--save_dgrads_interval=2", "--save_wgrads_interval=2",
               "--save_params_interval=1", "--save_tokens_per_expert_interval=2"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> tracing(std::vector<std::string> more = {}) const {
    std::vector<std::string> all = words({"--moe_routing_trace_path=" + trace().string()});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(StepObserversTest, DumpsAreWrittenAtTheirIntervals) {
  run(experiment(dumping()));
  for (const char* folder : {"activations", "dgrads", "wgrads"}) {
    EXPECT_THAT(names_in(dumps() / folder),
                UnorderedElementsAre("iter_0000002.safetensors", "iter_0000004.safetensors"))
        << folder;
  }
  EXPECT_EQ(names_in(dumps() / "params").size(), 4U);
  EXPECT_THAT(names_in(dumps() / "tokens_per_expert"),
              UnorderedElementsAre("iter_0000002.jsonl", "iter_0000004.jsonl"));
}

TEST_F(StepObserversTest, DumpedTensorsAreThoseOfTheStep) {
  run(experiment(dumping()));
  const auto activations = tensors_of(dumps() / "activations/iter_0000002.safetensors");
  const auto gradients = tensors_of(dumps() / "dgrads/iter_0000002.safetensors");
  const auto weights = tensors_of(dumps() / "params/iter_0000001.safetensors");  // as step 2 finds them
  std::vector<std::string> names;
  for (const auto& [name, values] : activations) {
    names.push_back(name);
    ASSERT_TRUE(gradients.contains(name)) << name;
    EXPECT_EQ(gradients.at(name).sizes(), values.sizes());
  }
  EXPECT_EQ(names.size(), 2U * 2U * 2U * 3U) << "micro-batches, layers, halves, ends";
  for (const char* micro_batch : {"micro_batch.0.", "micro_batch.1."}) {
    const auto of = [&](const auto& dump, const std::string& name) { return dump.at(micro_batch + name); };
    EXPECT_TRUE(
        of(activations, "decoder.layers.0.mlp.output").equal(of(activations, "decoder.layers.1.self_attention.input")));
    EXPECT_TRUE(
        of(gradients, "decoder.layers.0.mlp.output").equal(of(gradients, "decoder.layers.1.self_attention.input")));
    for (const std::string layer : {"decoder.layers.0.", "decoder.layers.1."}) {
      for (const auto& [half, norm] :
           {std::pair<std::string, std::string>{"self_attention", "input_layernorm"}, {"mlp", "pre_mlp_layernorm"}}) {
        // The half's norm once more, through autograd.
        const Tensor input = of(activations, layer + half + ".input").to(at::kDouble).requires_grad_();
        const Tensor weight = weights.at(layer + norm + ".weight").to(at::kDouble);
        const Tensor normed = input * (input.pow(2).mean(-1, true) + 1e-6).rsqrt() * weight;
        EXPECT_LT(relative_error(of(activations, layer + half + ".normed"), normed.detach()), 1e-5);
        normed.backward(of(gradients, layer + half + ".normed").to(at::kDouble));
        EXPECT_LT(relative_error(of(gradients, layer + half + ".input"),
                                 input.grad() + of(gradients, layer + half + ".output").to(at::kDouble)),
                  1e-5)
            << layer << half;
      }
    }
  }
}

TEST_F(StepObserversTest, WeightGradientsHaveTheLoggedNormAndParametersAreTheCheckpoints) {
  run(experiment(dumping({"--save_interval=4", "--clip_grad=0.01"})));
  double square_sum = 0.0;
  for (const auto& [name, values] : tensors_of(dumps() / "wgrads/iter_0000004.safetensors")) {
    square_sum += values.to(at::kDouble).pow(2).sum().item<double>();
  }
  const std::vector<Json> records = lines_of(run_folder() / "metrics.jsonl");
  ASSERT_EQ(records.size(), 4U);
  const double logged = records.back().at("grad_norm").get<double>();
  EXPECT_GT(logged, 0.01);
  EXPECT_NEAR(std::sqrt(square_sum), logged, 1e-5 * logged);
  for (const auto& [name, values] : tensors_of(dumps() / "params/iter_0000004.safetensors")) {
    bool is_found = false;
    for (const auto& entry : fs::recursive_directory_iterator(dumps() / "iter_0000004")) {
      if (entry.path().extension() != ".safetensors") continue;
      for (const auto& [stored, saved] : tensors_of(entry.path())) {
        if (stored.find(name) == std::string::npos || saved.sizes() != values.sizes()) continue;
        is_found = is_found || saved.equal(values);
      }
    }
    EXPECT_TRUE(is_found) << name;
  }
}

TEST_F(StepObserversTest, LoadsAndTraceCountTheSameTokens) {
  run(experiment(dumping({"--moe_routing_trace_path=" + trace().string()})));
  const std::vector<Json> routed = lines_of(trace() / "router_trace_rank0.jsonl");
  ASSERT_EQ(routed.size(), 4U * 2U) << "steps and micro-batches of one MoE layer";
  const std::vector<Json> loads = lines_of(dumps() / "tokens_per_expert/iter_0000004.jsonl");
  ASSERT_EQ(loads.size(), 1U);
  EXPECT_EQ(loads[0].at("layer"), 1);
  for (std::size_t m = 0; m < 2; ++m) {
    const Json& line = routed[3 * 2 + m];
    EXPECT_EQ(line.at("step"), 3);
    EXPECT_EQ(line.at("micro_batch"), m);
    EXPECT_EQ(line.at("block"), "decoder");
    EXPECT_EQ(line.at("layer"), 1);
    std::vector<std::int64_t> counted(4, 0);
    for (const Json& token : line.at("top_indices")) {
      std::set<int> experts;
      for (const Json& expert : token) {
        ++counted.at(expert.get<std::size_t>());
        experts.insert(expert.get<int>());
      }
      EXPECT_EQ(experts.size(), line.at("topk").get<std::size_t>());
    }
    EXPECT_EQ(loads[0].at("tpe").at(m).get<std::vector<std::int64_t>>(), counted);
  }
}

TEST_F(StepObserversTest, TracedLogitsComeFromTracedInputsAndLeadToTheChoices) {
  run(experiment(tracing({"--moe_routing_trace_capture_logits=true", "--moe_routing_trace_capture_hidden_states=true",
                          "--moe_routing_trace_dump_weights=true", "--moe_routing_trace_max_training_iters=2"})));
  const std::vector<Json> lines = lines_of(trace() / "router_trace_rank0.jsonl");
  ASSERT_EQ(lines.size(), 2U * 2U);
  const std::string logits_file = read_file(trace() / "logits_rank0.bin");
  const std::string inputs_file = read_file(trace() / "hidden_states_rank0.bin");
  const auto values = [](const std::string& file, const Json& line, const std::string& name) {
    std::string bytes = file.substr(line.at(name + "_offset"), line.at(name + "_bytes"));
    return at::from_blob(bytes.data(), line.at(name + "_shape").get<std::vector<std::int64_t>>(), at::kBFloat16)
        .to(at::kDouble);
  };
  const Tensor weight =
      tensors_of(trace() / "router_state_rank0.safetensors").at("decoder.layers.1.mlp.router.weight").to(at::kDouble);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Tensor logits = values(logits_file, lines[i], "logit");
    const Tensor inputs = values(inputs_file, lines[i], "hs");
    // The weights are those of the first step; later they have moved.
    if (i < 2) {
      EXPECT_LT(relative_error(logits, inputs.matmul(weight.t())), 0.02) << i;
    }
    const auto top_k = lines[i].at("topk").get<std::int64_t>();
    std::int64_t num_same = 0;
    for (std::int64_t t = 0; t < logits.size(0); ++t) {
      const Tensor best = std::get<1>(logits[t].topk(top_k));
      std::set<std::int64_t> expected;
      for (std::int64_t k = 0; k < top_k; ++k) expected.insert(best[k].item<std::int64_t>());
      std::set<std::int64_t> chosen;
      for (const Json& expert : lines[i].at("top_indices").at(static_cast<std::size_t>(t)))
        chosen.insert(expert.get<std::int64_t>());
      num_same += expected == chosen ? 1 : 0;
    }
    // bf16 logits may tie where the step's own do not.
    EXPECT_GE(num_same, logits.size(0) * 9 / 10) << i;
  }
  EXPECT_EQ(std::ssize(logits_file),
            lines.back().at("logit_offset").get<std::int64_t>() + lines.back().at("logit_bytes").get<std::int64_t>());
}

TEST_F(StepObserversTest, LookingChangesNothing) {
  run(experiment(words({})));
  const std::vector<std::string> plain = losses();
  run(experiment(dumping({"--moe_routing_trace_path=" + trace().string()})));
  EXPECT_EQ(losses(), plain);
  run(experiment(dumping({"--recompute_granularity=full", "--recompute_method=uniform", "--recompute_num_layers=1"})));
  EXPECT_EQ(losses(), plain);
}

TEST_F(StepObserversTest, RecomputedPassesAreNotSeenTwice) {
  run(experiment(dumping()));
  const auto expected = tensors_of(dumps() / "dgrads/iter_0000004.safetensors");
  run(experiment(dumping({"--recompute_granularity=full", "--recompute_method=uniform", "--recompute_num_layers=1",
                          "--moe_routing_trace_path=" + trace().string()})));
  const auto again = tensors_of(dumps() / "dgrads/iter_0000004.safetensors");
  ASSERT_EQ(again.size(), expected.size());
  for (const auto& [name, values] : expected) EXPECT_TRUE(again.at(name).equal(values)) << name;
  EXPECT_EQ(lines_of(trace() / "router_trace_rank0.jsonl").size(), 4U * 2U);
}

TEST_F(StepObserversTest, AStepThatIsComputedTwiceIsWrittenOnce) {
  run(experiment(dumping({"--rerun_mode=report_stats", "--moe_routing_trace_path=" + trace().string()})));
  EXPECT_EQ(lines_of(trace() / "router_trace_rank0.jsonl").size(), 4U * 2U);
  EXPECT_EQ(lines_of(dumps() / "tokens_per_expert/iter_0000004.jsonl").at(0).at("tpe").size(), 2U);
}

TEST_F(StepObserversTest, ARunThatGoesOnContinuesTheTrace) {
  const std::vector<std::string> capturing = {"--train_iters=4", "--eval_iters=0",
                                              "--moe_routing_trace_path=" + trace().string(),
                                              "--moe_routing_trace_capture_logits=true"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), capturing.begin(), capturing.end());
    return more;
  };
  run(experiment(with({"--save=" + dumps().string(), "--save_interval=1"})));
  const std::string lines = read_file(trace() / "router_trace_rank0.jsonl");
  const std::string logits = read_file(trace() / "logits_rank0.bin");
  // Again from step 2, as if the process had ended in step 4: what stands there of later steps is dropped.
  run(experiment(with({"--load=" + dumps().string(), "--ckpt_step=2", "--finetune=false"}), "second"));
  EXPECT_TRUE(read_file(trace() / "router_trace_rank0.jsonl") == lines);
  EXPECT_TRUE(read_file(trace() / "logits_rank0.bin") == logits);
}

TEST_F(StepObserversTest, DepthsAreNamedAsSuch) {
  run(experiment(tracing({"--mtp_num_layers=1"})));
  const std::vector<Json> lines = lines_of(trace() / "router_trace_rank0.jsonl");
  ASSERT_EQ(lines.size(), 4U * 2U * 2U);
  EXPECT_EQ(lines[1].at("block"), "mtp");
  EXPECT_EQ(lines[1].at("mtp_idx"), 0);
  EXPECT_FALSE(lines[0].contains("mtp_idx"));
}

TEST_F(StepObserversTest, AFolderThatCannotBeWrittenDoesNotEndTheRun) {
  fs::create_directories(dumps());
  write_file(dumps() / "wgrads", "a file");
  EXPECT_EQ(run(experiment(dumping())).num_iterations, 4);
  EXPECT_NE(read_file(run_folder() / "log.txt").find("wgrads"), std::string::npos);
  EXPECT_EQ(names_in(dumps() / "activations").size(), 2U);
}

}  // namespace
}  // namespace primus::train
