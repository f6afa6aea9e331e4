#include "cli/records_csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/files.hpp"
#include "base/text.hpp"

namespace primus::cli {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::pair<std::string, std::string>>;

std::string cell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  return csv_field(value.get_ref<const std::string&>());
}

/// A list by layer becomes a column a layer and figure: expert_load_1_max_over_mean.
void add_by_layer(const std::string& name, const Json& list, Row& row) {
  for (const Json& entry : list) {
    if (!entry.is_object() || !entry.contains("layer")) continue;
    for (const auto& [key, value] : entry.items()) {
      if (key != "layer") row.emplace_back(fmt::format("{}_{}_{}", name, entry["layer"].dump(), key), cell(value));
    }
  }
}

Row row_of(const Json& record) {
  Row row;
  for (const auto& [key, value] : record.items()) {
    if (value.is_array()) {
      add_by_layer(key, value, row);
    } else if (!value.is_object()) {
      row.emplace_back(key, cell(value));
    }
  }
  return row;
}

std::vector<Row> rows_of(const std::filesystem::path& metrics) {
  std::vector<Row> rows;
  for (const std::string& line : split(read_file(metrics), '\n')) {
    // The last line of a run that was killed may be half a line.
    const Json record = Json::parse(line, nullptr, false);
    if (record.is_object()) rows.push_back(row_of(record));
  }
  return rows;
}

std::string csv_text(const std::vector<Row>& rows) {
  std::vector<std::string> columns;
  for (const Row& row : rows) {
    for (const auto& [column, value] : row) {
      if (std::ranges::find(columns, column) == columns.end()) columns.push_back(column);
    }
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    for (std::size_t i = 0; i < columns.size(); ++i) text += (i == 0 ? "" : ",") + cell_of(columns[i]);
    text += "\n";
  };
  add_line([](const std::string& column) { return column; });
  for (const Row& row : rows) {
    add_line([&](const std::string& column) {
      const auto found = std::ranges::find(row, column, &Row::value_type::first);
      return found == row.end() ? std::string() : found->second;
    });
  }
  return text;
}

}  // namespace

std::size_t write_records_csv(const std::filesystem::path& metrics, const std::filesystem::path& table) {
  const std::vector<Row> rows = rows_of(metrics);
  write_file(table, csv_text(rows));
  return rows.size();
}

}  // namespace primus::cli
