#include "train/mlflow_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "train/log_lines.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;

std::int64_t now_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

/// A YAML scalar in single quotes.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\n' || c == '\r') continue;
    result += c == '\'' ? std::string("''") : std::string(1, c);
  }
  return result + "'";
}

constexpr std::string_view kFileScheme = "file:";

/// The path as an address, as Python's pathname2url spells it.
std::string file_uri(const fs::path& path) {
  std::string result(kFileScheme);
  result += "//";
  for (const char c : path.string()) {
    const bool stands_for_itself =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("_.-~/", c) != nullptr;
    result += stands_for_itself ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return result;
}

/// What the escapes of an address stand for; a % that begins none stays.
std::string unescaped(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    unsigned value = 0;
    const std::string_view digits = text.substr(at + 1, 2);
    const bool is_escape = text[at] == '%' && digits.size() == 2 &&
                           std::from_chars(digits.data(), digits.data() + 2, value, 16).ptr == digits.data() + 2;
    result += is_escape ? static_cast<char>(value) : text[at];
    if (is_escape) at += 2;
  }
  return result;
}

/// MLflow takes letters, digits and _-. :/ in names; folders follow from the slashes.
std::string allowed_name(const std::string& name) {
  std::string result;
  for (const char c : name) {
    const bool is_allowed = std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("_-. /", c) != nullptr;
    result += is_allowed ? c : '_';
  }
  return result;
}

/// The value of a field of a meta.yaml; "" if it has none.
std::string field_of(const fs::path& yaml, const std::string& field) {
  std::ifstream in(yaml);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(field + ": ")) continue;
    std::string value = line.substr(field.size() + 2);
    if (value.size() < 2 || value.front() != '\'') return value;
    value = value.substr(1, value.size() - 2);
    for (std::size_t at = value.find("''"); at != std::string::npos; at = value.find("''", at + 1)) value.erase(at, 1);
    return value;
  }
  return "";
}

std::string random_text(std::size_t length, std::string_view letters) {
  std::random_device device;
  std::string text;
  for (std::size_t i = 0; i < length; ++i)
    text += letters[std::uniform_int_distribution<std::size_t>(0, letters.size() - 1)(device)];
  return text;
}

void write_experiment_meta(const fs::path& folder, const std::string& id, const std::string& name) {
  const std::int64_t now = now_ms();
  make_folder(folder);
  write_file(folder / "meta.yaml",
             fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\nlast_update_time: {}\n"
                         "lifecycle_stage: active\nname: {}\n",
                         quoted(file_uri(folder)), now, id, now, quoted(name)));
}

/// The number of the experiment of that name, which is made if it is not there.
std::string experiment_id(const fs::path& store, const std::string& name) {
  make_folder(store);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(store, error)) {
    const fs::path meta = entry.path() / "meta.yaml";
    if (fs::exists(meta, error) && field_of(meta, "name") == name) return entry.path().filename().string();
  }
  if (!fs::exists(store / "0", error)) write_experiment_meta(store / "0", "0", "Default");
  if (name == "Default") return "0";
  // As MLflow does, so that two that begin at once do not meet.
  const std::string id = random_text(1, "123456789") + random_text(17, "0123456789");
  write_experiment_meta(store / id, id, name);
  return id;
}

}  // namespace

MlflowRun::MlflowRun(MlflowNames names, const fs::path& id_file, std::int64_t last_step) : names_(std::move(names)) {
  names_.store = fs::absolute(names_.store);
  experiment_id_ = experiment_id(names_.store, names_.experiment);
  if (last_step > 0 && fs::exists(id_file)) id_ = std::string(trim(read_file(id_file)));
  folder_ = names_.store / experiment_id_ / id_;
  start_ms_ = now_ms();
  if (!id_.empty() && fs::exists(folder_ / "meta.yaml")) {
    start_ms_ = std::strtoll(field_of(folder_ / "meta.yaml", "start_time").c_str(), nullptr, 10);
    cut_metrics(last_step);
  } else {
    id_ = random_text(32, "0123456789abcdef");
    folder_ = names_.store / experiment_id_ / id_;
    for (const char* part : {"artifacts", "metrics", "params", "tags"}) make_folder(folder_ / part);
    write_file(id_file, id_ + "\n");
  }
  tag("mlflow.runName", names_.run);
  tag("mlflow.user", names_.user);
  write_meta(Status::kRunning, 0);
}

MlflowRun::~MlflowRun() {
  if (has_ended_) return;
  try {
    write_meta(Status::kFailed, now_ms());
  } catch (const UserError&) {
    has_ended_ = true;  // a full disk: the run stays as if it went on
  }
}

void MlflowRun::write_meta(Status status, std::int64_t end_ms) const {
  write_file(folder_ / "meta.yaml",
             fmt::format("artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: '{}'\n"
                         "lifecycle_stage: active\nrun_id: {}\nrun_name: {}\nrun_uuid: {}\nsource_name: ''\n"
                         "source_type: 4\nsource_version: ''\nstart_time: {}\nstatus: {}\ntags: []\nuser_id: {}\n",
                         quoted(file_uri(folder_ / "artifacts")), end_ms > 0 ? std::to_string(end_ms) : "null",
                         experiment_id_, quoted(id_), quoted(names_.run), quoted(id_), start_ms_,
                         static_cast<int>(status), quoted(names_.user)));
}

void MlflowRun::cut_metrics(std::int64_t last_step) const {
  if (!fs::exists(folder_ / "metrics")) return;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "metrics")) {
    if (!entry.is_regular_file()) continue;
    std::string kept;
    std::vector<std::string> lines = split(read_file(entry.path()), '\n');
    lines.pop_back();  // behind the last line's end: nothing, or what a killed process wrote of a line
    for (const std::string& line : lines) {
      const std::vector<std::string> fields = split(line, ' ');  // time, value, step
      if (fields.size() == 3 && std::strtoll(fields[2].c_str(), nullptr, 10) <= last_step) kept += line + "\n";
    }
    write_file(entry.path(), kept);
  }
}

void MlflowRun::parameter(const std::string& key, const std::string& value) const {
  constexpr std::size_t kLongest = 6000;  // MLflow's own bound
  write_file(folder_ / "params" / allowed_name(key), value.substr(0, kLongest));
}

void MlflowRun::tag(const std::string& key, const std::string& value) const {
  write_file(folder_ / "tags" / allowed_name(key), value);
}

void MlflowRun::metric(const std::string& key, double value, std::int64_t step) const {
  // Python's spelling of what is no number.
  const std::string text = std::isnan(value)   ? "nan"
                           : std::isinf(value) ? (value > 0 ? "inf" : "-inf")
                                               : fmt::format("{}", value);
  const fs::path series = folder_ / "metrics" / allowed_name(key);
  make_folder(series.parent_path());  // a name with a slash lies deeper
  append_to_file(series, fmt::format("{} {} {}\n", now_ms(), text, step));
}

void MlflowRun::artifact(const fs::path& file, const std::string& folder) const {
  const fs::path to = folder_ / "artifacts" / folder;
  make_folder(to);
  std::error_code error;
  fs::copy_file(file, to / file.filename(), fs::copy_options::overwrite_existing, error);
  if (error)
    throw UserError(fmt::format("{}: cannot be copied to {}: {}", file.string(), to.string(), error.message()));
}

void MlflowRun::end(Status status) {
  has_ended_ = true;
  write_meta(status, now_ms());
}

fs::path mlflow_store(const std::string& uri, const fs::path& standard) {
  if (uri.empty()) return standard;
  if (uri.starts_with(kFileScheme)) {
    std::string path = uri.substr(kFileScheme.size());
    if (path.starts_with("//")) path = path.substr(std::min(path.find('/', 2), path.size()));  // behind the host
    return unescaped(path);
  }
  if (uri.find("://") == std::string::npos) return uri;
  throw ConfigError({{.file = "environment",
                      .key = "MLFLOW_TRACKING_URI",
                      .message = "is the address of a server or a database, and nothing is sent anywhere",
                      .expected = "a folder, or file:FOLDER; `mlflow` can bring it to a server later",
                      .found = uri}});
}

}  // namespace primus::train
