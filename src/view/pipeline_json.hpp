#pragma once
// Pipelines for programs: figures, every box of every rank, and the tables of actions. Written as text at once: a step
// of DeepSeek-V3 is 65,000 objects.
#include <span>
#include <string>

#include "view/pipeline_chart.hpp"

namespace primus::view {

/// {"ok", "title", "time_unit", "memory_unit", "planned", "charts": [{"name", ..., "ranks": [{..., "boxes": [...],
/// "held": [...]}], "actions": [[...]]}]}, a box and an action a line. `tables` are those that the charts were
/// simulated from, in their order; empty: files of a run. "planned" is left out where `planned` is "".
std::string pipeline_json(const PipelinePicture& picture, std::span<const schedule::Schedule> tables,
                          const std::string& planned);

}  // namespace primus::view
