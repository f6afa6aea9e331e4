#include "nn/mixer.hpp"

#include "nn/gated_delta_net.hpp"
#include "nn/gqa_attention.hpp"
#include "nn/kimi_delta_attention.hpp"
#include "nn/mla_attention.hpp"
#include "nn/short_convolution.hpp"

namespace primus::nn {
namespace {

std::unique_ptr<Sublayer> make_attention(const model::ModelSpec& spec, int layer, ParameterStore& parameters) {
  if (std::holds_alternative<model::MlaSpec>(spec.attention)) {
    return std::make_unique<MlaAttention>(spec, layer, parameters);
  }
  return std::make_unique<GqaAttention>(spec, layer, parameters);
}

}  // namespace

std::unique_ptr<Sublayer> make_mixer(const model::ModelSpec& spec, int layer, ParameterStore& parameters) {
  switch (spec.mixer(layer)) {
    case model::MixerKind::kAttention:
      return make_attention(spec, layer, parameters);
    case model::MixerKind::kShortConvolution:
      return std::make_unique<ShortConvolution>(spec, layer, parameters);
    case model::MixerKind::kGatedDelta:
      return std::make_unique<GatedDeltaNet>(spec, layer, parameters);
    case model::MixerKind::kKimiDelta:
      return std::make_unique<KimiDeltaAttention>(spec, layer, parameters);
    case model::MixerKind::kUnknown:
      break;
  }
  PRIMUS_CHECK(false, "the mixer of layer {} is not built", layer);
}

}  // namespace primus::nn
