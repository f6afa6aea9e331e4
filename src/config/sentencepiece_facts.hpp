#pragma once
// A sentencepiece model's protocol buffer, as far as a run needs it.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace primus::config {

struct SentencePieceFacts {
  std::int64_t num_pieces = 0;
  std::optional<std::int64_t> eos;
};

/// Throws ConfigError naming `path` if `content` is no model.
SentencePieceFacts read_sentencepiece_facts(std::string_view content, const std::string& path);

}  // namespace primus::config
