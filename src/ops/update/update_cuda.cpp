#include "ops/update/update_cuda.hpp"

#include "model/optimizer_spec.hpp"
#include "ops/adamw/gate_tensors.hpp"
#include "ops/cuda_table.hpp"
#include "ops/gpu/host_memory.hpp"

namespace primus::ops::cuda {
namespace {

void* address(const Tensor& x) {
  return gpu::reachable_data<void>(x);
}

Stored stored_of(const StoredState& state) {
  const bool is_known = state.type == DType::kFloat32 || state.type == DType::kBFloat16 ||
                        state.type == DType::kFloat16 || state.type == DType::kFloat8;
  PRIMUS_CHECK(is_known, "optimizer state in {} on a GPU", name(state.type));
  return {address(state.values), gpu::reachable_data<float>(state.scale_B), state.type, state.form};
}

DType plain_type(const Tensor& x) {
  PRIMUS_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
               "stored_update: {} is not supported on a GPU", c10::toString(x.scalar_type()));
  return x.scalar_type() == at::kFloat ? DType::kFloat32 : DType::kBFloat16;
}

MasterPlace place_of(const UpdateState& state, const Tensor& weight) {
  if (state.low_bits.defined()) return MasterPlace::kHalves;
  if (state.master.is_held()) return MasterPlace::kCopy;
  PRIMUS_CHECK(weight.scalar_type() == at::kFloat, "stored_update: a bf16 weight without a master copy");
  return MasterPlace::kWeight;
}

void update(UpdateRule rule, const AdamWOptions& options, const UpdateGate& gate, Decays decays, const Tensor& gradient,
            UpdateState& state, Tensor& weight) {
  const StoredUpdate given{.rule = rule,
                           .gradient = address(gradient),
                           .gradient_type = plain_type(gradient),
                           .weight = address(weight),
                           .weight_type = plain_type(weight),
                           .place = place_of(state, weight),
                           .low = static_cast<std::uint16_t*>(address(state.low_bits)),
                           .master = stored_of(state.master),
                           .first_moment = stored_of(state.first_moment),
                           .second_moment = stored_of(state.second_moment),
                           .key = state.key};
  launch_stored_update(constants_of(options, decays), gate_of(gate), weight.numel(),
                       static_cast<int>(model::kStateBlock), given, gpu::current_stream());
}

}  // namespace

void register_update(CudaOps& ops) {
  ops.stored_update = update;
}

}  // namespace primus::ops::cuda
