#include "train/routing_trace.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "checkpoint/safetensors.hpp"
#include "train/log_lines.hpp"
#include "train/state_tensors.hpp"

namespace primus::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRank = 0;  // a run of one process

std::string_view bytes_of(const at::Tensor& host) {
  return {static_cast<const char*>(host.const_data_ptr()), static_cast<std::size_t>(host.nbytes())};
}

/// bf16 whatever it was: that is what readers of such traces expect.
at::Tensor traced(const at::Tensor& values) {
  return values.to(at::kCPU, at::kBFloat16).contiguous();
}

void resize(const std::filesystem::path& path, std::int64_t num_bytes) {
  std::error_code failure;
  std::filesystem::resize_file(path, static_cast<std::uintmax_t>(num_bytes), failure);
  if (failure) throw UserError(fmt::format("{}: cannot be cut: {}", path.string(), failure.message()));
}

}  // namespace

std::optional<RoutingTraceOptions> routing_trace_options(const config::Experiment& experiment, int num_layers) {
  const auto folder = experiment.get_optional_string("moe_routing_trace_path");
  if (!folder) return std::nullopt;
  const auto capture = [&](const char* key) {
    return experiment.get_bool(key) ? RoutingTraceOptions::Capture::kYes : RoutingTraceOptions::Capture::kNo;
  };
  return RoutingTraceOptions{.folder = *folder,
                             .num_steps = experiment.get_optional_int("moe_routing_trace_max_training_iters"),
                             .logits = capture("moe_routing_trace_capture_logits"),
                             .hidden_states = capture("moe_routing_trace_capture_hidden_states"),
                             .weights = capture("moe_routing_trace_dump_weights"),
                             .num_layers = num_layers};
}

RoutingTrace::RoutingTrace(RoutingTraceOptions options, const nn::ParameterStore& parameters, std::int64_t first_step)
    : options_(std::move(options)), parameters_(parameters), first_step_(first_step) {
  make_folder(options_.folder);
  lines_.path = path("router_trace_rank0.jsonl");
  logits_.path = path("logits_rank0.bin");
  hidden_states_.path = path("hidden_states_rank0.bin");
  if (first_step > 0 && std::filesystem::exists(lines_.path)) {
    go_on_behind(first_step);
    return;
  }
  write_file(lines_.path, "");
  if (options_.logits == RoutingTraceOptions::Capture::kYes) write_file(logits_.path, "");
  if (options_.hidden_states == RoutingTraceOptions::Capture::kYes) write_file(hidden_states_.path, "");
}

void RoutingTrace::go_on_behind(std::int64_t first_step) {
  std::string kept;
  for (const std::string& text : split(read_file(lines_.path), '\n')) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("step") || line["step"].get<std::int64_t>() >= first_step) continue;
    first_step_ = std::min(first_step_, line["step"].get<std::int64_t>());
    kept += text + "\n";
    const auto end = [&](const char* offset, const char* bytes) {
      return line.contains(offset) ? line[offset].get<std::int64_t>() + line[bytes].get<std::int64_t>() : 0;
    };
    logits_.num_bytes = std::max(logits_.num_bytes, end("logit_offset", "logit_bytes"));
    hidden_states_.num_bytes = std::max(hidden_states_.num_bytes, end("hs_offset", "hs_bytes"));
  }
  write_file(lines_.path, kept);
  for (const File* file : {&logits_, &hidden_states_}) {
    if (file->num_bytes > 0) resize(file->path, file->num_bytes);
  }
}

bool RoutingTrace::begin(std::int64_t step) {
  step_ = step;
  begin_step();
  if (step == first_step_ && options_.weights == RoutingTraceOptions::Capture::kYes) write_weights();
  return !options_.num_steps || step < first_step_ + *options_.num_steps;
}

void RoutingTrace::begin_step() {
  for (File* file : {&lines_, &logits_, &hidden_states_}) file->added.clear();
}

void RoutingTrace::routing(const nn::Routing& routing) {
  const at::Tensor index_TK = routing.index_TK.to(at::kCPU, at::kInt).contiguous();
  const bool is_depth = routing.layer >= options_.num_layers;
  Json line = {{"step", step_}, {"stage", "pre_dispatch"}, {"block", is_depth ? "mtp" : "decoder"}};
  line["layer"] = is_depth ? 0 : routing.layer;
  line["rank"] = kRank;
  line["micro_batch"] = micro_batch_;
  line["num_tokens"] = index_TK.size(0);
  line["topk"] = index_TK.size(1);
  if (is_depth) line["mtp_idx"] = routing.layer - options_.num_layers + routing.repetition;
  const auto* index = index_TK.const_data_ptr<std::int32_t>();
  std::vector<std::vector<std::int32_t>> rows;
  for (std::int64_t t = 0; t < index_TK.size(0); ++t) {
    rows.emplace_back(index + t * index_TK.size(1), index + (t + 1) * index_TK.size(1));
  }
  line["top_indices"] = rows;
  const auto attach = [&](RoutingTraceOptions::Capture capture, const at::Tensor& values, File& file,
                          const std::string& name) {
    if (capture == RoutingTraceOptions::Capture::kNo) return;
    const at::Tensor host = traced(values);
    line[name + "_offset"] = file.num_bytes + std::ssize(file.added);
    line[name + "_bytes"] = host.nbytes();
    line[name + "_shape"] = host.sizes().vec();
    file.added += bytes_of(host);
  };
  attach(options_.hidden_states, routing.x_TH, hidden_states_, "hs");
  attach(options_.logits, routing.logits_TE, logits_, "logit");
  lines_.added += line.dump() + "\n";
}

void RoutingTrace::flush(File& file) {
  if (file.added.empty()) return;
  append_to_file(file.path, file.added);
  file.num_bytes += std::ssize(file.added);
  file.added.clear();
}

void RoutingTrace::finish() {
  // The lines last: they name bytes that are then there.
  for (File* file : {&logits_, &hidden_states_, &lines_}) flush(*file);
}

void RoutingTrace::write_weights() const {
  std::vector<NamedTensor> tensors;
  std::vector<checkpoint::StoredTensor> stored;
  for (const auto& parameter : parameters_.all()) {
    if (parameter->descriptor.name.find(".mlp.router.") == std::string::npos) continue;
    tensors.push_back({parameter->descriptor.name, "", parameter->weight.to(at::kCPU, at::kFloat).contiguous()});
    stored.push_back({.name = tensors.back().name,
                      .type = &element_type_of(at::kFloat),
                      .shape = tensors.back().values.sizes().vec()});
  }
  checkpoint::SafetensorsWriter writer(path("router_state_rank0.safetensors").string(), std::move(stored));
  for (const NamedTensor& tensor : tensors) {
    source_of(tensor).stream([&](std::span<const std::byte> bytes) { writer.append(tensor.name, bytes); });
  }
  writer.finish();
}

}  // namespace primus::train
