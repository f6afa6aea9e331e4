#include "train/step_dumps.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "checkpoint/checkpoint_root.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/start_folder.hpp"

namespace primus::train {
namespace {

constexpr std::array<const char*, kNumDumps> kFolders = {"activations", "dgrads", "wgrads", "params",
                                                         "tokens_per_expert"};
constexpr std::array<const char*, kNumDumps> kKeys = {"save_activations_interval", "save_dgrads_interval",
                                                      "save_wgrads_interval", "save_params_interval",
                                                      "save_tokens_per_expert_interval"};

constexpr std::size_t index(Dump dump) {
  return static_cast<std::size_t>(dump);
}

}  // namespace

DumpOptions dump_options(const config::Experiment& experiment) {
  DumpOptions options;
  const std::optional<std::string> folder = checkpoint::save_folder(experiment);
  for (std::size_t i = 0; i < kNumDumps; ++i) {
    options.interval[i] = experiment.get_optional_int(kKeys[i]);
    PRIMUS_CHECK(folder || !options.interval[i], "{} without a folder", kKeys[i]);  // a rule refuses it
  }
  options.folder = folder.value_or("");
  return options;
}

bool StepDumps::is_due(Dump dump) const {
  const auto& interval = options_.interval[index(dump)];
  return interval && iteration_ % *interval == 0;
}

bool StepDumps::begin(std::int64_t iteration) {
  iteration_ = iteration;
  begin_step();
  return is_due(Dump::kActivations) || is_due(Dump::kInputGradients) || is_due(Dump::kWeightGradients) ||
         is_due(Dump::kParameters) || is_due(Dump::kExpertLoads);
}

void StepDumps::begin_step() {
  for (auto& tensors : tensors_) tensors.clear();
  loads_.clear();
}

void StepDumps::add(Dump dump, const std::string& name, const at::Tensor& values) {
  // A copy, since the step goes on in the same memory.
  tensors_[index(dump)].push_back({name, "", values.to(at::kCPU, values.scalar_type(), false, true).contiguous()});
}

void StepDumps::activation(const std::string& name, const at::Tensor& values) {
  if (is_due(Dump::kActivations)) {
    add(Dump::kActivations, fmt::format("micro_batch.{}.{}", micro_batch_, name), values);
  }
}

void StepDumps::gradient(const std::string& name, const at::Tensor& values) {
  if (is_due(Dump::kInputGradients)) {
    add(Dump::kInputGradients, fmt::format("micro_batch.{}.{}", micro_batch_, name), values);
  }
}

void StepDumps::routing(const nn::Routing& routing) {
  if (!is_due(Dump::kExpertLoads)) return;
  const at::Tensor counts_E = routing.num_tokens_E.to(at::kCPU, at::kLong);
  const auto* counts = counts_E.const_data_ptr<std::int64_t>();
  auto loads = std::ranges::find_if(
      loads_, [&](const Loads& l) { return l.layer == routing.layer && l.repetition == routing.repetition; });
  if (loads == loads_.end()) loads = loads_.insert(loads_.end(), {routing.layer, routing.repetition, {}});
  loads->by_micro_batch.emplace_back(counts, counts + counts_E.numel());
}

void StepDumps::gradients_ready() {
  if (!is_due(Dump::kWeightGradients)) return;
  for (const auto& parameter : parameters_.all()) {
    if (parameter->gradient().defined()) {
      add(Dump::kWeightGradients, parameter->descriptor.name, parameter->gradient());
    }
  }
}

std::string StepDumps::path(Dump dump, const char* ending) const {
  const std::filesystem::path folder = std::filesystem::path(options_.folder) / kFolders[index(dump)];
  make_folder(folder);
  return (folder / (checkpoint::iteration_folder(iteration_) + ending)).string();
}

void StepDumps::write_tensors(Dump dump) const {
  const std::vector<NamedTensor>& tensors = tensors_[index(dump)];
  if (tensors.empty()) return;
  std::vector<checkpoint::StoredTensor> stored;
  stored.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) {
    stored.push_back({.name = tensor.name,
                      .type = &element_type_of(tensor.values.scalar_type()),
                      .shape = tensor.values.sizes().vec()});
  }
  checkpoint::SafetensorsWriter writer(path(dump, ".safetensors"), std::move(stored));
  for (const NamedTensor& tensor : tensors) {
    source_of(tensor).stream([&](std::span<const std::byte> bytes) { writer.append(tensor.name, bytes); });
  }
  writer.finish();
}

void StepDumps::write_loads() const {
  if (loads_.empty()) return;
  std::string text;
  for (const Loads& loads : loads_) {
    nlohmann::ordered_json line = {{"iter", iteration_}, {"layer", loads.layer}, {"tpe", loads.by_micro_batch}};
    if (loads.repetition > 0) line["repetition"] = loads.repetition;
    text += line.dump() + "\n";
  }
  write_file(path(Dump::kExpertLoads, ".jsonl"), text);
}

void StepDumps::finish() {
  if (is_due(Dump::kParameters)) {
    for (const auto& parameter : parameters_.all()) {
      add(Dump::kParameters, parameter->descriptor.name, parameter->weight);
    }
  }
  for (const Dump dump : {Dump::kActivations, Dump::kInputGradients, Dump::kWeightGradients, Dump::kParameters}) {
    write_tensors(dump);
  }
  write_loads();
  begin_step();
}

}  // namespace primus::train
