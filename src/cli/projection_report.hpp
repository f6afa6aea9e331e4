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

/// The stage on which a global rank stands.
const projection::RankMemory& stage_of(const Projected& projected, std::int64_t rank);

/// What is told in detail: the rank that was asked for, or the largest.
const projection::RankMemory& chosen(const Projected& projected, const ReportRequest& request);

/// "largest: pipeline rank 0", or where the rank that was asked for stands in every group.
std::string rank_title(const Projected& projected, const ReportRequest& request);

/// "fits: 182.6 of 288.0 GiB on MI355X, 105.4 GiB left".
std::string verdict(std::int64_t total, const projection::Hardware& device);

std::string memory_text(const Projected& projected, const ReportRequest& request);
Json memory_json(const Projected& projected, const ReportRequest& request);
std::string memory_csv(const Projected& projected, const ReportRequest& request);

/// A category's name in JSON and CSV: "made_again".
std::string category_name(projection::Category category);

/// The same as one page, with its pictures.
std::string memory_report_page(const Projected& projected, const ReportRequest& request);

/// One pipeline rank for programs: bytes by category, by component and by kind of activation.
Json rank_json(const projection::RankMemory& rank);

}  // namespace primus::cli
