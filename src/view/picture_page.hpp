#pragma once
// Pictures and a table on one page, self-contained HTML.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace primus::view {

struct PageTable {
  std::string title;  // "": none
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  // the first column is text, the others are numbers
  std::size_t text_from = SIZE_MAX;            // columns from here on are text, too
};

struct PicturePage {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts;  // label, text
  std::vector<std::string> pictures;                       // SVG texts
  std::vector<PageTable> tables;
};

/// HTML without any reference to the network; dark and light.
std::string picture_page(const PicturePage& page);

}  // namespace primus::view
