#pragma once
// One pass of a stored model over given tokens: logits, loss and gradients for a comparison with another system.
#include <string>

#include "base/dtype.hpp"
#include "ops/device.hpp"

namespace primus::train {

enum class Gradients { kNo, kYes };

struct LogitsRequest {
  std::string model;   // a checkpoint of ours, or a Hugging Face folder
  std::string tokens;  // safetensors with input_ids [B, S] and, perhaps, labels [B, S]
  std::string out;
  Gradients gradients = Gradients::kNo;
  DType dtype = DType::kFloat32;  // what the pass is computed in: fp32, bf16 or fp64
  ops::DeviceChoice device = ops::DeviceChoice::kAuto;
};

/// Writes logits [B, S, V], loss (the mean over predicted tokens, each predicting the next one's label; -100 does not
/// count) and, if asked, the gradient of that mean of every parameter under its Hugging Face name. Throws ConfigError
/// and UserError.
void run_logits(const LogitsRequest& request);

}  // namespace primus::train
