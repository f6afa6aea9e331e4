#include "view/picture_page.hpp"

#include <fmt/format.h>

#include <string_view>

#include "view/svg.hpp"

namespace primus::view {
namespace {

constexpr std::string_view kStyle = R"(
  :root { color-scheme: light dark; }
  body { font: 14px/1.45 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; margin: 24px auto; max-width: 1120px; padding: 0 16px; color: #1f2328; background: #ffffff; }
  h1 { font-size: 22px; margin: 0 0 12px; }
  dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 0 0 18px; }
  dt { color: #59636e; } dd { margin: 0; }
  svg { max-width: 100%; height: auto; display: block; margin: 0 0 26px; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
  th, td { padding: 3px 12px; text-align: right; border-bottom: 1px solid #e3e6ea; white-space: nowrap; }
  th:first-child, td:first-child { text-align: left; padding-left: 0; }
  th { font-weight: 600; color: #59636e; }
  @media (prefers-color-scheme: dark) {
    body { color: #e6edf3; background: #0d1117; } dt, th { color: #9da7b3; } th, td { border-color: #262c36; }
  }
)";

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
  html += "<div class=\"wide\"><table>\n<tr>";
  for (const std::string& cell : page.table.head) html += fmt::format("<th>{}</th>", escaped(cell));
  html += "</tr>\n";
  for (const std::vector<std::string>& row : page.table.rows) {
    html += "<tr>";
    for (const std::string& cell : row) html += fmt::format("<td>{}</td>", escaped(cell));
    html += "</tr>\n";
  }
  return html + "</table></div>\n</body>\n</html>\n";
}

}  // namespace primus::view
