#pragma once
// What the mutation tests and the fuzzer both do with a text.
#include <string>
#include <string_view>
#include <variant>

#include "base/error.hpp"
#include "config/pipeline_layout.hpp"

namespace primus::config {

/// A text is a layout that writes itself back, or has a fault at one of its characters.
inline void check_layout(std::string_view text) {
  const auto result = parse_pipeline_layout(text);
  if (const auto* fault = std::get_if<LayoutFault>(&result)) {
    PRIMUS_CHECK(!fault->message.empty() && fault->position <= text.size());
    PRIMUS_CHECK(text_with_caret(text, fault->position).size() < 400);
    return;
  }
  const PipelineLayout& layout = std::get<PipelineLayout>(result);
  PRIMUS_CHECK(!layout.stages.empty());
  const auto again = parse_pipeline_layout(to_text(layout));
  PRIMUS_CHECK(std::holds_alternative<PipelineLayout>(again) && std::get<PipelineLayout>(again) == layout, "{}", text);
}

}  // namespace primus::config
