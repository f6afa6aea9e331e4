#pragma once
// Pipelines for programs: figures, and every box of every rank.
#include <nlohmann/json_fwd.hpp>

#include "view/pipeline_chart.hpp"

namespace primus::view {

/// {"title", "time_unit", "memory_unit", "charts": [{"name", ..., "ranks": [{..., "boxes": [...], "held": [...]}]}]}.
nlohmann::ordered_json pipeline_json(const PipelinePicture& picture);

/// The table of actions that a chart was simulated from: rank by rank, messages and all.
nlohmann::ordered_json actions_json(const schedule::Schedule& schedule);

}  // namespace primus::view
