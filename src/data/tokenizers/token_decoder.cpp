#include "data/tokenizers/token_decoder.hpp"

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/tokenizers/byte_alphabet.hpp"
#include "data/tokenizers/utf8.hpp"

namespace primus::data {
namespace {

/// Characters that show bytes become these bytes, which may be the parts of a character that lies in several tokens.
class ByteLevel final : public TokenDecoder {
 public:
  std::vector<std::string> apply(std::vector<std::string> tokens) const override {
    std::string text;
    for (const std::string& token : tokens) text += shown_bytes(token).value_or(token);
    return {std::move(text)};
  }
};

/// <0xNN> becomes a byte.
class ByteFallback final : public TokenDecoder {
 public:
  std::vector<std::string> apply(std::vector<std::string> tokens) const override {
    std::vector<std::string> result;
    std::string bytes;
    const auto write_bytes = [&] {
      if (bytes.empty()) return;
      if (is_utf8(bytes)) {
        result.push_back(bytes);
      } else {
        for (std::size_t i = 0; i < bytes.size(); ++i) result.emplace_back("\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = byte_of(token); byte >= 0) {
        bytes += static_cast<char>(static_cast<unsigned char>(byte));
      } else {
        write_bytes();
        result.push_back(std::move(token));
      }
    }
    write_bytes();
    return result;
  }

 private:
  static int byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
    int value = 0;
    for (const char c : token.substr(3, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                               : -1;
      if (digit < 0) return -1;
      value = 16 * value + digit;
    }
    return value;
  }
};

class Fuse final : public TokenDecoder {
 public:
  std::vector<std::string> apply(std::vector<std::string> tokens) const override {
    std::string text;
    for (const std::string& token : tokens) text += token;
    return {std::move(text)};
  }
};

/// One text in the place of another, in each token.
class Replace final : public TokenDecoder {
 public:
  Replace(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}

  std::vector<std::string> apply(std::vector<std::string> tokens) const override {
    for (std::string& token : tokens) {
      for (std::size_t at = token.find(from_); at != std::string::npos; at = token.find(from_, at + to_.size())) {
        token.replace(at, from_.size(), to_);
      }
    }
    return tokens;
  }

 private:
  std::string from_;
  std::string to_;
};

/// A character off the ends of each token, at most so many times.
class Strip final : public TokenDecoder {
 public:
  Strip(std::string content, std::int64_t most_left, std::int64_t most_right)
      : content_(std::move(content)), most_left_(most_left), most_right_(most_right) {}

  std::vector<std::string> apply(std::vector<std::string> tokens) const override {
    for (std::string& token : tokens) {
      std::string_view left = token;
      for (std::int64_t i = 0; i < most_left_ && left.starts_with(content_); ++i) left.remove_prefix(content_.size());
      for (std::int64_t i = 0; i < most_right_ && left.ends_with(content_); ++i) left.remove_suffix(content_.size());
      token = std::string(left);
    }
    return tokens;
  }

 private:
  std::string content_;
  std::int64_t most_left_;
  std::int64_t most_right_;
};

/// The character for spaces becomes a space; at the very beginning nothing, if it was put there.
class Metaspace final : public TokenDecoder {
 public:
  enum class Beginning { kKept, kDropped };
  Metaspace(std::string replacement, Beginning beginning)
      : replacement_(std::move(replacement)), beginning_(beginning) {}

  std::vector<std::string> apply(std::vector<std::string> tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::string_view to = i == 0 && beginning_ == Beginning::kDropped ? "" : " ";
      std::string& token = tokens[i];
      for (std::size_t at = token.find(replacement_); at != std::string::npos;
           at = token.find(replacement_, at + to.size())) {
        token.replace(at, replacement_.size(), to);
      }
    }
    return tokens;
  }

 private:
  std::string replacement_;
  Beginning beginning_;
};

class Sequence final : public TokenDecoder {
 public:
  explicit Sequence(std::vector<std::unique_ptr<TokenDecoder>> steps) : steps_(std::move(steps)) {}

  std::vector<std::string> apply(std::vector<std::string> tokens) const override {
    for (const auto& step : steps_) tokens = step->apply(std::move(tokens));
    return tokens;
  }

 private:
  std::vector<std::unique_ptr<TokenDecoder>> steps_;
};

std::string filled(const JsonPart& part) {
  if (part.text().empty()) part.fail("is empty", "a text");
  return part.text();
}

}  // namespace

std::unique_ptr<TokenDecoder> make_decoder(const JsonPart& part) {
  if (part.is_null()) return nullptr;
  const JsonPart type = part.at("type");
  const std::string& name = type.text();
  if (name == "ByteLevel") {
    part.has_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return std::make_unique<ByteLevel>();
  }
  if (name == "ByteFallback") return std::make_unique<ByteFallback>();
  if (name == "Fuse") return std::make_unique<Fuse>();
  if (name == "Replace") {
    part.has_only({"type", "pattern", "content"});
    return std::make_unique<Replace>(filled(part.at("pattern").at("String")), part.at("content").text());
  }
  if (name == "Strip") {
    part.has_only({"type", "content", "start", "stop"});
    return std::make_unique<Strip>(filled(part.at("content")), part.at("start").integer(), part.at("stop").integer());
  }
  if (name == "Metaspace") {
    part.has_only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    const bool keeps =
        part.text_or("prepend_scheme", "always") == "never" || !part.boolean_or("add_prefix_space", true);
    return std::make_unique<Metaspace>(filled(part.at("replacement")),
                                       keeps ? Metaspace::Beginning::kKept : Metaspace::Beginning::kDropped);
  }
  if (name == "Sequence") {
    part.has_only({"type", "decoders"});
    std::vector<std::unique_ptr<TokenDecoder>> steps;
    for (const JsonPart& step : part.at("decoders").items()) {
      if (step.is_null()) step.fail("is no decoder");
      steps.push_back(make_decoder(step));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  type.fail("is a decoder that is not understood",
            "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace or Sequence");
}

}  // namespace primus::data
