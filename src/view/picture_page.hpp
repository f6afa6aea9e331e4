#pragma once
// Pictures and a table on one page, self-contained HTML.
#include <string>
#include <vector>

namespace primus::view {

struct PageTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  // the first column is text, the others are numbers
};

struct PicturePage {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts;  // label, text
  std::vector<std::string> pictures;                       // SVG texts
  PageTable table;
};

/// HTML without any reference to the network; dark and light.
std::string picture_page(const PicturePage& page);

}  // namespace primus::view
