#pragma once
// Inputs from outside, read as the commands read them: for the mutation tests and the fuzzer.
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/document_reader.hpp"
#include "data/indexed_dataset.hpp"
#include "data/tokenizers/make_tokenizer.hpp"

namespace primus::data {

enum class HostileKind { kIndex, kTokenizerJson, kJsonLine, kModel };
inline constexpr int kNumHostileKinds = 4;

/// Bytes of the .bin beside a hostile .idx.
inline constexpr std::size_t kBinBytes = 2 * 300;

/// A tokenizer that was accepted must also work.
inline void use(const Tokenizer& tokenizer) {
  std::vector<std::int64_t> ids;
  std::vector<TextRange> offsets;
  const std::string_view text = " the text, 12 é中\xFF \n<|end|>a  b";
  tokenizer.encode(text, ids);
  ids.clear();
  tokenizer.encode_with_offsets(text, ids, offsets);
  PRIMUS_CHECK(ids.size() == offsets.size());
  for (const TextRange& range : offsets) {
    PRIMUS_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= static_cast<std::int64_t>(text.size()),
                 "{}..{}", range.begin, range.end);
  }
  tokenizer.decode(ids);
}

/// Reads `content`; what is wrong with it must be a UserError, which is swallowed.
inline void read_hostile(HostileKind kind, std::string_view content, const std::string& folder) {
  try {
    switch (kind) {
      case HostileKind::kIndex: {
        write_file(folder + "/x.idx", content);
        const IndexedDataset dataset(folder + "/x");
        std::vector<std::int64_t> tokens;
        for (std::int64_t i = 0; i < dataset.num_sequences(); ++i) {
          tokens.resize(static_cast<std::size_t>(dataset.length(i)));
          dataset.read(i, 0, tokens);
        }
        break;
      }
      case HostileKind::kTokenizerJson:
        write_file(folder + "/tokenizer.json", content);
        use(*make_tokenizer({.type = "HuggingFaceTokenizer", .model = folder + "/tokenizer.json"}));
        break;
      case HostileKind::kJsonLine:
        json_member(content, "text", "x.jsonl", 1);
        break;
      case HostileKind::kModel:
        write_file(folder + "/x.model", content);
        use(*make_tokenizer({.type = "SentencePieceTokenizer", .model = folder + "/x.model"}));
        break;
    }
  } catch (const UserError&) {
  }
}

}  // namespace primus::data
