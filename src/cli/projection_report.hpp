#pragma once
// A memory projection as text, JSON or CSV.
#include <optional>
#include <string>

#include "cli/messages.hpp"
#include "cli/projection_common.hpp"

namespace primus::cli {

struct ReportRequest {
  std::optional<std::int64_t> rank;  // global; none: the largest is told in detail
  bool all_ranks = false;            // one row a rank instead of one a stage
  std::optional<projection::Hardware> device;
};

std::string memory_text(const Projected& projected, const ReportRequest& request);
Json memory_json(const Projected& projected, const ReportRequest& request);
std::string memory_csv(const Projected& projected, const ReportRequest& request);

/// One pipeline rank for programs: bytes by category, by component and by kind of activation.
Json rank_json(const projection::RankMemory& rank);

}  // namespace primus::cli
