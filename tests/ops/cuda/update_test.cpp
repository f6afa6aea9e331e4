// Updates on stored state beside the CPU's: the same codes, scales and weights, bit for bit.
#include "ops/update/update.hpp"

#include "ops/adamw/adamw.hpp"
#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::UpdateRule;
using ops::UpdateState;
using namespace primus::test;

constexpr ops::AdamWOptions kOptions{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};

enum class Master { kWeight, kHalves, kFp32, kFp16 };

struct Case {
  UpdateRule rule;
  DType first, second;
  Master master;
  at::ScalarType gradient;
};

ops::StateForm second_form(DType type) {
  return type == DType::kFloat8 || type == DType::kFloat16 ? ops::StateForm::kRoot : ops::StateForm::kPlain;
}

/// One parameter with its state, on the CPU.
struct Held {
  Tensor weight;
  UpdateState state;

  Held(const Tensor& start, const Case& c)
      : weight(start.to(c.master == Master::kWeight ? at::kFloat : at::kBFloat16)) {
    state.key = 0xFEEDULL;
    if (c.master == Master::kHalves) {
      state.low_bits = at::empty(weight.sizes(), at::kShort);
      ops::split_halves(start, weight, state.low_bits);
    } else if (c.master != Master::kWeight) {
      state.master = ops::make_state(weight, c.master == Master::kFp32 ? DType::kFloat32 : DType::kFloat16);
      ops::store_state(start, {3}, state.master);
    }
    state.first_moment = ops::make_state(weight, c.first);
    if (c.rule == UpdateRule::kAdamW) state.second_moment = ops::make_state(weight, c.second, second_form(c.second));
  }

  std::vector<Tensor*> tensors() {
    std::vector<Tensor*> all;
    for (Tensor* x : {&weight, &state.low_bits, &state.master.values, &state.master.scale_B, &state.first_moment.values,
                      &state.first_moment.scale_B, &state.second_moment.values, &state.second_moment.scale_B}) {
      if (x->defined()) all.push_back(x);
    }
    return all;
  }
};

/// On the device, `skipped` elements behind the start of its memory: addresses that no wide load takes.
Held placed(const Held& held, std::int64_t skipped) {
  Held copy = held;
  for (Tensor* x : copy.tensors()) {
    const Tensor room = at::empty({x->numel() + skipped}, x->options().device(at::kCUDA));
    *x = room.narrow(0, skipped, x->numel()).copy_(*x);
  }
  return copy;
}

Tensor bytes_of(const Tensor& x) {
  return x.cpu().contiguous().view(at::kByte);
}

void expect_same_bits(Held& gpu, Held& cpu, const std::string& what) {
  const std::vector<Tensor*> expected = cpu.tensors();
  const std::vector<Tensor*> found = gpu.tensors();
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(bytes_of(*found[i]), bytes_of(*expected[i]))) << what << " tensor " << i;
  }
}

ops::UpdateGate gate_on(at::Device device, std::int64_t num_steps, int proceed) {
  ops::UpdateGate gate = ops::make_update_gate(device);
  gate.rates_2[0].fill_(0.01);
  gate.rates_2[1].fill_(0.1);
  gate.grad_scale_1.fill_(0.37);
  gate.num_steps_1.fill_(num_steps);
  gate.proceed_1.fill_(proceed);
  return gate;
}

void compare(const Case& c, std::int64_t n, std::int64_t skipped, std::mt19937_64& generator) {
  Held cpu(random_normal({n}, at::kFloat, generator, 0.02), c);
  Held gpu = placed(cpu, skipped);
  for (int step = 1; step <= 4; ++step) {
    // Elements without a gradient, and very different sizes within a block.
    Tensor grad = random_normal({n}, at::kFloat, generator, step == 3 ? 1e-7 : 1e-2).to(c.gradient);
    if (n > 3) grad.narrow(0, 1, 2).mul_(step == 2 ? 0.0 : 1e4);
    ops::stored_update(c.rule, kOptions, gate_on(at::kCPU, step, 1), ops::Decays::kYes, grad, cpu.state, cpu.weight);
    const Tensor grad_gpu = at::empty({n + skipped}, grad.options().device(at::kCUDA)).narrow(0, skipped, n);
    grad_gpu.copy_(grad);
    ops::stored_update(c.rule, kOptions, gate_on(at::kCUDA, step, 1), ops::Decays::kYes, grad_gpu, gpu.state,
                       gpu.weight);
    expect_same_bits(gpu, cpu,
                     fmt::format("rule {} moments {} {} master {} n {} + {} step {}", static_cast<int>(c.rule),
                                 name(c.first), name(c.second), static_cast<int>(c.master), n, skipped, step));
    if (::testing::Test::HasFailure()) return;
  }
}

class CudaUpdateTest : public CudaTestWithParam<std::int64_t> {};

TEST_P(CudaUpdateTest, EveryTypeOfStateEqualsTheCpus) {
  std::mt19937_64 generator(71);
  const DType types[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8};
  for (const DType first : types) {
    for (const DType second : types) {
      for (const Master master : {Master::kWeight, Master::kHalves, Master::kFp32, Master::kFp16}) {
        for (const at::ScalarType gradient : {at::kFloat, at::kBFloat16}) {
          compare({UpdateRule::kAdamW, first, second, master, gradient}, GetParam(), 0, generator);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(CudaUpdateTest, RulesWithOneMomentEqualTheCpus) {
  std::mt19937_64 generator(72);
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kLion}) {
    for (const DType first : {DType::kFloat32, DType::kBFloat16, DType::kFloat8}) {
      for (const Master master : {Master::kWeight, Master::kHalves, Master::kFp16}) {
        compare({rule, first, DType::kFloat32, master, at::kFloat}, GetParam(), 0, generator);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(CudaUpdateTest, TakesWhatIsNotAligned) {
  std::mt19937_64 generator(73);
  compare({UpdateRule::kAdamW, DType::kFloat8, DType::kFloat8, Master::kHalves, at::kBFloat16}, GetParam(), 1,
          generator);
  compare({UpdateRule::kAdamW, DType::kFloat16, DType::kBFloat16, Master::kWeight, at::kFloat}, GetParam(), 3,
          generator);
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaUpdateTest, ::testing::Values(0, 1, 5, 127, 128, 129, 4096, 100003));

TEST_F(CudaTest, StoredUpdateBehindAClosedGateLeavesEverything) {
  std::mt19937_64 generator(74);
  Held cpu(random_normal({300}, at::kFloat, generator),
           {UpdateRule::kAdamW, DType::kFloat8, DType::kFloat8, Master::kHalves, at::kFloat});
  Held gpu = placed(cpu, 0);
  ops::stored_update(UpdateRule::kAdamW, kOptions, gate_on(at::kCUDA, 1, 0), ops::Decays::kYes,
                     to_cuda(at::full({300}, std::numeric_limits<double>::quiet_NaN(), at::kFloat)), gpu.state,
                     gpu.weight);
  expect_same_bits(gpu, cpu, "closed");
}

/// What checkpoints and starts do with state on a device.
TEST_F(CudaTest, WholeStatesAreStoredAndLoadedAsOnTheCpu) {
  std::mt19937_64 generator(75);
  const Tensor values = random_normal({1000}, at::kFloat, generator);
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8}) {
    ops::StoredState cpu = ops::make_state(values, type);
    ops::StoredState gpu = ops::make_state(to_cuda(values), type);
    ops::store_state(values, {5}, cpu);
    ops::store_state(to_cuda(values), {5}, gpu);
    EXPECT_TRUE(at::equal(bytes_of(gpu.values), bytes_of(cpu.values))) << name(type);
    EXPECT_TRUE(at::equal(ops::load_state(gpu).cpu(), ops::load_state(cpu))) << name(type);
    EXPECT_TRUE(ops::load_state(gpu).is_cuda());
  }
}

}  // namespace
}  // namespace primus
