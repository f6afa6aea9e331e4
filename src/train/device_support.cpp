#include "train/device_support.hpp"

#include "config/parse.hpp"

namespace primus::train {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& found, const std::string& expected) {
  throw UserError(fmt::format("{}: {} trains on the CPU only in this release; on a GPU {}", key, found, expected),
                  ExitCode::kWrongInput);
}

/// Keys whose CUDA twin is not there for every value, with the one that a GPU knows.
struct Row {
  const char* key;
  const char* known;
};
constexpr Row kRows[] = {{"fp16", "false"},
                         {"rerun_mode", "disabled"},
                         {"hidden_dropout", "0.0"},
                         {"attention_dropout", "0.0"},
                         {"normalization", "RMSNorm"},
                         {"apply_layernorm_1p", "false"},
                         {"apply_residual_connection_post_layernorm", "false"},
                         {"fp32_residual_connection", "false"},
                         {"final_logit_softcapping", "null"},
                         {"use_mup", "false"},
                         {"logit_dtype", "null"},
                         {"qk_clip", "false"},
                         {"log_max_attention_logit", "false"},
                         {"lfm_layer_types", "null"},
                         {"linear_attention_freq", "null"},
                         {"model_type", "gpt"},
                         {"num_hash_layers", "0"},
                         {"hc_mult", "1"},
                         {"enable_mhc_connections", "false"},
                         {"moe_latent_size", "null"},
                         {"mtp_hsm", "false"},
                         {"mtp_detach_heads", "false"},
                         {"mtp_use_repeated_layer", "false"},
                         {"moe_router_bias_update_rule", "sign"},
                         {"swiglu_limit", "null"},
                         {"experimental_attention_variant", "null"},
                         {"mla_use_output_gate", "false"},
                         {"activation_situ_beta", "null"},
                         {"moe_mlp_glu_interleave_size", "null"},
                         {"moe_shared_expert_glu_interleave_size", "null"}};

}  // namespace

void require_device_support(const config::Experiment& experiment, at::Device device) {
  if (!device.is_cuda()) return;
  const std::string optimizer = experiment.get_string("optimizer");
  if (optimizer != "adam" && optimizer != "sgd" && optimizer != "lion") {
    refuse("optimizer", optimizer, "it is adam, sgd or lion");
  }
  for (const Row& row : kRows) {
    const config::Value& value = experiment.setting(row.key).value;
    if (value == config::parse_value(row.known)) continue;
    refuse(row.key, config::to_text(value), fmt::format("it is {}", row.known));
  }
}

}  // namespace primus::train
