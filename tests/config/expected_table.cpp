#include "config/expected_table.hpp"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "base/text.hpp"
#include "config/layer_pattern.hpp"
#include "config/typing.hpp"

namespace primus::test {
namespace {

/// Without the quotes that YAML needs around some texts.
std::string unquoted(const std::string& text) {
  return text.size() >= 2 && text.front() == '"' && text.back() == '"' ? text.substr(1, text.size() - 2) : text;
}

config::Node node_of(const std::string& text) {
  config::Node node;
  node.text = text;
  if (text.starts_with('[') && text.ends_with(']') && text.find_first_of("*+") == std::string::npos) {
    node.kind = config::Node::Kind::kList;
    for (const std::string& item : split(text.substr(1, text.size() - 2), ',')) {
      if (!trim(item).empty()) node.items.push_back(node_of(std::string(trim(item))));
    }
  }
  return node;
}

}  // namespace

std::vector<TableRow> read_table(std::string_view name) {
  const std::filesystem::path path = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/config/data" / name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::vector<TableRow> rows;
  std::vector<std::string> columns;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> cells = split(line, '\t');
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    TableRow row;
    for (std::size_t i = 0; i < columns.size(); ++i) row[columns[i]] = i < cells.size() ? unquoted(cells[i]) : "";
    rows.push_back(std::move(row));
  }
  return rows;
}

std::map<std::string, std::vector<TableRow>> group_by(const std::vector<TableRow>& rows, const std::string& column) {
  std::map<std::string, std::vector<TableRow>> groups;
  for (const TableRow& row : rows) groups[row.at(column)].push_back(row);
  return groups;
}

std::string test_name(std::string_view text) {
  std::string name(text);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

config::Value expected_value(const config::Key& key, const std::string& text) {
  const auto typed = config::typed_value(node_of(text), key);
  if (const auto* fault = std::get_if<config::TypeFault>(&typed)) {
    throw std::runtime_error(std::string(key.name) + ": " + text + ": " + fault->message);
  }
  return std::get<config::Value>(typed);
}

bool means_the_same(const config::Key& key, const config::Value& a, const config::Value& b) {
  if (a == b) return true;
  if (key.type != config::KeyType::kLayers) return false;
  const auto* first = std::get_if<std::string>(&a.data);
  const auto* second = std::get_if<std::string>(&b.data);
  return first && second && config::parse_list_expression(*first).items == config::parse_list_expression(*second).items;
}

}  // namespace primus::test
