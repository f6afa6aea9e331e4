#include "ops/adamw/adamw.hpp"
#include "ops/adamw/adamw_arithmetic.hpp"
#include "ops/adamw/halves.hpp"
#include "ops/cuda_ops.hpp"
#include "ops/host_memory.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

constexpr std::int64_t kChunk = 2048;
constexpr std::int64_t kUpdatesPerTask = 16 * 1024;

}  // namespace

void check_halves(const Tensor& weight, const Tensor& low_bits) {
  PRIMUS_CHECK(weight.scalar_type() == at::kBFloat16 && low_bits.scalar_type() == at::kShort,
               "adamw: halves of a master must be bf16 and int16");
  PRIMUS_CHECK(weight.is_contiguous() && low_bits.is_contiguous() && low_bits.numel() == weight.numel() &&
                   is_in_reach(low_bits, weight.device()),
               "adamw: halves of a master must be contiguous, of {} elements, within reach", weight.numel());
}

Halves halves_of(const Tensor& weight, const Tensor& low_bits) {
  check_halves(weight, low_bits);
  PRIMUS_CHECK(weight.is_cpu(), "adamw: halves are taken apart on the CPU");
  return {static_cast<std::uint16_t*>(weight.data_ptr()), static_cast<std::uint16_t*>(low_bits.data_ptr())};
}

Tensor join_halves(const Tensor& weight, const Tensor& low_bits) {
  const Halves halves = halves_of(weight, low_bits);
  Tensor master = at::empty(weight.sizes(), at::kFloat);
  auto* values = master.data_ptr<float>();
  for (std::int64_t i = 0; i < master.numel(); ++i) values[i] = halves.master(i);
  return master;
}

void split_halves(const Tensor& master, Tensor& weight, Tensor& low_bits) {
  const Halves halves = halves_of(weight, low_bits);
  PRIMUS_CHECK(master.scalar_type() == at::kFloat && master.is_contiguous() && master.numel() == weight.numel(),
               "adamw: a master to split must be fp32, of {} elements", weight.numel());
  const auto* values = master.const_data_ptr<float>();
  for (std::int64_t i = 0; i < master.numel(); ++i) halves.set(i, values[i]);
}

void adamw_halves_step(const AdamWOptions& options, const UpdateGate& gate, Decays decays, const Tensor& main_grad,
                       Tensor& low_bits, Tensor& exp_avg, Tensor& exp_avg_sq, Tensor& weight) {
  const ZoneScope zone(Zone::kOptimizer);
  check_halves(weight, low_bits);
  for (const Tensor* x : {&main_grad, static_cast<const Tensor*>(&exp_avg), static_cast<const Tensor*>(&exp_avg_sq)}) {
    PRIMUS_CHECK(x->scalar_type() == at::kFloat && x->is_contiguous() && x->numel() == weight.numel() &&
                     is_in_reach(*x, weight.device()),
                 "adamw: gradient and moments must be fp32, contiguous, of {} elements", weight.numel());
  }
  if (weight.is_cuda()) {
    return cuda_ops().adamw_halves_step(options, gate, decays, main_grad, low_bits, exp_avg, exp_avg_sq, weight);
  }
  if (*gate.proceed_1.const_data_ptr<std::int32_t>() == 0) return;
  const auto constants = host_factors<float>(options, gate, decays);
  const Halves halves = halves_of(weight, low_bits);
  const auto* grad = main_grad.const_data_ptr<float>();
  auto* first = exp_avg.data_ptr<float>();
  auto* second = exp_avg_sq.data_ptr<float>();
  at::parallel_for(0, weight.numel(), kUpdatesPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::array<float, kChunk> master;
    for (std::int64_t i = begin; i < end; i += kChunk) {
      const std::int64_t count = std::min(kChunk, end - i);
      for (std::int64_t j = 0; j < count; ++j) master[j] = halves.master(i + j);
      adamw_update(constants, count, grad + i, master.data(), first + i, second + i, master.data());
      for (std::int64_t j = 0; j < count; ++j) halves.set(i + j, master[j]);
    }
  });
}

}  // namespace primus::ops
