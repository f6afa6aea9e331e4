#pragma once
// Where tokens come from, sequence by sequence: a file on disk or a rule.
#include <cstdint>
#include <span>
#include <string>

namespace primus::data {

/// Sequences of tokens with random access. Safe to read from several threads.
class TokenStore {
 public:
  TokenStore() = default;
  TokenStore(const TokenStore&) = delete;
  TokenStore& operator=(const TokenStore&) = delete;
  virtual ~TokenStore() = default;

  /// For messages: a path, or what stands for one.
  virtual const std::string& name() const = 0;
  virtual std::int64_t num_sequences() const = 0;
  /// Tokens of a sequence.
  virtual std::int64_t length(std::int64_t sequence) const = 0;
  /// Copy tokens offset .. offset + out.size() of a sequence; they must exist.
  virtual void read(std::int64_t sequence, std::int64_t offset, std::span<std::int64_t> out) const = 0;
};

}  // namespace primus::data
