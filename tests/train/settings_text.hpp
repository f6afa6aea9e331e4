#pragma once
// Everything that a run does differently because of its experiment, as text: two experiments whose texts are equal
// train alike. A setting that a run reads only in some circumstances is left out in the others.
#include <string>

#include "config/experiment.hpp"

namespace primus::train {

std::string settings_text(const config::Experiment& experiment);

}  // namespace primus::train
