#pragma once
// Documents packed into sequences, and their windows a second time: token by token.
#include <random>

#include "ops/compressor/windows.hpp"
#include "support/tensors.hpp"

namespace primus::test {

/// first_key_BS of documents of 1 … longest tokens.
inline Tensor random_documents(std::int64_t batch, std::int64_t sequence, std::int64_t longest,
                               std::mt19937_64& generator) {
  Tensor first = at::empty({batch, sequence}, at::kInt);
  auto* values = first.data_ptr<std::int32_t>();
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int64_t begin = 0;
    std::int64_t left = 0;
    for (std::int64_t s = 0; s < sequence; ++s, --left) {
      if (left == 0) {
        begin = s;
        left = std::uniform_int_distribution<std::int64_t>(1, longest)(generator);
      }
      values[b * sequence + s] = static_cast<std::int32_t>(begin);
    }
  }
  return first;
}

/// One entry: its document's first token, and its own.
struct Entry {
  std::int64_t document, token;
};

/// The entries of a sequence, in order.
inline std::vector<Entry> entries_of(const ops::Windowing& windowing, std::int64_t batch, std::int64_t sequence) {
  std::vector<Entry> entries;
  for (std::int64_t token = 0; token < sequence; ++token) {
    const auto document = [&](std::int64_t s) {
      return windowing.first_key_BS.defined() ? windowing.first_key_BS[batch][s].item<std::int64_t>() : 0;
    };
    const std::int64_t last = token + windowing.ratio - 1;
    if ((token - document(token)) % windowing.ratio != 0 || last >= sequence || document(last) != document(token)) {
      continue;
    }
    entries.push_back({document(token), token});
  }
  return entries;
}

/// Entries that queries do not see, bool [B, S, C].
inline Tensor hidden_entries(const ops::Windowing& windowing, std::int64_t batch, std::int64_t sequence) {
  Tensor hidden = at::full({batch, sequence, sequence / windowing.ratio}, true, at::kBool);
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::vector<Entry> entries = entries_of(windowing, b, sequence);
    for (std::int64_t s = 0; s < sequence; ++s) {
      const std::int64_t document =
          windowing.first_key_BS.defined() ? windowing.first_key_BS[b][s].item<std::int64_t>() : 0;
      for (std::size_t c = 0; c < entries.size(); ++c) {
        const bool is_seen = entries[c].document == document && entries[c].token + windowing.ratio - 1 <= s;
        if (is_seen) hidden[b][s][static_cast<std::int64_t>(c)] = false;
      }
    }
  }
  return hidden;
}

}  // namespace primus::test
