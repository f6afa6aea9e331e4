#include "ops/gemm/gemm.hpp"

#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::Write;
using namespace primus::test;

struct Shape {
  std::int64_t tokens, inputs, outputs;
  std::int64_t extra = 0;  // row stride beyond the width
};

/// Element types of the input, the weight and the output.
struct Types {
  at::ScalarType x, w, y;
};
const std::vector<Types> kTypes = {
    {at::kFloat, at::kFloat, at::kFloat},       {at::kBFloat16, at::kBFloat16, at::kBFloat16},
    {at::kBFloat16, at::kBFloat16, at::kFloat}, {at::kBFloat16, at::kFloat, at::kFloat},
    {at::kFloat, at::kFloat, at::kBFloat16},    {at::kFloat, at::kBFloat16, at::kBFloat16}};

/// A copy on the device with a row stride; what lies between the rows is NaN.
Tensor strided_cuda(const Tensor& values, std::int64_t extra) {
  Tensor view =
      cuda_poisoned({values.size(0), values.size(1) + extra}, values.scalar_type()).narrow(1, 0, values.size(1));
  view.copy_(values);
  return view;
}

class CudaGemmTest : public CudaTestWithParam<Shape> {
 protected:
  /// op(write, result) on the device against the fp64 result of a product that begins as `before`.
  template <typename Op>
  void check(const Tensor& product64, at::ScalarType type, const Op& op) {
    const Tensor before = random_normal({product64.size(0), product64.size(1)}, type, generator_);
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
      const bool adds = write == Write::kAccumulate;
      Tensor result = strided_cuda(adds ? before : poisoned({before.size(0), before.size(1)}, type), GetParam().extra);
      op(write, result);
      EXPECT_LE(relative_error(to64(result), adds ? product64.add(to64(before)) : product64), rounded_tolerance(type));
    }
  }

  std::mt19937_64 generator_{7};
};

TEST_P(CudaGemmTest, LinearMatchesTheReference) {
  const auto [tokens, inputs, outputs, extra] = GetParam();
  for (const Types& types : kTypes) {
    SCOPED_TRACE(fmt::format("x {} w {} y {}", c10::toString(types.x), c10::toString(types.w), c10::toString(types.y)));
    const Tensor x = random_normal({tokens, inputs}, types.x, generator_);
    const Tensor dy = random_normal({tokens, outputs}, types.x, generator_);
    const Tensor w = random_normal({outputs, inputs}, types.w, generator_);
    const Tensor x_gpu = strided_cuda(x, extra);
    const Tensor dy_gpu = strided_cuda(dy, extra);
    const Tensor w_gpu = to_cuda(w);
    check(at::mm(to64(x), to64(w).t()), types.y,
          [&](Write write, Tensor& y) { ops::linear_forward(x_gpu, w_gpu, y, write); });
    check(at::mm(to64(dy), to64(w)), types.y,
          [&](Write write, Tensor& dx) { ops::linear_dgrad(dy_gpu, w_gpu, dx, write); });

    const Tensor before = random_normal({outputs, inputs}, at::kFloat, generator_);
    Tensor main_grad = to_cuda(before).clone();
    ops::linear_wgrad(dy_gpu, x_gpu, main_grad);
    EXPECT_LE(relative_error(to64(main_grad), at::mm(to64(dy).t(), to64(x)).add(to64(before))), 1e-5);
    Tensor overwritten = to_cuda(poisoned({outputs, inputs}, at::kFloat));
    ops::linear_wgrad(dy_gpu, x_gpu, overwritten, Write::kOverwrite);
    EXPECT_LE(relative_error(to64(overwritten), at::mm(to64(dy).t(), to64(x))), 1e-5);
  }
}

TEST_P(CudaGemmTest, RouterGradientsOfTwoTypesMatch) {
  const auto [tokens, inputs, outputs, extra] = GetParam();
  const Tensor x = random_normal({tokens, inputs}, at::kBFloat16, generator_);
  const Tensor dlogits = random_normal({tokens, outputs}, at::kFloat, generator_, 1e-3);
  Tensor main_grad = at::zeros({outputs, inputs}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  ops::linear_wgrad(strided_cuda(dlogits, extra), strided_cuda(x, extra), main_grad);
  EXPECT_LE(relative_error(to64(main_grad), at::mm(to64(dlogits).t(), to64(x))), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaGemmTest,
                         ::testing::Values(Shape{0, 5, 3}, Shape{1, 1, 1}, Shape{1, 7, 5, 2}, Shape{17, 33, 9, 3},
                                           Shape{96, 64, 32}, Shape{129, 31, 1}, Shape{3, 200, 1030, 8},
                                           Shape{1000, 512, 64}, Shape{2500, 576, 264, 8}, Shape{777, 129, 255, 1}));

/// How rows fall on experts.
enum class Skew { kEven, kMany, kOne, kNone, kSingles };

struct Grouped {
  std::int64_t experts, rows, capacity, inputs, outputs;
  Skew skew;
  std::int64_t extra = 0;
};

Tensor offsets_of(const Grouped& shape, std::mt19937_64& generator) {
  std::vector<int> count(static_cast<std::size_t>(shape.experts), 0);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const auto random = static_cast<std::int64_t>(generator() >> 1);
    const std::int64_t expert = shape.skew == Skew::kEven  ? row % shape.experts
                                : shape.skew == Skew::kOne ? shape.experts / 2
                                : shape.skew == Skew::kSingles
                                    ? (row < shape.experts / 2 ? row : shape.experts / 2)
                                    : std::min(random % shape.experts, random / 7 % shape.experts);
    ++count[static_cast<std::size_t>(expert)];
  }
  Tensor offsets = at::zeros({shape.experts + 1}, at::kInt);
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    offsets[e + 1] = offsets[e].item<int>() + count[static_cast<std::size_t>(e)];
  }
  return offsets;
}

class CudaGroupedTest : public CudaTestWithParam<Grouped> {
 protected:
  void check_rows(const Tensor& result, const Tensor& expected64, at::ScalarType type) {
    const Grouped shape = GetParam();
    const Tensor rows = to64(result);
    const Tensor rest = rows.narrow(0, shape.rows, shape.capacity - shape.rows);
    EXPECT_FALSE(rest.eq(rest).any().item<bool>());  // still NaN
    EXPECT_LE(relative_error(rows.narrow(0, 0, shape.rows), expected64.narrow(0, 0, shape.rows)),
              rounded_tolerance(type));
  }

  /// The product that leaves its squares has the bits of the one that does not, and the same sum each time.
  static void check_squares(const Tensor& dy, const Tensor& x, const Tensor& offsets, const Tensor& expected) {
    std::vector<double> sums;
    for (int run = 0; run < 2; ++run) {
      Tensor grad = to_cuda(poisoned(expected.sizes().vec(), at::kFloat));
      Tensor sum = at::full({1}, 0.25, at::TensorOptions(at::kCUDA).dtype(at::kDouble));
      ops::grouped_linear_wgrad_squares(dy, x, offsets, grad, sum);
      EXPECT_TRUE(at::equal(grad.cpu(), expected.cpu()));
      sums.push_back(sum.item<double>());
    }
    const double squares = to64(expected).square().sum().item<double>();
    EXPECT_NEAR(sums[0], 0.25 + squares, 1e-6 * (0.25 + squares));
    EXPECT_EQ(sums[0], sums[1]);
  }

  void match_the_reference() {
    const Grouped shape = GetParam();
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(c10::toString(type));
      std::mt19937_64 generator(9);
      const Tensor offsets = offsets_of(shape, generator);
      const Tensor offsets_gpu = to_cuda(offsets);
      // Rows past the last group are NaN: read, they would show.
      const auto rows_of = [&](std::int64_t width) {
        Tensor x = poisoned({shape.capacity, width}, type);
        x.narrow(0, 0, shape.rows).copy_(random_normal({shape.rows, width}, type, generator));
        return x;
      };
      const Tensor x = rows_of(shape.inputs);
      const Tensor dy = rows_of(shape.outputs);
      const Tensor w = random_normal({shape.experts, shape.outputs, shape.inputs}, type, generator);
      const Tensor before = random_normal({shape.experts, shape.outputs, shape.inputs}, at::kFloat, generator);
      Tensor y64 = poisoned({shape.capacity, shape.outputs}, at::kDouble);
      Tensor dx64 = poisoned({shape.capacity, shape.inputs}, at::kDouble);
      Tensor grad64 = to64(before).clone();
      ops::grouped_linear_forward(to64(x), to64(w), offsets, y64);
      ops::grouped_linear_dgrad(to64(dy), to64(w), offsets, dx64);
      ops::grouped_linear_wgrad(to64(dy), to64(x), offsets, grad64);

      Tensor y = strided_cuda(poisoned({shape.capacity, shape.outputs}, type), shape.extra);
      Tensor dx = strided_cuda(poisoned({shape.capacity, shape.inputs}, type), shape.extra);
      ops::grouped_linear_forward(strided_cuda(x, shape.extra), to_cuda(w), offsets_gpu, y);
      ops::grouped_linear_dgrad(strided_cuda(dy, shape.extra), to_cuda(w), offsets_gpu, dx);
      check_rows(y, y64, type);
      check_rows(dx, dx64, type);
      Tensor grad = to_cuda(before).clone();
      ops::grouped_linear_wgrad(strided_cuda(dy, shape.extra), strided_cuda(x, shape.extra), offsets_gpu, grad);
      EXPECT_LE(relative_error(to64(grad), grad64), 1e-5);
      Tensor again = to_cuda(before).clone();
      ops::grouped_linear_wgrad(strided_cuda(dy, shape.extra), strided_cuda(x, shape.extra), offsets_gpu, again);
      EXPECT_TRUE(at::equal(again.cpu(), grad.cpu()));
      Tensor overwritten = to_cuda(poisoned({shape.experts, shape.outputs, shape.inputs}, at::kFloat));
      ops::grouped_linear_wgrad(strided_cuda(dy, shape.extra), strided_cuda(x, shape.extra), offsets_gpu, overwritten,
                                Write::kOverwrite);
      EXPECT_LE(relative_error(to64(overwritten), grad64.sub(to64(before))), 1e-5);
      check_squares(strided_cuda(dy, shape.extra), strided_cuda(x, shape.extra), offsets_gpu, overwritten);
      for (std::int64_t e = 0; e < shape.experts; ++e) {
        if (offsets[e].item<int>() != offsets[e + 1].item<int>()) continue;
        EXPECT_TRUE(at::equal(grad[e].cpu(), before[e])) << "expert " << e << " has no rows";
        EXPECT_TRUE(overwritten[e].eq(0.0).all().item<bool>()) << "expert " << e << " has no rows";
      }
    }
  }
};

TEST_P(CudaGroupedTest, MatchesTheReference) {
  match_the_reference();
}

TEST_P(CudaGroupedTest, OneByOneMatchesIt) {
  const WithKernels one_by_one({.experts = ops::KernelFamilies::Experts::kOneByOne});
  match_the_reference();
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaGroupedTest,
    ::testing::Values(Grouped{4, 0, 16, 16, 24, Skew::kNone}, Grouped{1, 1, 1, 8, 8, Skew::kEven},
                      Grouped{5, 3, 3, 7, 9, Skew::kEven, 1}, Grouped{8, 200, 256, 64, 136, Skew::kMany},
                      Grouped{64, 500, 500, 128, 264, Skew::kMany, 8}, Grouped{7, 300, 333, 72, 40, Skew::kOne},
                      Grouped{16, 700, 701, 256, 384, Skew::kSingles}, Grouped{3, 1000, 1024, 33, 65, Skew::kMany},
                      Grouped{130, 2000, 2048, 96, 64, Skew::kMany},
                      Grouped{8, 3001, 3001, 512, 520, Skew::kMany, 16}));

TEST_F(CudaTest, GroupedProductsFollowTheOffsets) {
  // A second call with other offsets gives other rows: nothing of the first one's is kept.
  std::mt19937_64 generator(3);
  const Tensor x = random_normal({64, 32}, at::kBFloat16, generator);
  const Tensor w = random_normal({4, 16, 32}, at::kBFloat16, generator);
  constexpr int kBorders[][5] = {{0, 10, 20, 30, 64}, {0, 0, 63, 63, 64}};
  for (const auto& borders : kBorders) {
    const Tensor offsets = at::empty({5}, at::kInt);
    std::ranges::copy(borders, offsets.data_ptr<int>());
    Tensor y64 = poisoned({64, 16}, at::kDouble);
    ops::grouped_linear_forward(to64(x), to64(w), offsets, y64);
    Tensor y = cuda_poisoned({64, 16}, at::kBFloat16);
    ops::grouped_linear_forward(to_cuda(x), to_cuda(w), to_cuda(offsets), y);
    EXPECT_LE(relative_error(to64(y), y64), 4e-3);
  }
}

}  // namespace
}  // namespace primus
