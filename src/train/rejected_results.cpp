#include "train/rejected_results.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/visible.hpp"
#include "train/log_lines.hpp"

namespace primus::train {
namespace {

constexpr std::string_view kSecondSame = "second_rerun_reproducible";

std::string_view status_of(Rejection rejection) {
  switch (rejection) {
    case Rejection::kNotRepeated:
      return "rerun_disabled";
    case Rejection::kSameAgain:
      return "first_rerun_reproducible";
    case Rejection::kDifferentAgain:
      return "first_rerun_not_reproducible";
  }
  return "?";
}

std::string node_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) return "host";
  return host.data();
}

/// The word behind " NAME=".
std::optional<std::string> field(const std::string& line, std::string_view name) {
  const std::string key = fmt::format(" {}=", name);
  const std::size_t at = line.find(key);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + key.size();
  return line.substr(begin, line.find(' ', begin) - begin);
}

/// What a line says: a step, the rank, how it was rejected.
struct Line {
  std::int64_t step = 0;
  std::int64_t rank = 0;
  std::string status;
};

std::optional<std::int64_t> number(const std::optional<std::string>& text) {
  if (!text || text->empty()) return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text->c_str(), &end, 10);
  if (*end != '\0' || errno != 0 || value < 0) return std::nullopt;
  return value;
}

std::optional<Line> line_of(const std::string& text) {
  const auto step = number(field(text, "iteration"));
  const auto rank = number(field(text, "rank"));
  std::optional<std::string> status = field(text, "status");
  if (!text.starts_with("ts=") || !step || !rank || !status) return std::nullopt;
  // Python writes the enumeration's name or its value, by its version.
  if (const std::size_t dot = status->find('.'); dot != std::string::npos) status->erase(0, dot + 1);
  return Line{*step, *rank, lower(*status)};
}

}  // namespace

RejectedResults::RejectedResults(std::filesystem::path path) : path_(std::move(path)) {
  const std::ofstream file(path_, std::ios::app);
  if (!file) {
    throw UserError(
        fmt::format("{}: cannot be written ({}): the file that lists rejected results "
                    "(result_rejected_tracker_filename)",
                    visible(path_.string()), std::strerror(errno)));
  }
}

void RejectedResults::add(const RejectedResult& rejected, std::time_t now) const {
  const char* job = std::getenv("SLURM_JOBID");
  std::string message = visible(rejected.message);
  std::replace(message.begin(), message.end(), '\'', '"');
  append_to_file(path_,
                 fmt::format("ts={} node={} device={} jobID={} rank={} iteration={} status={} result={} message='{}'\n",
                             time_text(now), node_name(), rejected.device, job != nullptr ? job : "N/A", rejected.rank,
                             rejected.step, status_of(rejected.rejection), rejected.result, message));
}

std::vector<std::int64_t> rejected_again(const std::filesystem::path& path) {
  std::set<std::int64_t> again;
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    const auto line = line_of(text);
    if (!line) continue;
    // What another computation did not give was the machine's fault, not the data's.
    const bool is_counted =
        line->status == status_of(Rejection::kNotRepeated) || line->status == status_of(Rejection::kSameAgain);
    const bool is_again = is_counted && !seen.emplace(line->rank, line->step).second;
    if (is_again || line->status == kSecondSame) again.insert(line->step);
  }
  return {again.begin(), again.end()};
}

}  // namespace primus::train
