#include "ops/adamw/adamw_cuda.hpp"

#include "ops/adamw/gate_tensors.hpp"
#include "ops/cuda_table.hpp"
#include "ops/gpu/host_memory.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

void close(const Tensor& loss_sum_1, const Tensor& square_sum_1, double clip_grad, UpdateGate& gate) {
  launch_close_gate(gpu::data<double>(loss_sum_1), gpu::data<double>(square_sum_1), clip_grad, gate_of(gate),
                    gpu::current_stream());
}

void step(const AdamWOptions& options, const UpdateGate& gate, Decays decays, const Tensor& main_grad, Tensor& master,
          Tensor& exp_avg, Tensor& exp_avg_sq, Tensor& weight) {
  gpu::dispatch(weight.scalar_type(), "adamw_step", [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* own = gpu::data<T>(weight);
    if (static_cast<const void*>(own) == master.const_data_ptr()) own = nullptr;
    PRIMUS_CHECK(sizeof(T) == 2 || own == nullptr || master.numel() == 0,
                 "adamw: on a GPU fp32 weights are their own masters");
    launch_adamw_step<T>(constants_of(options, decays), gate_of(gate), master.numel(),
                         {gpu::data<float>(main_grad), gpu::reachable_data<float>(master),
                          gpu::reachable_data<float>(exp_avg), gpu::reachable_data<float>(exp_avg_sq), own},
                         gpu::current_stream());
  });
}

void halves_step(const AdamWOptions& options, const UpdateGate& gate, Decays decays, const Tensor& main_grad,
                 Tensor& low_bits, Tensor& exp_avg, Tensor& exp_avg_sq, Tensor& weight) {
  launch_adamw_halves_step(
      constants_of(options, decays), gate_of(gate), weight.numel(),
      {gpu::data<float>(main_grad), gpu::reachable_data<float>(exp_avg), gpu::reachable_data<float>(exp_avg_sq),
       static_cast<std::uint16_t*>(weight.data_ptr()), gpu::reachable_data<std::uint16_t>(low_bits)},
      gpu::current_stream());
}

bool nonfinite(const Tensor& x) {
  const Tensor found = at::zeros({1}, x.options().dtype(at::kInt));
  gpu::dispatch(x.scalar_type(), "has_nonfinite", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_has_nonfinite<T>(x.numel(), gpu::data<T>(x), gpu::data<std::int32_t>(found), gpu::current_stream());
  });
  return found.item<std::int32_t>() != 0;
}

}  // namespace

void add_squares(const Tensor& x, Tensor& sum_1) {
  const Tensor partial = at::empty({sum_of_squares_parts(x.numel())}, sum_1.options());
  gpu::dispatch(x.scalar_type(), "add_sum_of_squares", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_add_sum_of_squares<T>(x.numel(), gpu::data<T>(x), gpu::data<double>(partial), gpu::data<double>(sum_1),
                                 gpu::current_stream());
  });
}

void register_adamw(CudaOps& ops) {
  ops.close_gate = close;
  ops.adamw_step = step;
  ops.adamw_halves_step = halves_step;
  ops.add_sum_of_squares = add_squares;
  ops.has_nonfinite = nonfinite;
}

}  // namespace primus::ops::cuda
