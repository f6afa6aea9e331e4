#include "ops/adamw/adamw_arithmetic.hpp"
#include "ops/adamw/halves.hpp"
#include "ops/cuda_ops.hpp"
#include "ops/host_memory.hpp"
#include "ops/update/update.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

// Four arrays of this many doubles lie on a thread's stack.
constexpr std::int64_t kChunk = 2048;

template <typename Acc>
void load_plain(const Tensor& x, std::int64_t begin, std::int64_t count, Acc* out) {
  dispatch_floating(x.scalar_type(), "stored_update", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = x.const_data_ptr<T>() + begin;
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<Acc>(from[i]);
  });
}

/// One of the rules with one moment, on arrays.
template <auto kElement, typename Acc>
void one_moment_update(const UpdateFactors<Acc>& c, std::int64_t n, const Acc* grad, Acc* master, Acc* momentum) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    Acc w = master[i], m = momentum[i];
    kElement(c, grad[i], w, m);
    master[i] = w;
    momentum[i] = m;
  }
}

/// One chunk: state out of its storage, the update, state back.
template <typename T>
class Chunk {
 public:
  using Acc = acc_t<T>;

  Chunk(UpdateRule rule, const UpdateFactors<Acc>& constants, std::int64_t num_steps)
      : rule_(rule), constants_(constants), num_steps_(num_steps) {}

  void run(std::int64_t begin, std::int64_t count, const Tensor& gradient, UpdateState& state, Tensor& weight) {
    load_plain(gradient, begin, count, gradient_.data());
    load_master(begin, count, state, weight);
    load_state<Acc>(state.first_moment, begin, count, first_.data());
    if (state.second_moment.is_held()) load_state<Acc>(state.second_moment, begin, count, second_.data());
    update(count);
    store(0, begin, count, state.key, first_, state.first_moment);
    if (state.second_moment.is_held()) store(1, begin, count, state.key, second_, state.second_moment);
    store_master(begin, count, state, weight);
  }

 private:
  using Values = std::array<Acc, kChunk>;

  void load_master(std::int64_t begin, std::int64_t count, const UpdateState& state, const Tensor& weight) {
    if (state.low_bits.defined()) {
      const Halves halves = halves_of(weight, state.low_bits);
      for (std::int64_t i = 0; i < count; ++i) master_[i] = static_cast<Acc>(halves.master(begin + i));
    } else if (state.master.is_held()) {
      load_state<Acc>(state.master, begin, count, master_.data());
    } else {
      load_plain(weight, begin, count, master_.data());
    }
  }

  void store_master(std::int64_t begin, std::int64_t count, UpdateState& state, Tensor& weight) {
    if (state.low_bits.defined()) {
      const Halves halves = halves_of(weight, state.low_bits);
      for (std::int64_t i = 0; i < count; ++i) halves.set(begin + i, static_cast<float>(master_[i]));
      return;
    }
    if (state.master.is_held()) store(2, begin, count, state.key, master_, state.master);
    T* values = weight.data_ptr<T>() + begin;
    for (std::int64_t i = 0; i < count; ++i) values[i] = to_storage<T>(master_[i]);
  }

  void update(std::int64_t count) {
    switch (rule_) {
      case UpdateRule::kAdamW:
        return adamw_update(constants_, count, gradient_.data(), master_.data(), first_.data(), second_.data(),
                            master_.data());
      case UpdateRule::kSgd:
        return one_moment_update<sgd_element<Acc>>(constants_, count, gradient_.data(), master_.data(), first_.data());
      case UpdateRule::kLion:
        return one_moment_update<lion_element<Acc>>(constants_, count, gradient_.data(), master_.data(), first_.data());
    }
  }

  void store(int which, std::int64_t begin, std::int64_t count, std::uint64_t key, const Values& values,
             StoredState& state) {
    store_state<Acc>(values.data(), begin, count, rounding_of(key, num_steps_, which), state);
  }

  UpdateRule rule_;
  const UpdateFactors<Acc>& constants_;
  std::int64_t num_steps_;
  Values gradient_, master_, first_, second_;
};

void check_update(UpdateRule rule, const Tensor& gradient, const UpdateState& state, const Tensor& weight) {
  const auto check = [&](const Tensor& x, const char* name) {
    PRIMUS_CHECK(x.defined() && x.is_contiguous() && x.numel() == weight.numel() && is_in_reach(x, weight.device()),
                 "stored_update: {} must be contiguous, of {} elements, on {}", name, weight.numel(),
                 weight.device().str());
  };
  check(weight, "the weight");
  check(gradient, "the gradient");
  check(state.first_moment.values, "the first moment");
  if (rule == UpdateRule::kAdamW) check(state.second_moment.values, "the second moment");
  if (state.master.is_held()) check(state.master.values, "the master copy");
  PRIMUS_CHECK(!state.master.is_held() || !state.low_bits.defined(), "stored_update: two master copies");
  if (state.low_bits.defined()) check_halves(weight, state.low_bits);
}

}  // namespace

void stored_update(UpdateRule rule, const AdamWOptions& options, const UpdateGate& gate, Decays decays,
                   const Tensor& gradient, UpdateState& state, Tensor& weight) {
  const ZoneScope zone(Zone::kOptimizer);
  check_update(rule, gradient, state, weight);
  if (weight.is_cuda()) {
    return cuda_ops().stored_update(rule, options, gate, decays, gradient, state, weight);
  }
  if (*gate.proceed_1.const_data_ptr<std::int32_t>() == 0) return;
  const std::int64_t num_steps = *gate.num_steps_1.const_data_ptr<std::int64_t>();
  dispatch_floating(weight.scalar_type(), "stored_update", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto constants = host_factors<acc_t<T>>(options, gate, decays);
    for_each_state_range(weight.numel(), [&](std::int64_t first, std::int64_t count) {
      Chunk<T> chunk(rule, constants, num_steps);
      for (std::int64_t i = 0; i < count; i += kChunk) {
        chunk.run(first + i, std::min(kChunk, count - i), gradient, state, weight);
      }
    });
  });
}

}  // namespace primus::ops
