#include "ops/adamw/adamw_arithmetic.hpp"
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

template <typename Acc>
void sgd_update(const AdamWConstants<Acc>& c, std::int64_t n, const Acc* grad, Acc* master, Acc* momentum) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const Acc g = std::fma(c.decay, master[i], grad[i] * c.scale);
    momentum[i] = std::fma(c.beta1, momentum[i], g);
    master[i] = std::fma(-c.learning_rate, momentum[i], master[i]);
  }
}

template <typename Acc>
void lion_update(const AdamWConstants<Acc>& c, std::int64_t n, const Acc* grad, Acc* master, Acc* momentum) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const Acc g = grad[i] * c.scale;
    const Acc mixed = std::fma(c.beta1, momentum[i], c.one_minus_beta1 * g);
    const Acc sign = static_cast<Acc>((mixed > Acc{0}) - (mixed < Acc{0}));
    master[i] = std::fma(-c.learning_rate, std::fma(c.decay, master[i], sign), master[i]);
    momentum[i] = std::fma(c.beta2, momentum[i], c.one_minus_beta2 * g);
  }
}

/// One chunk: state out of its storage, the update, state back.
template <typename T>
class Chunk {
 public:
  using Acc = acc_t<T>;

  Chunk(UpdateRule rule, const AdamWConstants<Acc>& constants, std::int64_t num_steps)
      : rule_(rule), constants_(constants), num_steps_(num_steps) {}

  void run(std::int64_t begin, std::int64_t count, const Tensor& gradient, UpdateState& state, Tensor& weight) {
    T* values = weight.data_ptr<T>() + begin;
    load_plain(gradient, begin, count, gradient_.data());
    if (state.master.is_held()) {
      load_state<Acc>(state.master, begin, count, master_.data());
    } else {
      for (std::int64_t i = 0; i < count; ++i) master_[i] = static_cast<Acc>(values[i]);
    }
    load_state<Acc>(state.first_moment, begin, count, first_.data());
    if (state.second_moment.is_held()) load_state<Acc>(state.second_moment, begin, count, second_.data());
    update(count);
    store(0, begin, count, state.key, first_, state.first_moment);
    if (state.second_moment.is_held()) store(1, begin, count, state.key, second_, state.second_moment);
    if (state.master.is_held()) store(2, begin, count, state.key, master_, state.master);
    for (std::int64_t i = 0; i < count; ++i) values[i] = to_storage<T>(master_[i]);
  }

 private:
  using Values = std::array<Acc, kChunk>;

  void update(std::int64_t count) {
    switch (rule_) {
      case UpdateRule::kAdamW:
        return adamw_update(constants_, count, gradient_.data(), master_.data(), first_.data(), second_.data(),
                            master_.data());
      case UpdateRule::kSgd:
        return sgd_update(constants_, count, gradient_.data(), master_.data(), first_.data());
      case UpdateRule::kLion:
        return lion_update(constants_, count, gradient_.data(), master_.data(), first_.data());
    }
  }

  void store(int which, std::int64_t begin, std::int64_t count, std::uint64_t key, const Values& values,
             StoredState& state) {
    store_state<Acc>(values.data(), begin, count, rounding_of(key, num_steps_, which), state);
  }

  UpdateRule rule_;
  const AdamWConstants<Acc>& constants_;
  std::int64_t num_steps_;
  Values gradient_, master_, first_, second_;
};

void check_update(UpdateRule rule, const Tensor& gradient, const UpdateState& state, const Tensor& weight) {
  const auto check = [&](const Tensor& x, const char* name) {
    PRIMUS_CHECK(x.defined() && x.is_contiguous() && x.numel() == weight.numel() && x.is_cpu(),
                 "stored_update: {} must be contiguous, of {} elements, on the CPU", name, weight.numel());
  };
  check(weight, "the weight");
  check(gradient, "the gradient");
  check(state.first_moment.values, "the first moment");
  if (rule == UpdateRule::kAdamW) check(state.second_moment.values, "the second moment");
  if (state.master.is_held()) check(state.master.values, "the master copy");
}

}  // namespace

Rounding rounding_of(std::uint64_t parameter_key, std::int64_t num_steps, int which) {
  return {parameter_key +
          (static_cast<std::uint64_t>(num_steps) * 3U + static_cast<std::uint64_t>(which)) * 0xD1342543DE82EF95ULL};
}

void stored_update(UpdateRule rule, const AdamWOptions& options, const UpdateGate& gate, Decays decays,
                   const Tensor& gradient, UpdateState& state, Tensor& weight) {
  const ZoneScope zone(Zone::kOptimizer);
  check_update(rule, gradient, state, weight);
  if (*gate.proceed_1.const_data_ptr<std::int32_t>() == 0) return;
  const std::int64_t num_steps = *gate.num_steps_1.const_data_ptr<std::int64_t>();
  dispatch_floating(weight.scalar_type(), "stored_update", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const AdamWConstants<acc_t<T>> constants(options, gate, decays);
    for_each_state_range(weight.numel(), [&](std::int64_t first, std::int64_t count) {
      Chunk<T> chunk(rule, constants, num_steps);
      for (std::int64_t i = 0; i < count; i += kChunk) {
        chunk.run(first + i, std::min(kChunk, count - i), gradient, state, weight);
      }
    });
  });
}

}  // namespace primus::ops
