#include "model/stage_content.hpp"

namespace primus::model {

StageContent whole_model(const ModelSpec& spec) {
  return {.embedding = Part::kPresent,
          .first_layer = 0,
          .num_layers = static_cast<int>(spec.num_layers()),
          .num_mtp_layers = static_cast<int>(spec.num_mtp_layers),
          .output = Part::kPresent};
}

}  // namespace primus::model
