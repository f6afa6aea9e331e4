// One MoE layer of DeepSeek-V2-Lite without its shared experts: router, permutation, experts and the sum back, as the
// trainer runs it; weight gradients are added to fp32 main gradients.
#include "cuda_bench.hpp"
#include "nn/moe.hpp"

namespace primus::bench {
namespace {

model::ModelSpec layer_spec(model::RouterSpec::Balance balance) {
  model::ModelSpec spec;
  spec.hidden_size = kHidden;
  spec.seq_length = kTokens / 4;
  spec.layers = {model::LayerKind::kMoe};
  spec.init_std = 0.02;
  model::MoeSpec moe;
  moe.router.num_experts = kExperts;
  moe.router.top_k = kTopK;
  moe.router.balance = balance;
  moe.router.losses = {.aux = 0.001};
  moe.ffn_hidden_size = kFfn;
  moe.shared_ffn_hidden_size = 0;
  spec.moe = moe;
  return spec;
}

void bench_layer(const char* name, model::RouterSpec::Balance balance) {
  const model::ModelSpec spec = layer_spec(balance);
  model::NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  nn::ParameterStore store(model::layer_parameters(spec, 0), policy, 1, at::kCUDA);
  nn::Moe moe(spec, policy, 0, store);
  nn::StepContext step;
  step.batch = {.num_sequences = kTokens / spec.seq_length, .seq_length = spec.seq_length};
  const model::SavedDeclaration declared = model::moe_saved(spec, policy, step.batch, 0);
  const Tensor x = cuda_randn({kTokens, kHidden});
  const Tensor dy = cuda_randn({kTokens, kHidden});
  Tensor residual = cuda_randn({kTokens, kHidden});
  Tensor dx = at::empty_like(x);
  const double flops = 6.0 * kTokens * kTopK * kHidden * kFfn;
  const auto forward = [&] {
    auto saved = std::make_unique<nn::Saved>(declared, at::kCUDA);
    moe.forward(x, *saved, step, residual);
    return saved;
  };
  const std::string shape = fmt::format("T {} H {} F {} E {} K {}, {}", kTokens, kHidden, kFfn, kExperts, kTopK, name);
  report_flops("moe_layer forward", shape, flops, kGroupedTeraflops, measure_cuda([&](int) { forward(); }, 20, 5));
  const auto both = [&](int) {
    const auto saved = forward();
    moe.backward(dy, x, *saved, step, dx);
  };
  report_flops("moe_layer both ways", shape, 3 * flops, kGroupedTeraflops, measure_cuda(both, 20, 5));
}

}  // namespace

void bench_moe_layer() {
  bench_layer("balanced", model::RouterSpec::Balance::kForced);
  bench_layer("learnt", model::RouterSpec::Balance::kLearnt);
}

}  // namespace primus::bench
