#pragma once
// `projection compare`: the rows of its table as text, JSON, CSV and a page, in each accounting.
#include <optional>
#include <string>
#include <vector>

#include "cli/messages.hpp"
#include "cli/projection_common.hpp"

namespace primus::cli {

/// One layout: its projection, or why it is none.
struct CompareRow {
  std::string label;
  std::optional<Projected> projected;
  std::string refusal;
};

/// The rows with what they are judged by.
struct Comparison {
  std::vector<CompareRow> rows;
  std::optional<projection::Hardware> device;
  std::string accounting = "ours";
};

std::string compare_text(const Comparison& comparison);
Json compare_json(const Comparison& comparison);
std::string compare_csv(const Comparison& comparison);

/// A self-contained page: the table, and in our accounting a bar a layout.
std::string compare_page(const Comparison& comparison);

}  // namespace primus::cli
