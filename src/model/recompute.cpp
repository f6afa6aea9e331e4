#include "model/recompute.hpp"

#include <algorithm>
#include <span>

#include "base/error.hpp"
#include "base/text.hpp"
#include "config/parse.hpp"

namespace primus::model {
namespace {

using config::Experiment;

constexpr RecomputeModule kAllModules[] = {RecomputeModule::kCoreAttention, RecomputeModule::kMlaUpProjection,
                                           RecomputeModule::kMoeActivation, RecomputeModule::kLayerNorm,
                                           RecomputeModule::kMlp,           RecomputeModule::kMoe,
                                           RecomputeModule::kSharedExperts};

/// Saved tensors that a module makes again, by their declared names. None: the module's output is never kept here.
std::span<const std::string_view> tensors_of(RecomputeModule module) {
  static constexpr std::string_view kCoreAttention[] = {"context", "log_sum_exp"};
  static constexpr std::string_view kMlaUpProjection[] = {"query", "key", "value"};
  static constexpr std::string_view kSharedExperts[] = {"shared_pre_activation"};
  switch (module) {
    case RecomputeModule::kCoreAttention:
      return kCoreAttention;
    case RecomputeModule::kMlaUpProjection:
      return kMlaUpProjection;
    case RecomputeModule::kSharedExperts:
      return kSharedExperts;
    default:
      return {};
  }
}

void mark_all(SavedDeclaration& declaration) {
  for (SavedTensor& tensor : declaration.tensors) {
    if (tensor.lifetime != Lifetime::kPinned) tensor.lifetime = Lifetime::kRemade;
  }
  for (SavedDeclaration& child : declaration.children) mark_all(child);
}

void mark_tensors(RecomputeModule module, SavedDeclaration& declaration) {
  const auto names = tensors_of(module);
  for (SavedTensor& tensor : declaration.tensors) {
    if (std::find(names.begin(), names.end(), tensor.name) != names.end()) tensor.lifetime = Lifetime::kRemade;
  }
}

/// Layers of a stage in groups of which only the first input is kept; a prediction depth is a group of its own.
std::vector<LayerRecompute> uniform_groups(const ModelSpec& spec, std::int64_t group,
                                           std::span<const int> layers_by_stage) {
  std::vector<LayerRecompute> layers;
  for (const int num_layers : layers_by_stage) {
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      layers.push_back(layer % group == 0 ? LayerRecompute::kAllButInput : LayerRecompute::kAll);
    }
  }
  layers.resize(layers.size() + static_cast<std::size_t>(spec.num_mtp_layers), LayerRecompute::kAllButInput);
  return layers;
}

/// The first layers of each stage.
std::vector<LayerRecompute> first_layers(std::int64_t count, std::span<const int> layers_by_stage) {
  std::vector<LayerRecompute> layers;
  for (const int num_layers : layers_by_stage) {
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      layers.push_back(layer < count ? LayerRecompute::kAllButInput : LayerRecompute::kNone);
    }
  }
  return layers;
}

/// The numbers in "0,3,4" or "[0, 3, 4]"; the rules have looked at them.
std::vector<LayerRecompute> named_layers(const ModelSpec& spec, const std::string& text) {
  std::vector<LayerRecompute> layers(static_cast<std::size_t>(spec.num_layers() + spec.num_mtp_layers),
                                     LayerRecompute::kNone);
  std::string_view list = trim(text);
  if (list.starts_with('[') && list.ends_with(']')) list = list.substr(1, list.size() - 2);
  for (const std::string& word : split(list, ',')) {
    const auto id = config::parse_int(trim(word));
    PRIMUS_CHECK(id && *id >= 0 && *id < std::ssize(layers), "recompute_layer_ids '{}' passed validation", text);
    layers[static_cast<std::size_t>(*id)] = LayerRecompute::kAllButInput;
  }
  return layers;
}

std::vector<LayerRecompute> whole_layers(const Experiment& experiment, const ModelSpec& spec,
                                         std::span<const int> layers_by_stage) {
  if (const auto ids = experiment.get_optional_string("recompute_layer_ids")) return named_layers(spec, *ids);
  const std::int64_t count = experiment.get_optional_int("recompute_num_layers").value_or(0);
  const int all[] = {static_cast<int>(spec.num_layers())};
  const std::span<const int> stages = layers_by_stage.empty() ? std::span<const int>(all) : layers_by_stage;
  if (experiment.get_optional_string("recompute_method") == "uniform") return uniform_groups(spec, count, stages);
  return first_layers(count, stages);
}

std::vector<RecomputeModule> selected_modules(const Experiment& experiment) {
  std::vector<RecomputeModule> modules;
  for (const std::string& text : experiment.get_strings("recompute_modules")) {
    const auto* found =
        std::find_if(std::begin(kAllModules), std::end(kAllModules), [&](auto module) { return name(module) == text; });
    PRIMUS_CHECK(found != std::end(kAllModules), "recompute_modules '{}' passed validation", text);
    modules.push_back(*found);
  }
  // Megatron's default.
  if (modules.empty()) modules = {RecomputeModule::kCoreAttention};
  return modules;
}

}  // namespace

bool RecomputeSpec::has(RecomputeModule module) const {
  return std::find(modules.begin(), modules.end(), module) != modules.end();
}

LayerRecompute RecomputeSpec::of(int layer) const {
  return layer < std::ssize(layers) ? layers[static_cast<std::size_t>(layer)] : LayerRecompute::kNone;
}

std::string_view name(RecomputeModule module) {
  switch (module) {
    case RecomputeModule::kCoreAttention:
      return "core_attn";
    case RecomputeModule::kMlaUpProjection:
      return "mla_up_proj";
    case RecomputeModule::kMoeActivation:
      return "moe_act";
    case RecomputeModule::kLayerNorm:
      return "layernorm";
    case RecomputeModule::kMlp:
      return "mlp";
    case RecomputeModule::kMoe:
      return "moe";
    case RecomputeModule::kSharedExperts:
      return "shared_experts";
  }
  return "?";
}

RecomputeSpec recompute_spec(const Experiment& experiment, const ModelSpec& spec,
                             std::span<const int> layers_by_stage) {
  RecomputeSpec recompute;
  const std::string kind = experiment.get_optional_string("recompute_granularity").value_or("");
  if (kind == "full") recompute.layers = whole_layers(experiment, spec, layers_by_stage);
  if (kind == "selective") recompute.modules = selected_modules(experiment);
  if (experiment.get_bool("moe_layer_recompute") && !recompute.has(RecomputeModule::kMoe)) {
    recompute.modules.push_back(RecomputeModule::kMoe);
  }
  return recompute;
}

void mark_recomputed_layer(const ModelSpec& spec, const RecomputeSpec& recompute, int layer,
                           SavedDeclaration& declared) {
  if (const LayerRecompute whole = recompute.of(layer); whole != LayerRecompute::kNone) {
    mark_all(declared);
    if (whole == LayerRecompute::kAllButInput) declared.tensors[LayerSlot::kInput].lifetime = Lifetime::kKept;
    return;
  }
  const bool is_moe = spec.kind(layer) == LayerKind::kMoe;
  SavedDeclaration& mlp = declared.children[LayerSlot::kMlp];
  for (const RecomputeModule module : recompute.modules) {
    mark_tensors(module, declared.children[LayerSlot::kMixer]);
    if (is_moe) mark_tensors(module, mlp);
    if (module == (is_moe ? RecomputeModule::kMoe : RecomputeModule::kMlp)) mark_all(mlp);
  }
}

void mark_recomputed(const ModelSpec& spec, const RecomputeSpec& recompute, SavedDeclaration& model) {
  mark_recomputed_stage(spec, recompute, whole_model(spec), model);
}

void mark_recomputed_stage(const ModelSpec& spec, const RecomputeSpec& recompute, const StageContent& content,
                           SavedDeclaration& stage) {
  for (int layer = 0; layer < content.num_layers; ++layer) {
    mark_recomputed_layer(spec, recompute, content.first_layer + layer,
                          stage.children.at(static_cast<std::size_t>(layer)));
  }
  const int first_depth = content.num_layers + (content.output == Part::kPresent ? 1 : 0);
  for (int depth = 0; depth < content.num_mtp_layers; ++depth) {
    SavedDeclaration& declared = stage.children.at(static_cast<std::size_t>(first_depth + depth));
    mark_recomputed_layer(spec, recompute, static_cast<int>(spec.num_layers()) + depth,
                          declared.children[MtpSlot::kLayer]);
  }
}

}  // namespace primus::model
