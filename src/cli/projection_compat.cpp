#include "cli/projection_compat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "cli/projection_report.hpp"
#include "projection/compat_blog.hpp"
#include "projection/compat_primus.hpp"

namespace primus::cli {
namespace {

double gib(double bytes) {
  return bytes / 0x1p30;
}

std::int64_t global_batch(const Projected& projected) {
  return projected.resolution.experiment.get_int("global_batch_size");
}

int largest_primus_rank(const Projected& projected) {
  int largest = 0;
  double most = 0.0;
  for (int rank = 0; rank < projected.inputs.stages.num_ranks(); ++rank) {
    const double total = projection::primus_memory(projected.inputs, rank, global_batch(projected)).total();
    if (total <= most) continue;
    most = total;
    largest = rank;
  }
  return largest;
}

double largest_primus_total(const Projected& projected) {
  return projection::primus_memory(projected.inputs, largest_primus_rank(projected), global_batch(projected)).total();
}

std::string verdict_line(double total, const Device& device) {
  return device ? verdict(static_cast<std::int64_t>(total), *device) + "\n" : "";
}

void add_verdict(double total, const Device& device, Json& json) {
  if (!device) return;
  json["device"] = {{"name", device->name}, {"memory_bytes", device->memory_bytes}};
  json["fits"] = total <= static_cast<double>(device->memory_bytes);
}

}  // namespace

std::vector<Figure> blog_figures(const Projected& projected) {
  const projection::BlogMemory memory = projection::blog_memory(projected.inputs);
  const auto figure = [](std::string title, std::string field, double bytes) {
    return Figure{std::move(title), std::move(field), bytes, fmt::format("{:.1f}", bytes / 1e9)};
  };
  return {figure("param", "parameter_bytes", memory.parameters),
          figure("grad", "gradient_bytes", memory.gradients),
          figure("main param", "main_parameter_bytes", memory.main_parameters),
          figure("adam", "moment_bytes", memory.moments),
          figure("activation", "activation_bytes", memory.activations),
          figure("total", "total_bytes", memory.total())};
}

std::vector<Figure> primus_figures(const Projected& projected) {
  const int rank = largest_primus_rank(projected);
  const projection::PrimusMemory memory = projection::primus_memory(projected.inputs, rank, global_batch(projected));
  const auto bytes = [](std::string title, std::string field, double value) {
    return Figure{std::move(title), std::move(field), value, fmt::format("{:.2f}", gib(value))};
  };
  return {{"stage", "pipeline_rank", static_cast<double>(rank), std::to_string(rank)},
          {"parameters", "parameters", memory.num_parameters,
           format_count(static_cast<std::int64_t>(memory.num_parameters))},
          {"bytes/parameter", "bytes_per_parameter", memory.bytes_per_parameter,
           fmt::format("{:.3f}", memory.bytes_per_parameter)},
          bytes("static", "static_bytes", memory.resident()),
          bytes("activations", "activation_bytes", memory.activations),
          bytes("total", "total_bytes", memory.total())};
}

std::string primus_text(const Projected& projected, const Device& device) {
  std::string text = fmt::format("memory of {} as the original's projection counts it\n", projected.name);
  text += fmt::format("  {} parameters in all, vocabulary 100,352; GiB\n",
                      format_count(static_cast<std::int64_t>(projection::primus_total_parameters(projected.inputs))));
  text += fmt::format("{:>6} {:>16} {:>15} {:>10} {:>12} {:>9}\n", "rank", "parameters", "bytes/parameter", "static",
                      "activations", "total");
  for (int rank = 0; rank < projected.inputs.stages.num_ranks(); ++rank) {
    const projection::PrimusMemory memory = projection::primus_memory(projected.inputs, rank, global_batch(projected));
    text += fmt::format("{:>6} {:>16} {:>15.3f} {:>10.2f} {:>12.2f} {:>9.2f}\n", rank,
                        format_count(static_cast<std::int64_t>(memory.num_parameters)), memory.bytes_per_parameter,
                        gib(memory.resident()), gib(memory.activations), gib(memory.total()));
  }
  return text + verdict_line(largest_primus_total(projected), device) +
         "what it simplifies, and how ours differs: docs/projection.md\n";
}

Json primus_json(const Projected& projected, const Device& device) {
  Json json = {{"ok", true}, {"experiment", projected.name}, {"accounting", "primus"}};
  json["parameters"] = static_cast<std::int64_t>(projection::primus_total_parameters(projected.inputs));
  json["ranks"] = Json::array();
  for (int rank = 0; rank < projected.inputs.stages.num_ranks(); ++rank) {
    const projection::PrimusMemory memory = projection::primus_memory(projected.inputs, rank, global_batch(projected));
    json["ranks"].push_back({{"pipeline_rank", rank},
                             {"parameters", memory.num_parameters},
                             {"bytes_per_parameter", memory.bytes_per_parameter},
                             {"static_bytes", memory.resident()},
                             {"activation_bytes", memory.activations},
                             {"total_bytes", memory.total()}});
  }
  add_verdict(largest_primus_total(projected), device, json);
  return json;
}

std::string blog_text(const Projected& projected, const Device& device) {
  const projection::BlogMemory memory = projection::blog_memory(projected.inputs);
  std::string text = fmt::format("memory of {} as the deep-dive's figures count it (10^9 bytes)\n", projected.name);
  const auto line = [&](std::string_view label, double bytes) {
    text += fmt::format("  {:<18} {:>8.1f}\n", label, bytes / 1e9);
  };
  line("param", memory.parameters);
  line("grad", memory.gradients);
  line("main param", memory.main_parameters);
  line("adam", memory.moments);
  line("activation", memory.activations);
  line("total", memory.total());
  return text + verdict_line(memory.total(), device) + "what it leaves out, and how ours differs: docs/projection.md\n";
}

Json blog_json(const Projected& projected, const Device& device) {
  const projection::BlogMemory memory = projection::blog_memory(projected.inputs);
  Json json = {{"ok", true},
               {"experiment", projected.name},
               {"accounting", "blog"},
               {"parameter_bytes", memory.parameters},
               {"gradient_bytes", memory.gradients},
               {"main_parameter_bytes", memory.main_parameters},
               {"moment_bytes", memory.moments},
               {"activation_bytes", memory.activations},
               {"total_bytes", memory.total()}};
  add_verdict(memory.total(), device, json);
  return json;
}

}  // namespace primus::cli
