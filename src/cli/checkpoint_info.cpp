// checkpoint info, verify: what a folder of weights holds, and whether it is whole.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/checkpoint_root.hpp"
#include "checkpoint/damage.hpp"
#include "cli/app.hpp"
#include "cli/checkpoint_common.hpp"
#include "cli/config_common.hpp"
#include "cli/terminal.hpp"

namespace primus::cli {
namespace {

namespace fs = std::filesystem;

struct FolderWords {
  std::string folder;
  std::string format = "text";
  bool tensors = false;
};

void add_options(CLI::App& app, FolderWords& read) {
  app.add_option("DIR", read.folder, "A checkpoint, or a Hugging Face model")->required()->type_name("DIR");
  add_format_option(app, read.format, {"text", "json"});
}

void add_info_options(CLI::App& app, FolderWords& read) {
  add_options(app, read);
  app.add_flag("--tensors", read.tensors, "Each tensor by itself");
}

/// The parameters as stored tensors, for counting and for listing.
std::vector<checkpoint::StoredTensor> stored_parameters(const checkpoint::Weights& weights) {
  std::vector<checkpoint::StoredTensor> tensors;
  for (std::size_t i = 0; i < weights.parameters().size(); ++i) {
    tensors.push_back({.name = weights.parameters()[i].name,
                       .type = &checkpoint::element_type(weights.dtype(i)),
                       .shape = weights.parameters()[i].shape});
  }
  return tensors;
}

struct Info {
  std::string kind;    // "checkpoint" or "hugging face"
  std::string folder;  // of the checkpoint, where the words named a folder of several
  std::string architecture;
  std::optional<checkpoint::CheckpointIndex> index;  // of a checkpoint
  std::vector<std::int64_t> steps;                   // beside it
  std::vector<checkpoint::StoredTensor> tensors;
  std::int64_t num_elements = 0;
  std::int64_t num_bytes = 0;
  std::vector<std::string> notes;
};

Info describe(const fs::path& folder) {
  const checkpoint::StoredModel stored = checkpoint::open_model(folder);
  Info info;
  info.kind = "hugging face";
  info.folder = stored.folder.string();
  if (checkpoint::is_checkpoint(stored.folder)) {
    info.kind = "checkpoint";
    info.index = checkpoint::read_index(stored.folder);
    if (stored.folder != folder) info.steps = checkpoint::CheckpointRoot(folder).iterations();
  }
  info.architecture = architecture_of(stored);
  info.tensors = stored_parameters(*stored.weights);
  info.notes = stored.notes;
  for (const checkpoint::StoredTensor& tensor : info.tensors) {
    info.num_bytes += checkpoint::tensor_bytes(*tensor.type, tensor.shape);
    info.num_elements += checkpoint::tensor_bytes(*tensor.type, tensor.shape) * 8 / tensor.type->num_bits;
  }
  return info;
}

/// Bytes of what training adds, by kind.
std::map<std::string, std::int64_t> state_bytes(const checkpoint::CheckpointIndex& index) {
  std::map<std::string, std::int64_t> bytes;
  for (const checkpoint::GlobalTensor& tensor : index.tensors) {
    if (tensor.kind != checkpoint::kWeight) bytes[tensor.kind] += checkpoint::tensor_bytes(*tensor.type, tensor.shape);
  }
  return bytes;
}

Json training_json(const checkpoint::CheckpointIndex& index) {
  Json json = {{"consumed_samples", index.consumed_samples},
               {"schedule_samples", index.training->schedule_samples},
               {"loss_scale", index.training->loss_scale.scale},
               {"schedule", index.training->schedule}};
  json["optimizer_steps"] = nullptr;
  if (index.training->optimizer_steps) json["optimizer_steps"] = *index.training->optimizer_steps;
  json["state_bytes"] = state_bytes(index);
  return json;
}

Json info_json(const Info& info, const FolderWords& read) {
  Json json = {{"ok", true}, {"folder", read.folder}, {"kind", info.kind}, {"architecture", info.architecture}};
  if (info.index) {
    json["iteration"] = info.index->iteration;
    json["made_by"] = info.index->made_by;
  }
  if (!info.steps.empty()) {
    json["checkpoint"] = info.folder;
    json["iterations"] = info.steps;
  }
  if (info.index && info.index->training) json["training"] = training_json(*info.index);
  json["parameters"] = info.num_elements;
  json["bytes"] = info.num_bytes;
  json["types"] = types_text(info.tensors);
  json["notes"] = info.notes;
  json["num_tensors"] = info.tensors.size();
  if (!read.tensors) return json;
  json["tensors"] = Json::array();
  for (const checkpoint::StoredTensor& tensor : info.tensors)
    json["tensors"].push_back({{"name", tensor.name}, {"dtype", tensor.type->name}, {"shape", tensor.shape}});
  return json;
}

void print_steps(const Info& info) {
  std::string steps;
  for (const std::int64_t step : info.steps) steps += (steps.empty() ? "" : ", ") + std::to_string(step);
  fmt::print("  folder        {}; there are steps {}\n", info.folder, steps);
}

void print_training(const checkpoint::CheckpointIndex& index) {
  const checkpoint::TrainingState& training = *index.training;
  fmt::print("  training      {} consumed, {}\n", counted(index.consumed_samples, "sample"),
             training.optimizer_steps ? counted(*training.optimizer_steps, "update") + " done"
                                      : "saved without the optimizer's state");
  for (const auto& [kind, bytes] : state_bytes(index)) fmt::print("  {:<20} {}\n", kind, format_bytes(bytes));
}

void print_info(const Info& info, const FolderWords& read) {
  fmt::print("{}\n", coloured(fmt::format("{} {}", info.kind, read.folder), Colour::kBold, stdout));
  if (!info.architecture.empty()) fmt::print("  architecture  {}\n", info.architecture);
  if (info.index) fmt::print("  made by       {}, iteration {}\n", info.index->made_by, info.index->iteration);
  if (!info.steps.empty()) print_steps(info);
  fmt::print("  parameters    {} ({})\n", format_count(info.num_elements),
             format_short_count(static_cast<double>(info.num_elements)));
  fmt::print("  stored        {}, {} as {}\n", counted(std::ssize(info.tensors), "tensor"),
             format_bytes(info.num_bytes), types_text(info.tensors));
  if (info.index && info.index->training) print_training(*info.index);
  for (const std::string& note : info.notes) fmt::print("{} {}\n", coloured("note:", Colour::kYellow, stdout), note);
  if (!read.tensors) return;
  for (const checkpoint::StoredTensor& tensor : info.tensors)
    fmt::print("  {:<64} {:<5} {}\n", tensor.name, tensor.type->name, checkpoint::shape_text(tensor.shape));
}

bool wants_json(const FolderWords& read, const LaunchOptions& launch) {
  return format_of(read.format) == Format::kJson || launch.format == Format::kJson;
}

int run_info(std::span<const std::string> words, const LaunchOptions& launch) {
  FolderWords read;
  CLI::App app("Say what a folder of weights holds. No weight is read.", "primus-cli checkpoint info");
  add_info_options(app, read);
  app.footer("example\n  primus-cli checkpoint info ckpt/mixtral --tensors");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const Info info = describe(read.folder);
  if (wants_json(read, launch)) {
    print_json(info_json(info, read));
  } else {
    print_info(info, read);
  }
  return 0;
}

/// The same of a checkpoint of ours, with what training adds.
std::vector<Problem> damage_of_checkpoint(const fs::path& folder) {
  std::vector<Problem> problems;
  ProgressBar bar("verify");
  try {
    const checkpoint::CheckpointReader reader(folder);
    for (const std::string& message :
         find_damage(reader, [&](std::int64_t done, std::int64_t all) { bar.show(done, all); }))
      problems.push_back({.message = message});
  } catch (const checkpoint::DamagedError& error) {
    problems.push_back({.message = error.what()});
  }
  return problems;
}

/// Every byte read once; what is damaged, tensor by tensor.
std::vector<Problem> damage(const checkpoint::StoredModel& stored) {
  std::vector<Problem> problems;
  std::int64_t all = 0;
  std::int64_t done = 0;
  const checkpoint::Weights& weights = *stored.weights;
  for (std::size_t i = 0; i < weights.parameters().size(); ++i)
    all += weights.parameters()[i].num_elements() * size_bytes(weights.dtype(i));
  ProgressBar bar("verify");
  for (std::size_t i = 0; i < weights.parameters().size(); ++i) {
    try {
      weights.stream(i, weights.dtype(i), [&](std::span<const std::byte> bytes) {
        done += std::ssize(bytes);
        bar.show(done, all);
      });
    } catch (const UserError& error) {
      problems.push_back({.message = error.what()});
    }
  }
  return problems;
}

int run_verify(std::span<const std::string> words, const LaunchOptions& launch) {
  FolderWords read;
  CLI::App app("Read a whole folder of weights: headers, shapes, coverage and every checksum.",
               "primus-cli checkpoint verify");
  add_options(app, read);
  app.footer(
      "A Hugging Face model has no checksums: of it, headers, names, shapes and readability are checked.\n"
      "exit code  0 whole, 1 damaged, 2 no such folder or not what it should be\n"
      "example\n  primus-cli checkpoint verify ckpt/mixtral");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const Format format = wants_json(read, launch) ? Format::kJson : Format::kText;
  const fs::path within = checkpoint::checkpoint_within(read.folder);
  const bool has_checksums = checkpoint::is_checkpoint(within);
  std::vector<Problem> problems;
  std::int64_t num_tensors = 0;
  if (has_checksums) problems = damage_of_checkpoint(within);
  // What is whole must also be a model.
  if (problems.empty()) {
    const checkpoint::StoredModel stored = checkpoint::open_model(read.folder);
    if (!has_checksums) problems = damage(stored);
    num_tensors =
        has_checksums ? std::ssize(checkpoint::read_index(within).tensors) : std::ssize(stored.weights->parameters());
  }
  if (!problems.empty()) {
    print_failure(problems, ExitCode::kFailedWhileRunning, format);
    return static_cast<int>(ExitCode::kFailedWhileRunning);
  }
  if (format == Format::kJson) {
    print_json(Json{{"ok", true}, {"folder", read.folder}, {"num_tensors", num_tensors}, {"checksums", has_checksums}});
  } else {
    fmt::print("{} is whole: {}{}\n", read.folder, counted(num_tensors, has_checksums ? "tensor" : "parameter"),
               has_checksums ? ", every checksum fits" : ", without checksums");
  }
  return 0;
}

}  // namespace

const Command kCheckpointInfo = {"checkpoint",
                                 "info",
                                 "DIR",
                                 "what a folder of weights holds",
                                 Starts::kNothing,
                                 Rest::kRefuse,
                                 "folder",
                                 [](CLI::App& app) {
                                   static FolderWords unused;
                                   add_info_options(app, unused);
                                 },
                                 run_info};

const Command kCheckpointVerify = {"checkpoint",
                                   "verify",
                                   "DIR",
                                   "whether it is whole",
                                   Starts::kNothing,
                                   Rest::kRefuse,
                                   "folder",
                                   [](CLI::App& app) {
                                     static FolderWords unused;
                                     add_options(app, unused);
                                   },
                                   run_verify};

}  // namespace primus::cli
