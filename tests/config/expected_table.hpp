#pragma once
// Tables of expected values: tab-separated, a header line, one expectation a row. They were written from descriptions
// of the original, apart from the files that they are compared with, so that a comparison can fail.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/key_table.hpp"

namespace primus::test {

using TableRow = std::map<std::string, std::string>;  // column to cell; a missing cell is empty

/// Reads tests/config/data/`name`.
std::vector<TableRow> read_table(std::string_view name);

/// Rows of a table by one of its columns, in the order of the file.
std::map<std::string, std::vector<TableRow>> group_by(const std::vector<TableRow>& rows, const std::string& column);

/// A file's name as a test's name: letters, digits and underscores.
std::string test_name(std::string_view text);

/// A cell as a value of this key.
config::Value expected_value(const config::Key& key, const std::string& text);

/// Do they mean the same? Patterns of layers and text that holds lists are compared by what they expand to.
bool means_the_same(const config::Key& key, const config::Value& a, const config::Value& b);

}  // namespace primus::test
