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
  NodeBuilder(const std::string& file, std::vector<Problem>& problems) : file_(file), problems_(problems) {}

  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(scalar(mark, ""), anchor); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) stop(mark, "an alias stands inside its own anchor");
    num_nodes_ += found->second.num_nodes;
    if (num_nodes_ > kMaxNodes) stop(mark, fmt::format("aliases expand to more than {} values", kMaxNodes));
    add(found->second.node, YAML::NullAnchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Node node = scalar(mark, value);
    if (tag == "!" || tag == "tag:yaml.org,2002:str") node.style = Node::Style::kQuoted;
    add(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, Node::Kind::kList, anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
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

  const std::string& file_;
  std::vector<Problem>& problems_;
  Node root_;
  std::vector<Frame> frames_;
  std::map<YAML::anchor_t, Anchored> anchors_;
  std::size_t num_nodes_ = 0;
};

// yaml-cpp's reasons in words that need no YAML standard beside them.
std::string reason_of(const std::string& message) {
  constexpr std::pair<std::string_view, std::string_view> kReasons[] = {
      {"illegal map value", "a ': ' where no key can stand (quote a text that holds one)"},
      {"end of map not found", "a '{' or an indented block does not end here as it should"},
      {"end of map flow not found", "'{' is never closed"},
      {"end of sequence not found", "a list does not end here as it should (is a '-' missing, or indented differently?)"},
      {"end of sequence flow not found", "'[' is never closed"},
      {"illegal flow end", "a closing bracket without its opening one"},
      {"the referenced anchor is not defined", "an alias (*name) of an anchor (&name) that is not above it"},
      {"unknown token", "a character that cannot begin a value here (tabs may not indent; quote texts with @ ` % or &)"},
      {"illegal EOF in scalar", "a quotation mark is never closed"},
      {"unknown escape character: ", "an unknown escape in a text in double quotes (write \\\\ for a backslash)"},
      {"illegal tab when looking for indentation", "a tab in the indentation: use spaces"},
  };
  for (const auto& [theirs, ours] : kReasons) {
    if (message.starts_with(theirs)) return std::string(ours);
  }
  return message;
}

// The line at `mark`, with a caret below the column.
std::string excerpt_at(std::string_view content, const YAML::Mark& mark) {
  std::size_t begin = 0;
  for (int line = 0; line < mark.line && begin < content.size(); ++line) {
    begin = std::min(content.find('\n', begin), content.size() - 1) + 1;
  }
  std::string_view line = content.substr(begin, content.find('\n', begin) - begin);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line.empty() ? "" : text_with_caret(line, static_cast<std::size_t>(std::max(mark.column, 0)));
}

Problem syntax_problem(std::string_view content, const std::string& file, const YAML::Exception& error) {
  Problem problem{.file = file, .message = fmt::format("not valid YAML: {}", reason_of(error.msg))};
  if (error.mark.is_null()) return problem;
  problem.line = error.mark.line + 1;
  problem.column = error.mark.column + 1;
  problem.excerpt = excerpt_at(content, error.mark);
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
  NodeBuilder builder(file, problems);
  try {
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(builder)) {
      Node root = builder.take();
      NodeBuilder second(file, problems);
      if (parser.HandleNextDocument(second)) {
        problems.push_back({.file = file, .message = "holds more than one YAML document", .expected = "one"});
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
