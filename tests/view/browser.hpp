#pragma once
// Pages in a real browser. Needs Debian's package chromium; tests are skipped where it is missing.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <regex>
#include <string>

#include "config/test_folder.hpp"

namespace primus::test {

inline std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), n);
  pclose(pipe);
  return text;
}

inline constexpr const char* kDarkTheme = "--blink-settings=preferredColorScheme=0";

class BrowserTest : public testing::Test {
 protected:
  void SetUp() override {
    if (output_of("command -v chromium").empty()) GTEST_SKIP() << "there is no chromium (Debian: chromium)";
  }

  /// The document of a page once its scripts have run; `script` is added at its end.
  std::string document_of_page(std::string page, const std::string& script, const std::string& options = "") {
    page.insert(page.rfind("</body>"), "<script>" + script + "</script>");
    const std::string file = folder_.write("page.html", page);
    return output_of(
        "timeout 100 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=" +
        (folder_.path() / "profile").string() + " --window-size=1400,1000 " + options + " --dump-dom file://" + file +
        " 2>/dev/null");
  }

  /// What a script has written as `document.body.dataset.name`.
  static std::string attribute(const std::string& document, const std::string& name) {
    std::smatch match;
    return std::regex_search(document, match, std::regex("<body[^>]*data-" + name + "=\"([^\"]*)\"")) ? match[1].str()
                                                                                                      : "none";
  }

 private:
  TestFolder folder_;
};

}  // namespace primus::test
