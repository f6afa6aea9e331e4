// Parameters of MLPs, experts and router.
#include "base/error.hpp"
#include "model/descriptors.hpp"

namespace primus::model {
namespace {

/// Sizes of gate and up, or of the one input matrix. Gate and up that alternate in blocks are cut by whole blocks.
std::vector<std::int64_t> input_segments(const ModelSpec& spec, std::int64_t ffn, std::int64_t interleave) {
  if (interleave > 0) return {};
  return spec.mlp_gate == Part::kPresent ? std::vector{ffn, ffn} : std::vector{ffn};
}

/// Rows of gate and up as Hugging Face's tensors; `kind` is weight or bias.
/// Those that alternate have no counterpart there.
std::vector<HuggingFaceSlice> input_slices(const ModelSpec& spec, const std::string& prefix, std::int64_t ffn,
                                           std::int64_t interleave, const std::string& kind) {
  if (interleave > 0) return {};
  if (spec.mlp_gate == Part::kAbsent) return {{prefix + "up_proj." + kind, 0, ffn}};
  return {{prefix + "gate_proj." + kind, 0, ffn}, {prefix + "up_proj." + kind, ffn, 2 * ffn}};
}

/// Gate and up as one matrix, and the down projection, of a dense MLP or the shared experts.
Descriptors mlp_matrices(const ModelSpec& spec, const Naming& naming, const std::string& name, std::int64_t ffn,
                         Component component, std::int64_t interleave) {
  const std::string prefix = naming.hugging_face + name + ".";
  const std::int64_t rows = spec.mlp_input_rows(ffn);
  ParameterDescriptor fc1 =
      matrix(naming, name + ".linear_fc1.weight", {rows, spec.hidden_size}, component, input_init(spec));
  fc1.shards = {{0, ShardGroup::kTensor, input_segments(spec, ffn, interleave)}};
  fc1.hugging_face = input_slices(spec, prefix, ffn, interleave, "weight");
  ParameterDescriptor fc2 =
      matrix(naming, name + ".linear_fc2.weight", {spec.hidden_size, ffn}, component, output_init(spec));
  fc2.shards = {{1, ShardGroup::kTensor, {}}};
  fc2.hugging_face = {whole_rows(prefix + "down_proj.weight", fc2)};
  Descriptors parameters = {std::move(fc1), std::move(fc2)};
  if (spec.linear_bias == Part::kAbsent) return parameters;
  ParameterDescriptor bias1 = bias_vector(naming, name + ".linear_fc1.bias", {rows}, component);
  bias1.shards = {{0, ShardGroup::kTensor, input_segments(spec, ffn, interleave)}};
  bias1.tensor_gradient = TensorGradient::kWhole;
  bias1.hugging_face = input_slices(spec, prefix, ffn, interleave, "bias");
  ParameterDescriptor bias2 = bias_vector(naming, name + ".linear_fc2.bias", {spec.hidden_size}, component);
  bias2.hugging_face = {whole_rows(prefix + "down_proj.bias", bias2)};
  parameters.push_back(std::move(bias1));
  parameters.push_back(std::move(bias2));
  return parameters;
}

/// Width that the routed experts read and write.
std::int64_t expert_width(const ModelSpec& spec, const MoeSpec& moe) {
  return moe.latent ? moe.latent->size : spec.hidden_size;
}

Descriptors expert_matrices(const ModelSpec& spec, const MoeSpec& moe, const Naming& naming) {
  const std::int64_t num_experts = moe.router.num_experts;
  const std::int64_t ffn = moe.ffn_hidden_size;
  const std::int64_t width = expert_width(spec, moe);
  const std::string prefix = naming.hugging_face + "mlp.experts.{e}.";
  ParameterDescriptor fc1 =
      matrix(naming, "mlp.experts.linear_fc1.weight", {num_experts, spec.mlp_input_rows(ffn), width},
             Component::kExperts, input_init(spec));
  fc1.shards = {{0, ShardGroup::kExpert, {}},
                {1, ShardGroup::kExpertTensor, input_segments(spec, ffn, moe.glu_interleave)}};
  fc1.hugging_face = input_slices(spec, prefix, ffn, moe.glu_interleave, "weight");
  ParameterDescriptor fc2 = matrix(naming, "mlp.experts.linear_fc2.weight", {num_experts, width, ffn},
                                   Component::kExperts, output_init(spec));
  fc2.shards = {{0, ShardGroup::kExpert, {}}, {2, ShardGroup::kExpertTensor, {}}};
  fc2.hugging_face = {whole_rows(prefix + "down_proj.weight", fc2, 1)};
  return {std::move(fc1), std::move(fc2)};
}

Descriptors expert_biases(const ModelSpec& spec, const MoeSpec& moe, const Naming& naming) {
  const std::int64_t num_experts = moe.router.num_experts;
  const std::int64_t ffn = moe.ffn_hidden_size;
  const std::string prefix = naming.hugging_face + "mlp.experts.{e}.";
  ParameterDescriptor fc1 =
      bias_vector(naming, "mlp.experts.linear_fc1.bias", {num_experts, spec.mlp_input_rows(ffn)}, Component::kExperts);
  fc1.shards = {{0, ShardGroup::kExpert, {}},
                {1, ShardGroup::kExpertTensor, input_segments(spec, ffn, moe.glu_interleave)}};
  fc1.tensor_gradient = TensorGradient::kWhole;
  fc1.hugging_face = input_slices(spec, prefix, ffn, moe.glu_interleave, "bias");
  ParameterDescriptor fc2 =
      bias_vector(naming, "mlp.experts.linear_fc2.bias", {num_experts, expert_width(spec, moe)}, Component::kExperts);
  fc2.shards = {{0, ShardGroup::kExpert, {}}};
  fc2.hugging_face = {whole_rows(prefix + "down_proj.bias", fc2, 1)};
  return {std::move(fc1), std::move(fc2)};
}

Descriptors expert_parameters(const ModelSpec& spec, const MoeSpec& moe, const Naming& naming) {
  Descriptors parameters = expert_matrices(spec, moe, naming);
  if (spec.linear_bias == Part::kPresent) append(parameters, expert_biases(spec, moe, naming));
  for (ParameterDescriptor& parameter : parameters) parameter.reduction = GradReduction::kExpertDataParallel;
  return parameters;
}

/// Projections between the residual stream and the experts' space; every token meets them whole.
Descriptors latent_parameters(const ModelSpec& spec, const LatentExpertSpec& latent, const Naming& naming) {
  Descriptors parameters = {matrix(naming, "mlp.fc1_latent_proj.weight", {latent.size, spec.hidden_size},
                                   Component::kExpertLatent, input_init(spec)),
                            matrix(naming, "mlp.fc2_latent_proj.weight", {spec.hidden_size, latent.size},
                                   Component::kExpertLatent, output_init(spec))};
  for (ParameterDescriptor& parameter : parameters) parameter.tensor_gradient = TensorGradient::kPartial;
  if (latent.norm == Part::kPresent) {
    append(parameters,
           norm_parameters(spec, naming, "mlp.latent_layernorm", latent.size, Component::kExpertLatent, ""));
  }
  return parameters;
}

/// The experts of every token of the vocabulary.
ParameterDescriptor token_experts(const ModelSpec& spec, const RouterSpec& router, const Naming& naming) {
  ParameterDescriptor table =
      matrix(naming, "mlp.router.token_experts", {spec.vocab_size, router.top_k}, Component::kRouter,
             {.kind = InitKind::kDistinct, .high = static_cast<double>(router.num_experts)});
  table.trained = Trained::kNo;
  table.decay = Decay::kNo;
  table.hugging_face = {whole_rows(naming.hugging_face + "mlp.gate.tid2eid", table)};
  return table;
}

Descriptors router_parameters(const ModelSpec& spec, const RouterSpec& own, const Naming& naming) {
  const std::int64_t num_experts = own.num_experts;
  ParameterDescriptor router =
      matrix(naming, "mlp.router.weight", {num_experts, spec.hidden_size}, Component::kRouter, input_init(spec));
  router.tensor_gradient = TensorGradient::kPartial;
  router.hugging_face = {whole_rows(naming.hugging_face + "mlp.gate.weight", router)};
  Descriptors parameters = {std::move(router)};
  if (spec.linear_bias == Part::kPresent) {
    ParameterDescriptor bias = bias_vector(naming, "mlp.router.bias", {num_experts}, Component::kRouter);
    bias.hugging_face = {whole_rows(naming.hugging_face + "mlp.gate.bias", bias)};
    parameters.push_back(std::move(bias));
  }
  const auto add_buffer = [&](const char* name) -> ParameterDescriptor& {
    ParameterDescriptor bias = matrix(naming, name, {num_experts}, Component::kRouter, {InitKind::kZeros, 0.0});
    bias.trained = Trained::kNo;
    bias.decay = Decay::kNo;
    return parameters.emplace_back(std::move(bias));
  };
  if (own.expert_bias == RouterSpec::ExpertBias::kOn) {
    ParameterDescriptor& bias = add_buffer("mlp.router.expert_bias");
    bias.hugging_face = {whole_rows(naming.hugging_face + "mlp.gate.e_score_correction_bias", bias)};
  }
  if (own.assignment == RouterSpec::Assignment::kQuantile) add_buffer("mlp.router.quantile_bias");
  if (own.assignment == RouterSpec::Assignment::kByToken) parameters.push_back(token_experts(spec, own, naming));
  return parameters;
}

}  // namespace

Descriptors dense_mlp_parameters(const ModelSpec& spec, int layer) {
  return mlp_matrices(spec, layer_naming(layer), "mlp", spec.dense_ffn_hidden_size, Component::kDenseMlp, 0);
}

Descriptors moe_parameters(const ModelSpec& spec, int layer) {
  PRIMUS_CHECK(spec.moe.has_value(), "layer {} is MoE in a model without experts", layer);
  const Naming naming = layer_naming(layer);
  const MoeSpec& moe = *spec.moe;
  Descriptors parameters = router_parameters(spec, spec.router(layer), naming);
  if (moe.latent) append(parameters, latent_parameters(spec, *moe.latent, naming));
  append(parameters, expert_parameters(spec, moe, naming));
  if (moe.shared_ffn_hidden_size == 0) return parameters;
  append(parameters, mlp_matrices(spec, naming, "mlp.shared_experts", moe.shared_ffn_hidden_size,
                                  Component::kSharedExperts, moe.shared_glu_interleave));
  if (moe.shared_gate == Part::kPresent) {
    ParameterDescriptor gate = matrix(naming, "mlp.shared_experts.gate_weight", {1, spec.hidden_size},
                                      Component::kSharedExperts, input_init(spec));
    gate.tensor_gradient = TensorGradient::kPartial;
    gate.hugging_face = {whole_rows(naming.hugging_face + "mlp.shared_expert_gate.weight", gate)};
    parameters.push_back(std::move(gate));
  }
  return parameters;
}

}  // namespace primus::model
