// The run folder's experiment.json: what the planning half writes and the worker reads.
#include <fmt/format.h>

#include <array>
#include <cstdint>
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

/// Two builds of one version may know different keys, so the names of all keys are part of what a build is.
std::string this_build() {
  constexpr std::uint32_t kOffset = 2166136261U;  // FNV-1a, 32 bits
  constexpr std::uint32_t kPrime = 16777619U;
  std::uint32_t hash = kOffset;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      for (const char c : key.name) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
      hash = (hash ^ static_cast<std::uint32_t>(key.type)) * kPrime;
    }
  }
  return fmt::format("{} (keys {:08x})", PRIMUS_VERSION, hash);
}

/// Who wrote the text, if another build did, and what to do about it.
std::string other_build(const Json& json) {
  const bool has_writer = json.is_object() && json.contains("writer") && json["writer"].is_string();
  const std::string writer = has_writer ? json["writer"].get<std::string>() : "an older build";
  if (writer == this_build()) return "";
  return fmt::format(
      "; it was written by {}, this is {}: let primus-cli and primus-worker of one build run it (is PRIMUS_WORKER "
      "set?), "
      "or have it written anew by `primus-cli train pretrain`",
      writer, this_build());
}

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
  json["writer"] = this_build();
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
  Json json;
  const auto refuse = [](std::string_view why, const std::string& more) {
    return UserError(fmt::format("resolved experiment cannot be read: {}{}", why, more), ExitCode::kWrongInput);
  };
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    throw refuse(error.what(), "");
  }
  try {
    return read(json);
  } catch (const Json::exception& error) {
    throw refuse(error.what(), other_build(json));
  } catch (const UserError& error) {
    throw refuse(error.what(), other_build(json));
  }
}

}  // namespace primus::config
