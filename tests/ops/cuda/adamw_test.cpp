#include "ops/adamw/adamw.hpp"

#include <limits>

#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::Decays;
using ops::UpdateGate;
using namespace primus::test;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr ops::AdamWOptions kOptions{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};

Tensor scalar(double value, at::Device device) {
  return at::full({1}, value, at::TensorOptions(device).dtype(at::kDouble));
}

/// State of one parameter on one device.
struct State {
  Tensor master, m, v, weight;
  UpdateGate gate;

  State(const Tensor& start, at::ScalarType dtype, at::ScalarType statistics, at::Device device)
      : master(start.to(device, statistics).clone()),
        m(at::zeros_like(master)),
        v(at::zeros_like(master)),
        weight(dtype == statistics ? master : master.to(dtype)),
        gate(ops::make_update_gate(device)) {}

  void step(const Tensor& grad, double learning_rate, double loss, double clip_grad) {
    gate.rates_2.copy_(at::full({2}, learning_rate, at::kDouble));
    const Tensor main_grad = grad.to(master.device(), master.scalar_type());
    Tensor squares = scalar(0.0, master.device());
    ops::add_sum_of_squares(main_grad, squares);
    ops::close_gate(scalar(loss, master.device()), squares, clip_grad, gate);
    ops::adamw_step(kOptions, gate, Decays::kYes, main_grad, master, m, v, weight);
  }
  std::vector<Tensor> all() const { return {master, m, v, weight}; }
};

class CudaAdamWTest : public CudaTestWithParam<std::int64_t> {};

TEST_P(CudaAdamWTest, MatchesTheReferenceOverManySteps) {
  const std::int64_t n = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::mt19937_64 generator(61);
    const Tensor start = random_normal({n}, at::kFloat, generator, 0.02);
    State expected(start, at::kDouble, at::kDouble, at::kCPU);
    State first(start, dtype, at::kFloat, at::kCUDA);
    State second(start, dtype, at::kFloat, at::kCUDA);
    for (int step = 0; step < 8; ++step) {
      const Tensor grad = random_normal({n}, at::kFloat, generator, step == 3 ? 1e-6 : 1e-2);
      const double loss = step == 5 ? kNan : 1.0;  // this step is skipped
      for (State* state : {&expected, &first, &second}) state->step(grad, 0.01, loss, 0.1);
      EXPECT_EQ(first.gate.num_steps_1.item<std::int64_t>(), expected.gate.num_steps_1.item<std::int64_t>());
      EXPECT_EQ(first.gate.proceed_1.item<std::int32_t>(), step == 5 ? 0 : 1);
      EXPECT_TRUE(at::equal(first.weight.cpu(), first.master.cpu().to(dtype)));
    }
    EXPECT_LE(relative_error(to64(first.master), expected.master), 1e-6);
    const Tensor change = expected.master.sub(to64(start));
    EXPECT_LE(relative_error(to64(first.master).sub(to64(start)), change), 1e-5);
    EXPECT_LE(relative_error(to64(first.m), expected.m), 1e-5);
    EXPECT_LE(relative_error(to64(first.v), expected.v), 1e-5);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(first.all()[i].cpu(), second.all()[i].cpu()));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaAdamWTest, ::testing::Values(0, 1, 7, 33, 4096, 1000003));

TEST_F(CudaTest, AdamWTakesWhatIsNotAligned) {
  std::mt19937_64 generator(62);
  const Tensor start = random_normal({101}, at::kFloat, generator);
  const Tensor grad = random_normal({101}, at::kFloat, generator);
  State expected(start, at::kDouble, at::kDouble, at::kCPU);
  State state(start, at::kBFloat16, at::kFloat, at::kCUDA);
  state.weight = at::zeros({104}, state.weight.options()).narrow(0, 3, 101);
  for (State* s : {&expected, &state}) s->step(grad, 0.01, 1.0, 0.0);
  EXPECT_LE(relative_error(to64(state.master), expected.master), 1e-6);
  EXPECT_TRUE(at::equal(state.weight.cpu(), state.master.cpu().to(at::kBFloat16)));
}

TEST_F(CudaTest, AdamWBehindAClosedGateLeavesEverything) {
  std::mt19937_64 generator(63);
  const Tensor start = random_normal({77}, at::kFloat, generator);
  State state(start, at::kBFloat16, at::kFloat, at::kCUDA);
  std::vector<Tensor> before;
  for (const Tensor& x : state.all()) before.push_back(x.clone());
  state.step(at::full({77}, kNan, at::kFloat), 0.1, 1.0, 1.0);
  state.step(at::full({77}, 1.0, at::kFloat), 0.1, -kInf, 1.0);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(state.all()[i].cpu(), before[i].cpu()));
  EXPECT_EQ(state.gate.num_steps_1.item<std::int64_t>(), 0);
}

TEST_F(CudaTest, CloseGateEqualsTheCpu) {
  UpdateGate gpu = ops::make_update_gate(at::kCUDA);
  UpdateGate cpu = ops::make_update_gate(at::kCPU);
  for (const double squares : {16.0, 0.25, 0.0, kInf, kNan}) {
    for (const double loss : {2.0, kNan, kInf}) {
      for (const double clip : {0.0, 1.0}) {
        ops::close_gate(scalar(loss, at::kCUDA), scalar(squares, at::kCUDA), clip, gpu);
        ops::close_gate(scalar(loss, at::kCPU), scalar(squares, at::kCPU), clip, cpu);
        EXPECT_EQ(gpu.proceed_1.item<std::int32_t>(), cpu.proceed_1.item<std::int32_t>());
        EXPECT_EQ(gpu.num_steps_1.item<std::int64_t>(), cpu.num_steps_1.item<std::int64_t>());
        EXPECT_EQ(gpu.grad_scale_1.item<double>(), cpu.grad_scale_1.item<double>());
      }
    }
  }
}

TEST_F(CudaTest, SumOfSquaresMatchesAndRepeats) {
  std::mt19937_64 generator(64);
  for (const std::int64_t n : {0, 1, 5, 4095, 4096, 4097, 3000001}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const std::int64_t skipped : {0, 1}) {  // 1: not aligned
        if (n <= skipped) continue;
        const Tensor x = random_normal({n}, dtype, generator).narrow(0, skipped, n - skipped);
        const Tensor x_gpu = to_cuda(random_normal({n}, dtype, generator)).narrow(0, skipped, n - skipped);
        x_gpu.copy_(x);
        Tensor expected = scalar(3.0, at::kCPU);
        Tensor sum = scalar(3.0, at::kCUDA);
        Tensor again = scalar(3.0, at::kCUDA);
        ops::add_sum_of_squares(x, expected);
        ops::add_sum_of_squares(x_gpu, sum);
        ops::add_sum_of_squares(x_gpu, again);
        EXPECT_NEAR(sum.item<double>(), expected.item<double>(), 1e-12 * expected.item<double>());
        EXPECT_EQ(sum.item<double>(), again.item<double>());
      }
    }
  }
  Tensor large = scalar(0.0, at::kCUDA);
  ops::add_sum_of_squares(to_cuda(at::full({3}, 1e30, at::kFloat)), large);
  EXPECT_NEAR(large.item<double>(), 3e60, 1e54);
}

TEST_F(CudaTest, HasNonfiniteFindsOneBadElement) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{40001}, std::int64_t{1000003}}) {
      Tensor x = to_cuda(at::full({n}, 1e38, dtype));
      EXPECT_FALSE(ops::has_nonfinite(x));
      for (const double bad : {kNan, -kInf}) {
        Tensor broken = x.clone();
        broken[n - 1] = bad;
        EXPECT_TRUE(ops::has_nonfinite(broken));
      }
    }
  }
  EXPECT_FALSE(ops::has_nonfinite(to_cuda(at::zeros({0}, at::kFloat))));
}

TEST_F(CudaTest, AdamWOnHalvesEqualsAWholeMaster) {
  std::mt19937_64 generator(65);
  for (const std::int64_t n : {1, 7, 8, 33, 4096, 1000003}) {
    for (const std::int64_t skipped : {0, 1}) {  // 1: not aligned
      const Tensor start = random_normal({n}, at::kFloat, generator, 0.02);
      State whole(start, at::kBFloat16, at::kFloat, at::kCUDA);
      State halves(start, at::kBFloat16, at::kFloat, at::kCUDA);
      Tensor weight_cpu = at::empty({n}, at::kBFloat16), low_cpu = at::empty({n}, at::kShort);
      ops::split_halves(start, weight_cpu, low_cpu);
      const auto placed = [&](const Tensor& x) {
        const Tensor room = at::zeros({n + skipped}, x.options().device(at::kCUDA)).narrow(0, skipped, n);
        return room.copy_(x);
      };
      Tensor weight = placed(weight_cpu), low_bits = placed(low_cpu);
      for (int step = 0; step < 8; ++step) {
        const Tensor grad = to_cuda(random_normal({n}, at::kFloat, generator));
        whole.step(grad, 1e-3, step == 5 ? kNan : 1.0, 0.1);
        const ops::UpdateGate& gate = whole.gate;  // after the step: the same decision for both
        ops::adamw_halves_step(kOptions, gate, Decays::kYes, grad, low_bits, halves.m, halves.v, weight);
        ASSERT_TRUE(at::equal(ops::join_halves(weight.cpu(), low_bits.cpu()), whole.master.cpu())) << n << " " << step;
      }
      EXPECT_TRUE(at::equal(halves.m.cpu(), whole.m.cpu()) && at::equal(halves.v.cpu(), whole.v.cpu())) << n;
    }
  }
}

}  // namespace
}  // namespace primus
