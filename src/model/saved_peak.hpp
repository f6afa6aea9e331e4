#pragma once
// The most that saved tensors take at one time, from the declarations: what forward holds before it drops, and what
// backward makes again beside what it has not read yet.
#include "model/saved_tensors.hpp"

namespace primus::model {

enum class Pass { kForward, kBackward };

/// Largest sum of saved bytes of one micro-batch within a pass. `stage`: model_saved or stage_saved, marked or not.
std::int64_t saved_peak(const SavedDeclaration& stage, Pass pass);

}  // namespace primus::model
