#include "train/initial_weights.hpp"

#include <cstring>
#include <filesystem>

#include "base/text.hpp"
#include "checkpoint/refuse.hpp"
#include "checkpoint/upcycle.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;
using config::Experiment;

/// Where weights come from, and the key that says so.
struct Start {
  std::string key;
  std::string folder;
  enum class Optimizer { kWanted, kLeftOut } optimizer = Optimizer::kWanted;
};

bool is_on(const Experiment& experiment, std::string_view key) {
  return !experiment.is_null(key) && experiment.get_bool(key);
}

bool holds_model(const fs::path& folder) {
  return checkpoint::is_checkpoint(folder) || fs::exists(folder / "config.json");
}

/// Megatron: `load` first; where it has nothing, the pretrained checkpoint, whose optimizer state is never wanted.
std::optional<Start> find_start(const Experiment& experiment, std::string& note) {
  const auto load = experiment.get_optional_string("load");
  const auto pretrained = experiment.get_optional_string("pretrained_checkpoint");
  const bool no_optimizer = is_on(experiment, "finetune") || is_on(experiment, "no_load_optim");
  if (load && (holds_model(*load) || (fs::exists(*load) && !fs::is_empty(*load)))) {
    return Start{"load", *load, no_optimizer ? Start::Optimizer::kLeftOut : Start::Optimizer::kWanted};
  }
  if (pretrained) return Start{"pretrained_checkpoint", *pretrained, Start::Optimizer::kLeftOut};
  if (!load) return std::nullopt;
  if (is_on(experiment, "exit_on_missing_checkpoint")) {
    checkpoint::refuse({.file = "experiment",
                        .key = "load",
                        .message = "there is no checkpoint, and exit_on_missing_checkpoint is on",
                        .expected = "a checkpoint or a Hugging Face folder",
                        .found = *load});
  }
  note = fmt::format("note: {} holds no checkpoint: starting from random weights", *load);
  return std::nullopt;
}

void refuse_missing_optimizer(const Start& start) {
  if (start.optimizer == Start::Optimizer::kLeftOut) return;
  checkpoint::refuse({.file = start.folder,
                      .key = start.key,
                      .message = "the checkpoint holds weights alone, and the optimizer's state is asked for",
                      .expected = "finetune: true, or no_load_optim: true"});
}

DType stored_type(at::ScalarType type) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (ops::to_aten(dtype) == type) return dtype;
  }
  PRIMUS_CHECK(false, "a parameter of type {}", c10::toString(type));
}

void copy_into(const checkpoint::Weights& weights, std::size_t index, at::Tensor& target) {
  const DType dtype = stored_type(target.scalar_type());
  at::Tensor host = target.is_cpu() ? target : at::empty(target.sizes(), target.options().device(at::kCPU));
  auto* bytes = static_cast<std::byte*>(host.data_ptr());
  const auto num_bytes = static_cast<std::size_t>(host.nbytes());
  std::size_t reached = 0;
  weights.stream(index, dtype, [&](std::span<const std::byte> part) {
    PRIMUS_CHECK(reached + part.size() <= num_bytes, "{} of {} bytes", reached + part.size(), num_bytes);
    std::memcpy(bytes + reached, part.data(), part.size());
    reached += part.size();
  });
  PRIMUS_CHECK(reached == num_bytes, "{} of {} bytes", reached, num_bytes);
  if (!target.is_cpu()) target.copy_(host);
}

void fill_upcycled(const checkpoint::StoredModel& dense, const Experiment& experiment, const model::ModelSpec& spec,
                   nn::ParameterStore& parameters) {
  const auto upcycled =
      checkpoint::upcycle(dense, spec, {.seed = static_cast<std::uint64_t>(experiment.get_int("seed"))});
  const checkpoint::UpcycleShape shape = checkpoint::upcycle_shape(dense.spec, spec, dense.folder.string());
  const std::int64_t granularity = experiment.get_int("moe_upcycling_granularity");
  if (granularity != shape.granularity) {
    checkpoint::refuse({.file = "experiment",
                        .key = "moe_upcycling_granularity",
                        .message = "is not what the dense model's width and moe_ffn_hidden_size say",
                        .expected = std::to_string(shape.granularity),
                        .found = std::to_string(granularity)});
  }
  fill(*upcycled, dense.folder.string(), parameters);
}

}  // namespace

void fill_by_name(const checkpoint::Weights& weights, nn::ParameterStore& parameters) {
  for (const auto& parameter : parameters.all()) {
    const auto found = weights.find(parameter->descriptor.name);
    PRIMUS_CHECK(found.has_value(), "no weights for {}", parameter->descriptor.name);
    copy_into(weights, *found, parameter->weight);
  }
}

void fill(const checkpoint::Weights& weights, const std::string& folder, nn::ParameterStore& parameters) {
  std::vector<model::ParameterDescriptor> wanted;
  for (const auto& parameter : parameters.all()) wanted.push_back(parameter->descriptor);
  checkpoint::check_parameters(weights, wanted, folder, "the experiment");
  fill_by_name(weights, parameters);
}

std::string load_initial_weights(const Experiment& experiment, const model::ModelSpec& spec,
                                 nn::ParameterStore& parameters) {
  std::string note;
  const std::optional<Start> start = find_start(experiment, note);
  const bool wants_upcycling = is_on(experiment, "moe_use_upcycling");
  if (!start) {
    if (wants_upcycling) {
      checkpoint::refuse({.file = "experiment",
                          .key = "moe_use_upcycling",
                          .message = "there is no dense checkpoint to start from",
                          .expected = "load, or pretrained_checkpoint"});
    }
    return note;
  }
  const checkpoint::StoredModel stored = checkpoint::open_model(start->folder);
  refuse_missing_optimizer(*start);
  std::string done = fmt::format("weights from {}", start->folder);
  if (wants_upcycling) {
    fill_upcycled(stored, experiment, spec, parameters);
    return done + fmt::format(", a dense model made into {} experts", spec.moe->router.num_experts);
  }
  fill(*stored.weights, start->folder, parameters);
  for (const std::string& left_out : stored.notes) done += "\n  " + left_out;
  return done;
}

}  // namespace primus::train
