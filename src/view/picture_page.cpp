#include "view/picture_page.hpp"

#include <fmt/format.h>

#include <string_view>

#include "view/svg.hpp"

namespace primus::view {
namespace {

constexpr std::string_view kStyle = R"(
  :root { color-scheme: light dark; }
  body { font: 14px/1.45 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; margin: 24px auto; max-width: 1240px; padding: 0 16px; color: #1f2328; background: #ffffff; }
  h1 { font-size: 22px; margin: 0 0 12px; } h2 { font-size: 17px; margin: 26px 0 6px; }
  dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 0 0 18px; }
  dt { color: #59636e; } dd { margin: 0; }
  svg { max-width: 100%; height: auto; display: block; margin: 0 0 26px; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
  th, td { padding: 3px 9px; text-align: right; border-bottom: 1px solid #e3e6ea; white-space: nowrap; }
  .text { text-align: left; } th:first-child, td:first-child { padding-left: 0; }
  td:first-child { white-space: pre; }
  th { font-weight: 600; color: #59636e; white-space: normal; vertical-align: bottom; }
  @media (prefers-color-scheme: dark) {
    body { color: #e6edf3; background: #0d1117; } dt, th { color: #9da7b3; } th, td { border-color: #262c36; }
  }
)";

std::string cell_html(const char* element, const PageTable& table, std::size_t column, const std::string& text) {
  const char* place = column == 0 || column >= table.text_from ? " class=\"text\"" : "";
  return fmt::format("<{0}{1}>{2}</{0}>", element, place, escaped(text));
}

std::string table_html(const PageTable& table) {
  std::string html = table.title.empty() ? "" : fmt::format("<h2>{}</h2>\n", escaped(table.title));
  html += "<div class=\"wide\"><table>\n<tr>";
  for (std::size_t i = 0; i < table.head.size(); ++i) html += cell_html("th", table, i, table.head[i]);
  html += "</tr>\n";
  for (const std::vector<std::string>& row : table.rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) html += cell_html("td", table, i, row[i]);
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

}  // namespace

std::string picture_page(const PicturePage& page) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n"
      "<h1>{0}</h1>\n",
      escaped(page.title), kStyle);
  html += "<dl>\n";
  for (const auto& [label, text] : page.facts) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(label), escaped(text));
  }
  html += "</dl>\n";
  for (const std::string& picture : page.pictures) html += picture;
  for (const PageTable& table : page.tables) html += table_html(table);
  return html + "</body>\n</html>\n";
}

}  // namespace primus::view
