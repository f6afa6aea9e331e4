#include "config/yaml_reader.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <istream>
#include <map>
#include <sstream>
#include <utility>

#include "config/pipeline_layout.hpp"

namespace primus::config {
namespace {

// An experiment has about a hundred entries and is a few kilobytes long; these stop aliases that multiply (and files
// that are no experiments) long before memory or time is felt.
constexpr std::size_t kMaxNodes = 20'000;
constexpr std::size_t kMaxDepth = 64;

class ReadStopped : public std::exception {};

std::size_t node_count(const Node& node) {
  std::size_t count = 1;
  for (const Node& item : node.items) count += node_count(item);
  for (const Node::Entry& entry : node.entries) count += node_count(entry.value);
  return count;
}

class NodeBuilder final : public YAML::EventHandler {
 public:
  NodeBuilder(std::string_view content, const std::string& file, std::vector<Problem>& problems)
      : content_(content), file_(file), problems_(problems) {}

  Node take() { return std::move(root_); }

  /// Where the last text in quotation marks began.
  const YAML::Mark& last_quoted() const { return last_quoted_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_nameless_key(mark, "null");
    add(scalar(mark, ""), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) stop(mark, "an alias stands inside its own anchor");
    num_nodes_ += found->second.num_nodes;
    if (num_nodes_ > kMaxNodes) stop(mark, fmt::format("aliases expand to more than {} values", kMaxNodes));
    add(found->second.node, YAML::NullAnchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_foreign_tag(mark, tag, {"str", "int", "float", "bool", "null"});
    if (value.empty()) refuse_nameless_key(mark, "an empty text");
    Node node = scalar(mark, value);
    // A block ends in a line break that nobody means: `lr: |` and 3e-4 below it.
    if (value.ends_with('\n') && !is_in_quotes(mark)) node.text.erase(value.find_last_not_of('\n') + 1);
    if (tag == "!" || tag == "tag:yaml.org,2002:str") node.style = Node::Style::kQuoted;
    if (tag == "!") last_quoted_ = mark;
    add(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    refuse_foreign_tag(mark, tag, {"seq"});
    open(mark, Node::Kind::kList, anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    refuse_foreign_tag(mark, tag, {"map"});
    open(mark, Node::Kind::kMap, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Node node;
    YAML::anchor_t anchor = YAML::NullAnchor;
    bool expects_key = false;
    std::string key;
    int key_line = 0;
    std::map<std::string, int> key_lines;
    std::vector<Node> merged_in;  // values of "<<"
  };
  struct Anchored {
    Node node;
    std::size_t num_nodes = 0;
  };

  Node scalar(const YAML::Mark& mark, const std::string& text) const {
    Node node;
    node.text = text;
    node.origin = {Layer::kDefault, file_, mark.line + 1};
    return node;
  }

  bool is_in_quotes(const YAML::Mark& mark) {
    if (line_begins_.empty()) {
      line_begins_.push_back(0);
      for (std::size_t i = 0; i < content_.size(); ++i) {
        if (content_[i] == '\n') line_begins_.push_back(i + 1);
      }
    }
    const auto line = static_cast<std::size_t>(std::max(mark.line, 0));
    const std::size_t at = line < line_begins_.size()
                               ? line_begins_[line] + static_cast<std::size_t>(std::max(mark.column, 0))
                               : content_.size();
    return at < content_.size() && (content_[at] == '"' || content_[at] == '\'');
  }

  // A tag asks for a type. Those of YAML itself say what the value says too; any other, Python's objects first among
  // them, would have to be built by a program that is not here.
  void refuse_foreign_tag(const YAML::Mark& mark, const std::string& tag,
                          std::initializer_list<std::string_view> known) {
    constexpr std::string_view kYaml = "tag:yaml.org,2002:";
    if (tag.empty() || tag == "?" || tag == "!") return;
    const bool is_yaml = tag.starts_with(kYaml);
    const std::string_view name = std::string_view(tag).substr(is_yaml ? kYaml.size() : 0);
    if (is_yaml && std::find(known.begin(), known.end(), name) != known.end()) return;
    problems_.push_back({.file = file_,
                         .line = mark.line + 1,
                         .message = fmt::format("the tag {}{} has no meaning here", is_yaml ? "!!" : "", name),
                         .expected = "plain values, lists and maps",
                         .nearest = "leave the tag out"});
  }

  void refuse_nameless_key(const YAML::Mark& mark, std::string_view what) {
    if (frames_.empty() || !frames_.back().expects_key) return;
    problems_.push_back({.file = file_,
                         .line = mark.line + 1,
                         .message = fmt::format("a key is {}", what),
                         .expected = "a name before the ':'"});
  }

  void open(const YAML::Mark& mark, Node::Kind kind, YAML::anchor_t anchor) {
    if (frames_.size() >= kMaxDepth) stop(mark, fmt::format("nested deeper than {} levels", kMaxDepth));
    if (!frames_.empty() && frames_.back().expects_key) stop(mark, "a key must be a plain name");
    Frame frame;
    frame.node = scalar(mark, "");
    frame.node.kind = kind;
    frame.anchor = anchor;
    frame.expects_key = kind == Node::Kind::kMap;
    frames_.push_back(std::move(frame));
  }

  void close() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    // A merge key fills in what the map does not say itself; of several, the first wins.
    for (const Node& source : frame.merged_in) {
      for (const Node::Entry& entry : source.entries) {
        if (!frame.node.find(entry.key)) frame.node.entries.push_back(entry);
      }
    }
    add(std::move(frame.node), frame.anchor);
  }

  void add(Node node, YAML::anchor_t anchor) {
    if (++num_nodes_ > kMaxNodes) {
      stop(YAML::Mark::null_mark(), fmt::format("holds more than {} values", kMaxNodes));
    }
    if (anchor != YAML::NullAnchor) anchors_[anchor] = {node, node_count(node)};
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = frames_.back();
    if (frame.node.kind == Node::Kind::kList) {
      frame.node.items.push_back(std::move(node));
    } else if (frame.expects_key) {
      frame.key = node.text;
      frame.key_line = node.origin.line;
      frame.expects_key = false;
    } else {
      add_entry(frame, std::move(node));
      frame.expects_key = true;
    }
  }

  void add_entry(Frame& frame, Node node) {
    if (frame.key.empty()) return;  // told where it stands
    if (frame.key == "<<") {
      if (node.kind == Node::Kind::kList) {
        for (Node& item : node.items) frame.merged_in.push_back(std::move(item));
      } else {
        frame.merged_in.push_back(std::move(node));
      }
      return;
    }
    const auto [first, is_new] = frame.key_lines.try_emplace(frame.key, frame.key_line);
    if (!is_new) {
      problems_.push_back({.file = file_,
                           .line = frame.key_line,
                           .key = frame.key,
                           .message = fmt::format("written twice, first at line {}", first->second),
                           .nearest = "keep one of the two"});
      return;
    }
    // What a problem points at is the key, also where its value begins on a later line.
    node.origin.line = frame.key_line;
    frame.node.entries.push_back({frame.key, frame.key_line, std::move(node)});
  }

  [[noreturn]] void stop(const YAML::Mark& mark, std::string message) {
    problems_.push_back({.file = file_, .line = mark.is_null() ? 0 : mark.line + 1, .message = std::move(message)});
    throw ReadStopped();
  }

  std::string_view content_;
  std::vector<std::size_t> line_begins_;
  const std::string& file_;
  std::vector<Problem>& problems_;
  Node root_;
  std::vector<Frame> frames_;
  std::map<YAML::anchor_t, Anchored> anchors_;
  std::size_t num_nodes_ = 0;
  YAML::Mark last_quoted_ = YAML::Mark::null_mark();
};

// yaml-cpp's reasons in words that need no YAML standard beside them.
std::string reason_of(const std::string& message) {
  constexpr std::pair<std::string_view, std::string_view> kReasons[] = {
      {"illegal map value", "a ': ' where no key can stand (indented too far? a text that holds ': ' needs quotes)"},
      {"end of map not found", "a '{' or an indented block does not end here as it should"},
      {"end of map flow not found", "'{' is never closed"},
      {"end of sequence not found",
       "a list does not end here as it should (is a '-' missing, or indented differently?)"},
      {"end of sequence flow not found", "'[' is never closed"},
      {"illegal flow end", "a closing bracket without its opening one"},
      {"the referenced anchor is not defined", "an alias (*name) of an anchor (&name) that is not above it"},
      {"unknown token",
       "a character that cannot begin a value here (tabs may not indent; quote texts with @ ` % or &)"},
      {"illegal EOF in scalar", "a quotation mark is never closed"},
      {"unknown escape character: ", "an unknown escape in a text in double quotes (write \\\\ for a backslash)"},
      {"illegal tab when looking for indentation", "a tab in the indentation: use spaces"},
  };
  for (const auto& [theirs, ours] : kReasons) {
    if (message.starts_with(theirs)) return std::string(ours);
  }
  return message;
}

std::size_t begin_of_line(std::string_view content, int wanted) {
  std::size_t begin = 0;
  for (int line = 0; line < wanted && begin < content.size(); ++line) {
    begin = std::min(content.find('\n', begin), content.size() - 1) + 1;
  }
  return begin;
}

std::string_view line_at(std::string_view content, const YAML::Mark& mark) {
  const std::size_t begin = begin_of_line(content, mark.line);
  std::string_view line = content.substr(begin, content.find('\n', begin) - begin);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

bool is_indented_by_tab(std::string_view line) {
  return line.substr(0, line.find_first_not_of(" \t")).find('\t') != std::string_view::npos;
}

// Does a quotation mark at this place have its partner? yaml-cpp takes the end of the file for one.
bool is_closed(std::string_view content, const YAML::Mark& mark) {
  const std::size_t begin = begin_of_line(content, mark.line) + static_cast<std::size_t>(std::max(mark.column, 0));
  if (begin >= content.size() || (content[begin] != '"' && content[begin] != '\'')) return true;
  const char quote = content[begin];
  for (std::size_t i = begin + 1; i < content.size(); ++i) {
    if (content[i] == '\\' && quote == '"') {
      ++i;
    } else if (content[i] == quote) {
      const bool is_doubled = quote == '\'' && i + 1 < content.size() && content[i + 1] == quote;
      if (!is_doubled) return true;
      ++i;
    }
  }
  return false;
}

std::string_view rest_behind_colon(std::string_view line) {
  const std::size_t colon = line.find(": ");
  if (colon == std::string_view::npos) return "";
  const std::size_t begin = line.find_first_not_of(' ', colon + 1);
  if (begin == std::string_view::npos) return "";
  std::string_view value = line.substr(begin);
  value = value.substr(0, value.find(" #"));
  while (value.ends_with(' ')) value.remove_suffix(1);
  return value;
}

// "[0] + [1]*26", "|Et*3|t": a text whose first character opens something in YAML.
bool is_unquoted_text(std::string_view value) {
  if (value.starts_with('|') || value.starts_with('>')) return value.size() > 2;
  if (!value.starts_with('[') && !value.starts_with('{')) return false;
  int depth = 0;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value[i] == '[' || value[i] == '{') ++depth;
    if (value[i] == ']' || value[i] == '}') --depth;
    if (depth == 0) return i + 1 < value.size();
  }
  return false;
}

// What yaml-cpp's reason leaves out: the slips that end in this fault most often.
std::string hint_for(std::string_view line, std::string_view above, const std::string& fault) {
  const std::string_view value = rest_behind_colon(line);
  if (is_unquoted_text(value) && value.find_first_of("'\"") == std::string_view::npos)
    return fmt::format("a text that begins with '{}' needs quotes: '{}'", value.front(), value);
  const bool is_in_brackets = fault.starts_with("end of map flow") || fault.starts_with("end of sequence flow") ||
                              fault.starts_with("illegal flow end");
  if (is_in_brackets && line.find("${") != std::string_view::npos)
    return "between brackets a variable needs quotes: \"${NAME}\"";
  const std::size_t colon = above.find(':');
  const bool lacks_space = colon != std::string_view::npos && colon + 1 < above.size() && above[colon + 1] != ' ';
  if (fault.starts_with("illegal map value") && lacks_space && above.find("://") == std::string_view::npos)
    return "the line above lacks the space behind its ':'";
  return "";
}

// "end of map not found" has three causes that a reader of the file tells apart.
std::string end_of_block_text(std::string_view line, const YAML::Mark& mark) {
  const std::size_t begin = line.find_first_not_of(' ');
  if (begin == std::string_view::npos || static_cast<int>(begin) != mark.column) return "";
  if (line.substr(begin).starts_with("- ")) return "an item of a list ('- ') where a key should stand";
  return "this line is indented like no block above it";
}

Problem syntax_problem(std::string_view content, const std::string& file, const YAML::Exception& error) {
  Problem problem{.file = file, .message = fmt::format("not valid YAML: {}", reason_of(error.msg))};
  if (error.mark.is_null()) return problem;
  problem.line = error.mark.line + 1;
  problem.column = error.mark.column + 1;
  const std::string_view line = line_at(content, error.mark);
  if (is_indented_by_tab(line)) problem.message = "not valid YAML: a tab in the indentation: use spaces";
  const bool is_end_of_block = error.msg.starts_with("end of map not found");
  if (const std::string text = is_end_of_block ? end_of_block_text(line, error.mark) : ""; !text.empty())
    problem.message = fmt::format("not valid YAML: {}", text);
  YAML::Mark above = error.mark;
  above.line -= 1;
  problem.nearest = hint_for(line, above.line < 0 ? std::string_view() : line_at(content, above), error.msg);
  if (!line.empty()) problem.excerpt = text_with_caret(line, static_cast<std::size_t>(std::max(error.mark.column, 0)));
  return problem;
}

}  // namespace

Node read_yaml(std::string_view content, const std::string& file, std::vector<Problem>& problems) {
  if (content.size() > kMaxYamlBytes) {
    problems.push_back({.file = file, .message = "too large for a configuration file", .expected = "at most 1 MiB"});
    return {};
  }
  if (const std::size_t nul = content.find('\0'); nul != std::string_view::npos) {
    const auto line = 1 + std::count(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(nul), '\n');
    problems.push_back({.file = file, .line = static_cast<int>(line), .message = "a NUL byte: this is no text file"});
    return {};
  }
  std::istringstream stream{std::string(content)};
  NodeBuilder builder(content, file, problems);
  try {
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(builder)) {
      Node root = builder.take();
      if (const YAML::Mark& mark = builder.last_quoted(); !mark.is_null() && !is_closed(content, mark)) {
        problems.push_back({.file = file,
                            .line = mark.line + 1,
                            .column = mark.column + 1,
                            .message = "not valid YAML: a quotation mark is never closed",
                            .excerpt = text_with_caret(line_at(content, mark), static_cast<std::size_t>(mark.column))});
        return {};  // the text holds whatever stands behind the mark
      }
      NodeBuilder second(content, file, problems);
      if (parser.HandleNextDocument(second)) {
        problems.push_back({.file = file, .message = "holds more than one YAML document", .expected = "one"});
        return {};
      }
      return root;
    }
  } catch (const YAML::Exception& error) {
    problems.push_back(syntax_problem(content, file, error));
  } catch (const ReadStopped&) {
    return {};
  }
  return builder.take();
}

}  // namespace primus::config
