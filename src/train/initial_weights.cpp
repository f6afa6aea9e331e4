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

DType stored_type(at::ScalarType type) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (ops::to_aten(dtype) == type) return dtype;
  }
  PRIMUS_CHECK(false, "a parameter of type {}", c10::toString(type));
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
  checkpoint::check_parameters(weights.parameters(), wanted, folder, "the experiment");
  fill_by_name(weights, parameters);
}

std::string load_weights(const std::string& folder, const Experiment& experiment, const model::ModelSpec& spec,
                         nn::ParameterStore& parameters) {
  const checkpoint::StoredModel stored = checkpoint::open_model(folder);
  std::string done = fmt::format("weights from {}", folder);
  if (!experiment.is_null("moe_use_upcycling") && experiment.get_bool("moe_use_upcycling")) {
    fill_upcycled(stored, experiment, spec, parameters);
    return done + fmt::format(", a dense model made into {} experts", spec.moe->router.num_experts);
  }
  fill(*stored.weights, folder, parameters);
  for (const std::string& left_out : stored.notes) done += "\n  " + left_out;
  return done;
}

}  // namespace primus::train
