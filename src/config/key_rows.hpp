#pragma once
// How rows of the key table are spelled in keys_<area>.cpp, and the sections that those files hold.
#include <string_view>

#include "config/key_table.hpp"

namespace primus::config::rows {

using enum KeyType;

/// Every allowed value does what it says.
constexpr Key works(std::string_view name, KeyType type, std::string_view default_text, std::string_view allowed,
                    std::string_view meaning, std::string_view note = "") {
  return {name, type, default_text, allowed, KeyState::kWorks, "", Impact::kMathematics, meaning, note};
}

/// The values in `working` do what they say, the other allowed ones are planned: they ask for what `unbuilt` names.
constexpr Key works_for(std::string_view name, KeyType type, std::string_view default_text, std::string_view allowed,
                        std::string_view working, std::string_view unbuilt, std::string_view meaning,
                        std::string_view note = "") {
  return {name,    type, default_text,     allowed, KeyState::kWorks, working, Impact::kMathematics,
          meaning, note, Reading::kAlways, unbuilt};
}

/// The same where the other values change only how the same numbers are computed: inherited, they yield with a note.
constexpr Key works_for_speed(std::string_view name, KeyType type, std::string_view default_text,
                              std::string_view allowed, std::string_view working, std::string_view unbuilt,
                              std::string_view meaning, std::string_view note = "") {
  return {name,    type, default_text,     allowed, KeyState::kWorks, working, Impact::kExecution,
          meaning, note, Reading::kAlways, unbuilt};
}

/// Not built; stops a real train away from its neutral values (`working`, else the default).
constexpr Key planned(std::string_view name, KeyType type, std::string_view default_text, std::string_view allowed,
                      std::string_view meaning, std::string_view unbuilt = "", std::string_view working = "",
                      std::string_view note = "") {
  return {name,    type, default_text,     allowed, KeyState::kPlanned, working, Impact::kMathematics,
          meaning, note, Reading::kAlways, unbuilt};
}

/// Not built, and changes only how the same numbers are computed: an inherited value is noted, an explicit one stops.
constexpr Key planned_speed(std::string_view name, KeyType type, std::string_view default_text,
                            std::string_view allowed, std::string_view meaning, std::string_view unbuilt = "",
                            std::string_view note = "") {
  return {name,    type, default_text,     allowed, KeyState::kPlanned, "", Impact::kExecution,
          meaning, note, Reading::kAlways, unbuilt};
}

/// Not built, and read only beside a switch (see read_beside.cpp): without effect while that is off, planned beside it.
constexpr Key planned_detail(std::string_view name, KeyType type, std::string_view default_text,
                             std::string_view allowed, std::string_view meaning, std::string_view unbuilt = "") {
  return {name,
          type,
          default_text,
          allowed,
          KeyState::kPlanned,
          "",
          Impact::kMathematics,
          meaning,
          "",
          Reading::kBesideASwitch,
          unbuilt};
}

/// Accepted, without meaning here; `why` is printed once when a user sets it.
constexpr Key no_effect(std::string_view name, KeyType type, std::string_view default_text, std::string_view allowed,
                        std::string_view meaning, std::string_view why) {
  return {name, type, default_text, allowed, KeyState::kNoEffect, "", Impact::kExecution, meaning, why};
}

std::span<const Key> structure_keys();
std::span<const Key> position_keys();
std::span<const Key> attention_keys();
std::span<const Key> latent_attention_keys();
std::span<const Key> linear_attention_keys();
std::span<const Key> deepseek_v4_keys();
std::span<const Key> kimi_k3_keys();
std::span<const Key> mixed_layer_keys();
std::span<const Key> tokenizer_keys();
std::span<const Key> init_and_fusion_keys();
std::span<const Key> moe_keys();
std::span<const Key> dispatch_keys();
std::span<const Key> turbo_keys();
std::span<const Key> parallel_keys();
std::span<const Key> sharding_keys();
std::span<const Key> communication_keys();
std::span<const Key> pipeline_keys();
std::span<const Key> offload_keys();
std::span<const Key> graph_keys();
std::span<const Key> recompute_keys();
std::span<const Key> precision_keys();
std::span<const Key> low_precision_keys();
std::span<const Key> training_keys();
std::span<const Key> optimizer_keys();
std::span<const Key> learning_rate_keys();
std::span<const Key> data_keys();
std::span<const Key> checkpoint_keys();
std::span<const Key> exit_keys();
std::span<const Key> restart_keys();
std::span<const Key> logging_keys();
std::span<const Key> profile_keys();
std::span<const Key> runtime_keys();
std::span<const Key> fine_tuning_keys();
std::span<const Key> distillation_keys();
std::span<const Key> image_keys();
std::span<const Key> retrieval_keys();
std::span<const Key> serving_keys();
std::span<const Key> reinforcement_keys();

}  // namespace primus::config::rows
