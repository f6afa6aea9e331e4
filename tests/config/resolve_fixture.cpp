#include "config/resolve_fixture.hpp"

namespace primus::config {
namespace {

constexpr const char* kModelPreset = R"(num_layers: 2
hidden_size: 64
num_attention_heads: 4
position_embedding_type: rope
normalization: RMSNorm
norm_epsilon: 1e-6
hidden_dropout: 0.0
attention_dropout: 0.0
multi_latent_attention: true
qk_layernorm: true
num_experts: 8
moe_layer_freq: ([0]*1+[1]*1)
moe_router_topk: 2
moe_shared_expert_overlap: true
expert_model_parallel_size: 4
tokenizer_type: ByteTokenizer
moe_shared_expert_intermediate_size: 32
)";

constexpr const char* kModulePreset = R"(train_iters: 1000
lr: 2e-5
lr_warmup_iters: 40
eval_iters: 0
seq_length: 128
global_batch_size: 16
num_layers: 7
)";

std::string without(std::string text, const std::string& part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part)) text.erase(at, part.size());
  return text;
}

}  // namespace

ResolveFixture::ResolveFixture() : presets_("PRIMUS_CONFIG_DIR", folder_.path().string()) {
  folder_.write("models/megatron/tiny.yaml", kModelPreset);
  folder_.write("modules/megatron/plain.yaml", kModulePreset);
  write_overrides("mock_data: true\n");
}

std::string ResolveFixture::experiment_with(const std::string& lines) {
  std::string text =
      "work_group: lab\nuser_name: ann\nexp_name: run\nworkspace: ./out\nmodules:\n  pre_trainer:\n"
      "    framework: megatron\n    config: plain.yaml\n    model: tiny.yaml\n    overrides:\n";
  std::string line;
  for (const char c : lines) {
    if (line.empty()) text += "      ";
    line += c;
    text += c;
    if (c == '\n') line.clear();
  }
  return text;
}

Resolution ResolveFixture::resolve(const std::vector<std::string>& overrides, Purpose purpose,
                                   std::int64_t world_size) const {
  ResolveRequest request{file_, overrides, purpose, {}};
  if (world_size > 0) request.world = WorldSize{world_size, "--nproc"};
  return config::resolve(request);
}

std::string ResolveFixture::problems(const std::vector<std::string>& overrides, Purpose purpose,
                                     std::int64_t world_size) const {
  try {
    resolve(overrides, purpose, world_size);
  } catch (const ConfigError& error) {
    std::string text;
    for (const Problem& problem : error.problems()) text += to_text(problem) + "\n";
    return without(text, folder_.path().string() + "/");
  }
  return "";
}

std::string ResolveFixture::notes(const Resolution& resolution) {
  std::string text;
  for (const Note& note : resolution.notes) text += note.key + ": " + note.text + "\n";
  return text;
}

}  // namespace primus::config
