#include "ops/gemm/gemm_choices.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.hpp"

namespace primus::ops {
namespace {

constexpr char kSeparator = '|';

[[noreturn]] void refuse(const std::filesystem::path& file, const char* what, int error) {
  throw UserError(fmt::format("PRIMUS_GEMM_CHOICES: {}: {}: {}", file.string(), what, std::strerror(error)),
                  ExitCode::kWrongInput);
}

/// Numbers between blanks; nothing if a word is none.
template <typename Number>
std::vector<Number> numbers_in(const std::string& text, int base) {
  std::istringstream words(text);
  std::vector<Number> numbers;
  for (std::string word; words >> word;) {
    Number number{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number, base);
    if (error != std::errc() || end != word.data() + word.size()) return {};
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

GemmChoices::GemmChoices(std::filesystem::path file, std::string owner)
    : file_(std::move(file)), owner_(std::move(owner)) {
  std::error_code error;
  if (!std::filesystem::exists(file_, error)) {
    const int made = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (made < 0) refuse(file_, "cannot be made", errno);
    ::close(made);
    return;
  }
  std::ifstream in(file_);
  if (!in || std::filesystem::is_directory(file_)) refuse(file_, "cannot be read", in ? EISDIR : errno);
  for (std::string line; std::getline(in, line);) read_line(line);
}

void GemmChoices::read_line(const std::string& line) {
  if (line.empty()) return;
  const std::size_t first = line.find(kSeparator);
  const std::size_t second = first == std::string::npos ? first : line.find(kSeparator, first + 1);
  std::vector<std::int64_t> product;
  std::vector<std::uint64_t> words;
  if (second != std::string::npos) {
    product = numbers_in<std::int64_t>(line.substr(first + 1, second - first - 1), 10);
    words = numbers_in<std::uint64_t>(line.substr(second + 1), 16);
  }
  if (product.empty() || words.size() != AlgorithmWords{}.size()) {
    ++num_unread_;
    return;
  }
  if (line.substr(0, first) != owner_ + ' ') return;
  AlgorithmWords algorithm;
  std::copy(words.begin(), words.end(), algorithm.begin());
  choices_[std::move(product)] = algorithm;
}

std::optional<AlgorithmWords> GemmChoices::find(const std::vector<std::int64_t>& product) const {
  const auto found = choices_.find(product);
  return found == choices_.end() ? std::nullopt : std::optional(found->second);
}

void GemmChoices::add(const std::vector<std::int64_t>& product, const AlgorithmWords& algorithm) {
  choices_[product] = algorithm;
  // A newline in front: a line that another process left half written ends there.
  const std::string line = fmt::format("\n{} {} {} {} {:016x}\n", owner_, kSeparator, fmt::join(product, " "),
                                       kSeparator, fmt::join(algorithm, " "));
  const int out = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool is_written = out >= 0 && ::write(out, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int error = errno;
  if (out >= 0) ::close(out);
  if (is_written || std::exchange(has_failed_, true)) return;
  fmt::print(stderr, "WARNING: PRIMUS_GEMM_CHOICES: {}: a choice could not be written: {}\n", file_.string(),
             std::strerror(error));
}

}  // namespace primus::ops
