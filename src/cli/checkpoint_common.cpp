#include "cli/checkpoint_common.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/config_common.hpp"
#include "cli/terminal.hpp"
#include "config/parse.hpp"
#include "config/resolve.hpp"

namespace primus::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(std::string key, std::string message, std::string expected, std::string found) {
  throw ConfigError({{.file = "command line",
                      .key = std::move(key),
                      .message = std::move(message),
                      .expected = std::move(expected),
                      .found = std::move(found)}});
}

/// "5GB", "200MB", "4096": powers of ten, as Hugging Face counts.
std::int64_t shard_bytes(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, std::int64_t>, 3> kUnits = {
      {{"GB", 1'000'000'000}, {"MB", 1'000'000}, {"KB", 1'000}}};
  std::string_view number = text;
  std::int64_t unit = 1;
  for (const auto& [name, bytes] : kUnits) {
    if (!number.ends_with(name)) continue;
    number.remove_suffix(name.size());
    unit = bytes;
    break;
  }
  const auto count = config::parse_int(number);
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  if (!count || *count < 1 || *count > kMost / unit)
    refuse("--max-shard-size", "is no size", "a size such as 5GB", text);
  return *count * unit;
}

/// A file that is there as long as somebody needs its name.
class ShortLivedFile {
 public:
  explicit ShortLivedFile(const std::string& content)
      : path_(fs::temp_directory_path() / fmt::format("primus-checkpoint-{}.yaml", ::getpid())) {
    write_file(path_, content);
  }
  ShortLivedFile(const ShortLivedFile&) = delete;
  ShortLivedFile& operator=(const ShortLivedFile&) = delete;
  ~ShortLivedFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Json report_json(const ConvertReport& report) {
  Json json = {{"ok", true}, {"command", report.command}, {"from", report.options->from}, {"to", report.options->to}};
  json["done"] = report.is_done;
  json["architecture"] = report.architecture;
  json["tensors"] = report.plan->tensors.size();
  json["bytes"] = report.plan->num_bytes;
  json["types"] = types_text(report.plan->tensors);
  json["files"] = report.plan->shards.files;
  json["notes"] = report.notes;
  return json;
}

}  // namespace

void add_convert_options(CLI::App& app, ConvertOptions& options) {
  app.add_option("--from", options.from, "Folder to read")->required()->type_name("DIR");
  add_write_options(app, options);
}

void add_write_options(CLI::App& app, ConvertOptions& options) {
  app.add_option("--to", options.to, "Folder to make; it must not be there yet")->required()->type_name("DIR");
  app.add_option("--dtype", options.dtype, "Type of the weights; keep: as they are stored")
      ->type_name("keep|fp32|bf16|fp16")
      ->capture_default_str()
      ->check([](const std::string& text) {
        constexpr std::array<std::string_view, 4> kNames = {"keep", "fp32", "bf16", "fp16"};
        return std::ranges::find(kNames, text) != kNames.end() ? "" : "expected keep, fp32, bf16 or fp16";
      });
  app.add_option("--max-shard-size", options.shard_size, "Largest file")->type_name("SIZE")->capture_default_str();
  app.add_flag("--dry-run", options.dry_run, "Check everything, say what would be written, and stop");
  add_format_option(app, options.format, {"text", "json"});
}

checkpoint::WriteOptions write_options(const ConvertOptions& options) {
  checkpoint::WriteOptions write;
  write.to = options.to;
  write.shard_bytes = shard_bytes(options.shard_size);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (options.dtype == name(dtype)) write.dtype = dtype;
  }
  return write;
}

ResolvedModel resolve_model(config::Experiment experiment, const std::string& name, const std::string& made_by) {
  experiment.exp_name = name;
  ResolvedModel resolved;
  resolved.run.made_by = made_by;
  resolved.run.experiment_yaml = config::to_yaml(experiment);
  const ShortLivedFile file(resolved.run.experiment_yaml);
  const config::Resolution resolution = config::resolve({file.path(), {}, config::Purpose::kPlan, std::nullopt});
  resolved.experiment = resolution.experiment;
  // The settings come from the model's own file, not from one that is gone a moment later.
  for (const auto& [key, setting] : resolution.experiment.settings()) {
    if (setting.origin.file != file.path().string()) continue;
    resolved.experiment.set(key, setting.value, experiment.setting(key).origin);
  }
  resolved.run.experiment_json = resolved.experiment.to_json();
  return resolved;
}

std::string architecture_of(const checkpoint::StoredModel& stored) {
  return stored.source_config ? stored.source_config->value("model_type", "") : "";
}

std::string types_text(const std::vector<checkpoint::StoredTensor>& tensors) {
  std::map<std::string_view, std::int64_t> bytes;
  for (const checkpoint::StoredTensor& tensor : tensors)
    bytes[tensor.type->name] += checkpoint::tensor_bytes(*tensor.type, tensor.shape);
  std::vector<std::pair<std::int64_t, std::string_view>> sorted;
  for (const auto& [type, size] : bytes) sorted.emplace_back(size, type);
  std::ranges::sort(sorted, std::greater<>());
  std::string text;
  for (const auto& [size, type] : sorted) text += (text.empty() ? "" : ", ") + std::string(type);
  return text;
}

void print_report(const ConvertReport& report, const LaunchOptions& launch) {
  if (format_of(report.options->format) == Format::kJson || launch.format == Format::kJson) {
    print_json(report_json(report));
    return;
  }
  for (const std::string& note : report.notes) fmt::print("{} {}\n", coloured("note:", Colour::kYellow, stdout), note);
  fmt::print("{} {} -> {}: {}, {} in {} ({})\n", report.is_done ? "wrote" : "would write", report.options->from,
             report.options->to, counted(std::ssize(report.plan->tensors), "tensor"),
             format_bytes(report.plan->num_bytes), counted(std::ssize(report.plan->shards.files), "file"),
             types_text(report.plan->tensors));
}

}  // namespace primus::cli
