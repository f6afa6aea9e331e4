#include "train/device_support.hpp"

namespace primus::train {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& found, const std::string& expected) {
  throw UserError(fmt::format("{}: {} trains on the CPU only in this release; on a GPU {}", key, found, expected),
                  ExitCode::kWrongInput);
}

}  // namespace

void require_device_support(const config::Experiment& experiment, at::Device device) {
  if (!device.is_cuda()) return;
  for (const char* key : {"fp16", "grad_reduce_in_bf16"}) {
    if (experiment.get_bool(key)) refuse(key, "true", "it is false");
  }
  if (const std::string optimizer = experiment.get_string("optimizer"); optimizer != "adam") {
    refuse("optimizer", optimizer, "it is adam");
  }
  if (!experiment.get_bool("use_precision_aware_optimizer")) return;
  for (const char* key : {"main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"}) {
    if (const std::string type = experiment.get_string(key); type != "fp32") refuse(key, type, "it is fp32");
  }
}

}  // namespace primus::train
