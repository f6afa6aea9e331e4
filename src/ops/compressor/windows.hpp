#pragma once
// Windows of neighbouring tokens whose keys become one entry each. A document begins its own windows, and what is left
// at its end of fewer tokens than a window becomes no entry. Legend: B batch, S sequence, R tokens of a window, C =
// S / R, the most entries that a sequence has.
#include <vector>

#include "ops/dtype.hpp"

namespace primus::ops {

/// `first_key_BS` (int32): the first token of each token's document, never falling; undefined: sequences are whole.
struct Windowing {
  std::int64_t ratio = 1;  // R
  Tensor first_key_BS = {};
};

/// Where the windows of a micro-batch lie.
class Windows {
 public:
  Windows(const Windowing& windowing, std::int64_t batch, std::int64_t sequence)
      : ratio_(windowing.ratio), sequence_(sequence), batch_stride_(windowing.first_key_BS.defined() ? 1 : 0) {
    PRIMUS_CHECK(ratio_ >= 1, "windows of {} tokens", ratio_);
    const std::int64_t rows = batch_stride_ == 0 ? 1 : batch;
    const std::int32_t* documents = batch_stride_ == 0 ? nullptr : checked(windowing.first_key_BS, batch, sequence);
    rows_.resize(static_cast<std::size_t>(rows));
    for (std::int64_t row = 0; row < rows; ++row) {
      fill(documents == nullptr ? nullptr : documents + row * sequence, rows_[static_cast<std::size_t>(row)]);
    }
  }

  std::int64_t ratio() const { return ratio_; }
  /// Entries that tensors have room for, and how many of a sequence's there are.
  std::int64_t capacity() const { return sequence_ / ratio_; }
  std::int64_t num_entries(std::int64_t batch) const { return std::ssize(row(batch).first_token); }
  /// First token of an entry's window.
  std::int64_t first_token(std::int64_t batch, std::int64_t entry) const {
    return row(batch).first_token[static_cast<std::size_t>(entry)];
  }
  /// Is the entry before it of the same document, so that its window lies right before?
  bool has_previous(std::int64_t batch, std::int64_t entry) const {
    return entry > 0 && row(batch).document[static_cast<std::size_t>(entry)] ==
                            row(batch).document[static_cast<std::size_t>(entry - 1)];
  }
  /// A query sees entries begin … end − 1: those of its document whose windows end with it or before. Neither falls
  /// along the sequence.
  std::int64_t begin(std::int64_t batch, std::int64_t query) const {
    return row(batch).begin[static_cast<std::size_t>(query)];
  }
  std::int64_t end(std::int64_t batch, std::int64_t query) const {
    return row(batch).end[static_cast<std::size_t>(query)];
  }

 private:
  struct Row {
    std::vector<std::int32_t> first_token, document;  // by entry
    std::vector<std::int32_t> begin, end;             // by query
  };

  const Row& row(std::int64_t batch) const { return rows_[static_cast<std::size_t>(batch * batch_stride_)]; }

  static const std::int32_t* checked(const Tensor& first_key_BS, std::int64_t batch, std::int64_t sequence) {
    PRIMUS_CHECK(first_key_BS.dim() == 2 && first_key_BS.size(0) == batch && first_key_BS.size(1) == sequence &&
                     first_key_BS.is_contiguous() && first_key_BS.scalar_type() == at::kInt,
                 "windows: shape or type of first_key");
    return first_key_BS.const_data_ptr<std::int32_t>();
  }

  void fill(const std::int32_t* documents, Row& row) const {
    std::int32_t document = 0;
    std::int32_t of_document = 0;  // its first entry
    for (std::int32_t token = 0; token < sequence_; ++token) {
      const std::int32_t first = documents == nullptr ? 0 : documents[token];
      PRIMUS_CHECK(first == document || first == token, "windows: token {} sees tokens from {} on", token, first);
      if (first != document) {
        document = first;
        of_document = static_cast<std::int32_t>(row.first_token.size());
      }
      const std::int64_t place = token - document;
      if ((place + 1) % ratio_ == 0) {
        row.first_token.push_back(static_cast<std::int32_t>(token + 1 - ratio_));
        row.document.push_back(document);
      }
      row.begin.push_back(of_document);
      row.end.push_back(static_cast<std::int32_t>(row.first_token.size()));
    }
  }

  std::int64_t ratio_, sequence_, batch_stride_;  // stride 0: all sequences alike
  std::vector<Row> rows_;
};

}  // namespace primus::ops
