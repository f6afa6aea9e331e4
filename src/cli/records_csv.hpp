#pragma once
// A run's records as a table for spreadsheets.
#include <cstddef>
#include <filesystem>

namespace primus::cli {

/// A row a record of metrics.jsonl, a column a figure, in the order in which they first appear; figures by layer get a
/// column a layer. Returns the number of rows. Throws UserError.
std::size_t write_records_csv(const std::filesystem::path& metrics, const std::filesystem::path& table);

}  // namespace primus::cli
