#pragma once
// Which part of the model one pipeline stage holds.
#include "model/model_spec.hpp"

namespace primus::model {

/// Layers first_layer to first_layer + num_layers - 1 of the decoder, and what stands before and behind them there.
struct StageContent {
  Part embedding = Part::kAbsent;
  int first_layer = 0;
  int num_layers = 0;
  int num_mtp_layers = 0;       // prediction depths: all of them, or none
  Part output = Part::kAbsent;  // final norm, output layer, loss

  bool operator==(const StageContent&) const = default;
};

/// The one stage of a model that is not cut.
StageContent whole_model(const ModelSpec& spec);

}  // namespace primus::model
