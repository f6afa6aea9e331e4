#pragma once
// The kernel of stored_update on raw pointers; no torch headers.
#include "base/dtype.hpp"
#include "ops/adamw/step_factors.hpp"
#include "ops/state/state_code.hpp"

namespace primus::ops::cuda {

/// State of one kind; values == nullptr: the rule has none.
struct Stored {
  void* values = nullptr;
  float* scale = nullptr;  // where the type has scales
  DType type = DType::kFloat32;
  StateForm form = StateForm::kPlain;
};

/// How an update finds its master: beside a weight, in the weight and its low half, or the fp32 weight itself.
enum class MasterPlace { kCopy, kHalves, kWeight };

struct StoredUpdate {
  UpdateRule rule;
  const void* gradient;  // fp32 or bf16
  DType gradient_type;
  void* weight;  // fp32 or bf16
  DType weight_type;
  MasterPlace place;
  std::uint16_t* low;  // kHalves
  Stored master;       // kCopy
  Stored first_moment;
  Stored second_moment;
  std::uint64_t key;
};

/// state_block: elements that share a scale (model::kStateBlock); the kernel is made for 128.
void launch_stored_update(const UpdateConstants& constants, const Gate& gate, std::int64_t count, int state_block,
                          const StoredUpdate& update, gpu::Stream stream);

}  // namespace primus::ops::cuda
