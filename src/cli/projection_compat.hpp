#pragma once
// `--accounting primus` and `--accounting blog`: other people's ways of counting, as their numbers were made.
#include <optional>
#include <string>
#include <vector>

#include "cli/messages.hpp"
#include "cli/projection_common.hpp"

namespace primus::cli {

using Device = std::optional<projection::Hardware>;

/// A number of one layout: its title for people, its name for programs.
struct Figure {
  std::string title;
  std::string field;
  double value = 0.0;  // whole bytes, or a number as it is
  std::string text;
};

/// The first rank as the deep-dive's figures stack it; the last figure is the total.
std::vector<Figure> blog_figures(const Projected& projected);

/// The largest pipeline rank as the original's tool counts it; the last figure is the total.
std::vector<Figure> primus_figures(const Projected& projected);

std::string primus_text(const Projected& projected, const Device& device);
Json primus_json(const Projected& projected, const Device& device);
std::string blog_text(const Projected& projected, const Device& device);
Json blog_json(const Projected& projected, const Device& device);

}  // namespace primus::cli
