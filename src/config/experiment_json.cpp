// The run folder's experiment.json: what the planning half writes and the worker reads.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "config/experiment.hpp"
#include "config/key_table.hpp"
#include "config/value_json.hpp"

namespace primus::config {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "primus-experiment";
constexpr int kVersion = 1;

constexpr std::array<Layer, 6> kLayers = {Layer::kDefault,    Layer::kModulePreset, Layer::kModelPreset,
                                          Layer::kExperiment, Layer::kCommandLine,  Layer::kRule};

Layer layer_of(std::string_view name) {
  for (const Layer layer : kLayers) {
    if (layer_text(layer) == name) return layer;
  }
  throw UserError(fmt::format("unknown origin '{}'", name));
}

Value value_of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return {json.get<bool>()};
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return {json.get<std::int64_t>()};
    case Json::value_t::number_float:
      return {json.get<double>()};
    case Json::value_t::string:
      return {json.get<std::string>()};
    case Json::value_t::array: {
      Value::List list;
      for (const Json& item : json) list.push_back(value_of(item));
      return {list};
    }
    case Json::value_t::object: {
      Value::Map map;
      for (const auto& [key, item] : json.items()) map[key] = value_of(item);
      return {map};
    }
    default:
      return {};
  }
}

// One list for writing and reading, so that the two cannot drift apart.
constexpr std::array<std::pair<std::string_view, std::string Experiment::*>, 8> kTexts = {{
    {"work_group", &Experiment::work_group},
    {"user_name", &Experiment::user_name},
    {"exp_name", &Experiment::exp_name},
    {"workspace", &Experiment::workspace},
    {"module", &Experiment::module},
    {"framework", &Experiment::framework},
    {"module_preset", &Experiment::module_preset},
    {"model_preset", &Experiment::model_preset},
}};

Experiment read(const Json& json) {
  if (json.value("format", "") != kFormat || json.value("version", 0) != kVersion) {
    throw UserError(fmt::format("expected format {} version {}", kFormat, kVersion));
  }
  Experiment experiment;
  for (const auto& [name, member] : kTexts) experiment.*member = json.at(name).get<std::string>();
  for (const auto& [name, value] : json.at("env").items()) experiment.env[name] = value.get<std::string>();
  for (const auto& [key, setting] : json.at("settings").items()) {
    if (!find_key(key)) throw UserError(fmt::format("unknown key '{}'", key));
    experiment.set(
        key, value_of(setting.at("value")),
        {layer_of(setting.at("layer").get<std::string>()), setting.value("file", ""), setting.value("line", 0)});
  }
  return experiment;
}

}  // namespace

std::string Experiment::to_json() const {
  Json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  for (const auto& [name, member] : kTexts) json[std::string(name)] = this->*member;
  json["env"] = Json::object();
  for (const auto& [name, value] : env) json["env"][name] = value;
  json["settings"] = Json::object();
  for (const auto& [key, setting] : settings_) {
    Json entry;
    entry["value"] = json_of(setting.value);
    entry["layer"] = layer_text(setting.origin.layer);
    if (!setting.origin.file.empty()) entry["file"] = setting.origin.file;
    if (setting.origin.line > 0) entry["line"] = setting.origin.line;
    json["settings"][key] = std::move(entry);
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Experiment Experiment::from_json(std::string_view text) {
  try {
    return read(Json::parse(text));
  } catch (const Json::exception& error) {
    throw UserError(fmt::format("resolved experiment cannot be read: {}", error.what()), ExitCode::kWrongInput);
  } catch (const UserError& error) {
    throw UserError(fmt::format("resolved experiment cannot be read: {}", error.what()), ExitCode::kWrongInput);
  }
}

}  // namespace primus::config
