#include "config/pipeline_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/error.hpp"

namespace primus::config {
namespace {

// Megatron's largest published layouts have some hundred stages. What multiplies beyond these is a slip or an attack.
constexpr std::size_t kMaxRuns = 65'536;
constexpr std::size_t kMaxStages = 20'000;
constexpr std::int64_t kMaxLayers = 1'000'000;
constexpr int kMaxDepth = 16;

constexpr std::string_view kOrder = "EtmL";

/// A letter or bar, how often it stands there in a row, and where it was written.
struct Run {
  char letter = 0;
  std::int64_t times = 1;
  std::size_t position = 0;
};

using Runs = std::vector<Run>;

class LayoutParser {
 public:
  explicit LayoutParser(std::string_view text) : text_(text) {}

  std::variant<PipelineLayout, LayoutFault> run() {
    skip_commas();
    if (at_end()) fail(0, "the layout is empty", "for instance Et*3|t*4,L");
    const Runs runs = sequence(0);
    if (!fault_ && !at_end()) fail(position_, "')' closes no '('");
    if (fault_) return *std::move(fault_);
    PipelineLayout layout = stages_of(runs);
    if (fault_) return *std::move(fault_);
    return layout;
  }

 private:
  bool at_end() const { return position_ >= text_.size(); }

  void skip_commas() {
    while (!at_end() && text_[position_] == ',') ++position_;
  }

  // Items up to the end or to the parenthesis that closes them.
  Runs sequence(int depth) {
    Runs runs;
    for (skip_commas(); !fault_ && !at_end() && text_[position_] != ')'; skip_commas()) {
      const Runs item = repeated(depth);
      if (runs.size() + item.size() > kMaxRuns) {
        fail(position_, fmt::format("the layout grows beyond {} entries", kMaxRuns));
        return {};
      }
      runs.insert(runs.end(), item.begin(), item.end());
    }
    return runs;
  }

  Runs repeated(int depth) {
    Runs runs = item(depth);
    skip_commas();
    if (fault_ || at_end() || text_[position_] != '*') return runs;
    const std::size_t star = position_++;
    const std::int64_t times = count_after(star);
    if (fault_) return {};
    // A letter or a bar stays one entry.
    if (runs.size() == 1) {
      if (runs.front().times > kMaxLayers / std::max<std::int64_t>(times, 1)) {
        fail(star + 1, "repeated too often", fmt::format("a layout may stand for {} layers", kMaxLayers));
        return {};
      }
      runs.front().times *= times;
      if (times == 0) runs.clear();
      return runs;
    }
    if (!runs.empty() && static_cast<std::size_t>(times) > kMaxRuns / runs.size()) {
      fail(star + 1, "repeated too often", fmt::format("a layout may have {} entries", kMaxRuns));
      return {};
    }
    Runs all;
    all.reserve(runs.size() * static_cast<std::size_t>(times));
    for (std::int64_t i = 0; i < times; ++i) all.insert(all.end(), runs.begin(), runs.end());
    return all;
  }

  std::int64_t count_after(std::size_t star) {
    std::int64_t times = 0;
    const char* begin = text_.data() + position_;
    const auto [end, code] = std::from_chars(begin, text_.data() + text_.size(), times);
    if (end == begin || times < 0) {
      fail(star + 1, "'*' needs a number after it", "for instance t*4");
      return 0;
    }
    if (code != std::errc{} || times > kMaxLayers) {
      fail(star + 1, "repeated too often", fmt::format("a layout may stand for {} layers", kMaxLayers));
      return 0;
    }
    position_ += static_cast<std::size_t>(end - begin);
    // Commas are dropped before anything else is read where this grammar comes from, so 1,2 would mean 12.
    if (position_ + 1 < text_.size() && text_[position_] == ',' && is_digit(text_[position_ + 1])) {
      fail(position_, "a comma inside a number", "leave the comma out");
    }
    return times;
  }

  Runs item(int depth) {
    const char letter = text_[position_];
    if (letter == '(') return group(depth);
    if (letter == '|' || kOrder.find(letter) != std::string_view::npos) {
      return {{letter, 1, position_++}};
    }
    fail_letter(letter);
    return {};
  }

  Runs group(int depth) {
    const std::size_t open = position_++;
    if (depth >= kMaxDepth) {
      fail(open, fmt::format("parentheses are nested deeper than {}", kMaxDepth));
      return {};
    }
    Runs runs = sequence(depth + 1);
    if (fault_) return {};
    if (at_end()) {
      fail(open, "'(' is never closed");
      return {};
    }
    ++position_;
    return runs;
  }

  void fail_letter(char letter) {
    if (letter == '*') return fail(position_, "'*' has nothing before it to repeat");
    if (is_digit(letter)) return fail(position_, "a number without '*' before it", "write t*4 for four layers");
    if (letter == ' ' || letter == '\t') return fail(position_, "a space has no place in a layout", "leave it out");
    if (letter == '"' || letter == '\'') return fail(position_, "a quotation mark has no place in a layout");
    const std::string_view other_case = letter == 'e' ? "E" : letter == 'T' ? "t" : letter == 'M' ? "m" : "L";
    const bool is_known = std::string_view("eTMl").find(letter) != std::string_view::npos;
    const bool is_printable = letter > ' ' && letter < '\x7f';
    fail(position_,
         is_printable ? fmt::format("'{}' is not a kind of layer", letter) : "this byte is not a kind of layer",
         is_known ? fmt::format("did you mean '{}'?", other_case)
                  : "the letters are E embedding, t layer, m prediction depth, L loss");
  }

  // Cut at the bars; the order E, t, m, L holds over all stages together.
  PipelineLayout stages_of(const Runs& runs) {
    constexpr std::int64_t PipelineStage::*kCounts[] = {&PipelineStage::num_embeddings, &PipelineStage::num_layers,
                                                        &PipelineStage::num_mtp_layers, &PipelineStage::num_losses};
    PipelineLayout layout;
    layout.stages.emplace_back();
    std::int64_t total = 0;
    std::size_t reached = 0;  // index in kOrder
    bool has_embedding = false;
    bool has_loss = false;
    for (const Run& run : runs) {
      total += run.times;
      if (total > kMaxLayers) {
        fail(run.position, fmt::format("the layout stands for more than {} layers", kMaxLayers));
        return layout;
      }
      if (run.letter == '|') {
        if (layout.stages.size() + static_cast<std::size_t>(run.times) > kMaxStages) {
          fail(run.position, fmt::format("the layout has more than {} stages", kMaxStages));
          return layout;
        }
        layout.stages.resize(layout.stages.size() + static_cast<std::size_t>(run.times));
        continue;
      }
      const std::size_t kind = kOrder.find(run.letter);
      check_order(run, kind, reached, has_embedding, has_loss);
      if (fault_) return layout;
      reached = std::max(reached, kind);
      has_embedding = has_embedding || kind == 0;
      has_loss = has_loss || kind == 3;
      layout.stages.back().*kCounts[kind] += run.times;
    }
    if (!has_embedding) fail(0, "the embedding is missing", "begin with E");
    if (!has_loss) fail(text_.size(), "the loss is missing", "end with L");
    return layout;
  }

  void check_order(const Run& run, std::size_t kind, std::size_t reached, bool has_embedding, bool has_loss) {
    if (kind == 0 && (has_embedding || run.times > 1)) return fail(run.position, "a second embedding");
    if (kind != 0 && !has_embedding) {
      return fail(run.position, fmt::format("'{}' comes before the embedding", run.letter), "begin with E");
    }
    if (kind == 3 && (has_loss || run.times > 1)) return fail(run.position, "a second loss");
    if (kind >= reached) return;
    if (has_loss) return fail(run.position, fmt::format("'{}' comes after the loss", run.letter), "end with L");
    fail(run.position, "a layer comes after a prediction depth", "write every t before the first m");
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  void fail(std::size_t position, std::string message, std::string nearest = "") {
    if (!fault_) fault_ = LayoutFault{std::move(message), position, std::move(nearest)};
  }

  std::string_view text_;
  std::size_t position_ = 0;
  std::optional<LayoutFault> fault_;
};

std::string letters(char letter, std::int64_t times) {
  if (times == 0) return "";
  return times == 1 ? std::string(1, letter) : fmt::format("{}*{}", letter, times);
}

std::string stage_text(const PipelineStage& stage) {
  std::string text = letters('E', stage.num_embeddings) + letters('t', stage.num_layers);
  for (const std::string& rest : {letters('m', stage.num_mtp_layers), letters('L', stage.num_losses)}) {
    if (rest.empty()) continue;
    text += (text.empty() ? "" : ",") + rest;
  }
  return text;
}

// What is not plain ASCII stands as '?': a terminal would act on it, or the caret would miss its column.
char shown(char c) {
  return c < ' ' || c >= '\x7f' ? '?' : c;
}

}  // namespace

std::int64_t PipelineLayout::sum(std::int64_t PipelineStage::*count) const {
  std::int64_t total = 0;
  for (const PipelineStage& stage : stages) total += stage.*count;
  return total;
}

std::variant<PipelineLayout, LayoutFault> parse_pipeline_layout(std::string_view text) {
  return LayoutParser(text).run();
}

std::string to_text(const PipelineLayout& layout) {
  std::string text;
  for (std::size_t i = 0; i < layout.stages.size(); ++i) text += (i > 0 ? "|" : "") + stage_text(layout.stages[i]);
  return text;
}

std::string to_short_text(const PipelineLayout& layout) {
  constexpr std::size_t kFewest = 4;  // that are worth parentheses
  std::string text;
  for (std::size_t i = 0; i < layout.stages.size();) {
    const std::string stage = stage_text(layout.stages[i]);
    std::size_t end = i + 1;
    // The last stage has no bar behind it.
    while (end + 1 < layout.stages.size() && stage_text(layout.stages[end]) == stage) ++end;
    const bool is_last = end == layout.stages.size();
    if (end - i >= kFewest && !is_last) {
      text += fmt::format("({}|)*{}", stage, end - i);
    } else {
      end = i + 1;
      text += stage + (end < layout.stages.size() ? "|" : "");
    }
    i = end;
  }
  return text;
}

PipelineLayout balanced_layout(std::int64_t num_layers, std::int64_t num_mtp_layers, std::int64_t num_stages) {
  PipelineLayout layout;
  layout.stages.resize(static_cast<std::size_t>(num_stages));
  for (std::int64_t i = 0; i < num_stages; ++i) {
    layout.stages[static_cast<std::size_t>(i)].num_layers =
        num_layers / num_stages + (i < num_layers % num_stages ? 1 : 0);
  }
  layout.stages.front().num_embeddings = 1;
  layout.stages.back().num_mtp_layers = num_mtp_layers;
  layout.stages.back().num_losses = 1;
  return layout;
}

PipelineLayout layout_of_split_list(std::span<const std::int64_t> layers, std::int64_t pipeline_size, SplitOrder order,
                                    std::int64_t num_mtp_layers) {
  const auto size = static_cast<std::int64_t>(layers.size());
  PRIMUS_CHECK(size > 0 && pipeline_size > 0 && size % pipeline_size == 0);
  const std::int64_t num_chunks = size / pipeline_size;
  PipelineLayout layout = balanced_layout(0, num_mtp_layers, size);
  for (std::int64_t stage = 0; stage < size; ++stage) {
    const std::int64_t entry =
        order == SplitOrder::kByStage ? stage : stage % pipeline_size * num_chunks + stage / pipeline_size;
    layout.stages[static_cast<std::size_t>(stage)].num_layers = layers[static_cast<std::size_t>(entry)];
  }
  return layout;
}

std::string text_with_caret(std::string_view text, std::size_t position) {
  constexpr std::size_t kBefore = 40;
  constexpr std::size_t kWidth = 72;
  position = std::min(position, text.size());
  const std::size_t begin = text.size() <= kWidth || position <= kBefore ? 0 : position - kBefore;
  const std::string_view part = text.substr(begin, kWidth);
  std::string line = begin > 0 ? "..." : "";
  const std::size_t column = line.size() + position - begin;
  for (const char c : part) line += shown(c);
  if (begin + part.size() < text.size()) line += "...";
  return fmt::format("{}\n{}^", line, std::string(column, ' '));
}

}  // namespace primus::config
