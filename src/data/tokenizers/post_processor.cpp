#include "data/tokenizers/post_processor.hpp"

namespace primus::data {
namespace {

std::vector<std::int64_t> ids_of(const JsonPart& special_tokens, const JsonPart& name) {
  std::vector<std::int64_t> ids;
  for (const JsonPart& id : special_tokens.at(name.text()).at("ids").items()) ids.push_back(id.integer());
  return ids;
}

TokensAround read_template(const JsonPart& part) {
  part.has_only({"type", "single", "pair", "special_tokens"});
  TokensAround around;
  enum class Side { kBefore, kBehind } side = Side::kBefore;
  for (const JsonPart& item : part.at("single").items()) {
    item.has_only({"SpecialToken", "Sequence"});
    if (!item.maybe("Sequence").is_null()) {
      if (side == Side::kBehind) item.fail("names the text a second time");
      side = Side::kBehind;
      continue;
    }
    const auto ids = ids_of(part.at("special_tokens"), item.at("SpecialToken").at("id"));
    auto& target = side == Side::kBefore ? around.before : around.behind;
    target.insert(target.end(), ids.begin(), ids.end());
  }
  if (side == Side::kBefore) part.at("single").fail("does not name the text");
  return around;
}

}  // namespace

TokensAround read_post_processor(const JsonPart& part) {
  if (part.is_null()) return {};
  const JsonPart type = part.at("type");
  const std::string& name = type.text();
  if (name == "ByteLevel") {  // trims offsets, which are whole here
    part.has_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return {};
  }
  if (name == "TemplateProcessing") return read_template(part);
  if (name == "Sequence") {
    part.has_only({"type", "processors"});
    TokensAround around;
    for (const JsonPart& step : part.at("processors").items()) {
      if (step.is_null()) step.fail("is no post-processor");
      const TokensAround next = read_post_processor(step);
      around.before.insert(around.before.begin(), next.before.begin(), next.before.end());
      around.behind.insert(around.behind.end(), next.behind.begin(), next.behind.end());
    }
    return around;
  }
  type.fail("is a post-processor that is not understood", "ByteLevel, TemplateProcessing or Sequence");
}

}  // namespace primus::data
