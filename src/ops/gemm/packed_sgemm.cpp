#include "ops/gemm/packed_sgemm.hpp"

#include <cstring>

#include "model/host_cuts.hpp"
#include "ops/for_each_unit.hpp"
#include "ops/gemm/packed_kernel.hpp"
#include "ops/scratch.hpp"

// Legend: M rows, N columns, K depth of c_MN = a_MK · b_KN.
namespace primus::ops {
namespace {

using packed::kColumns;
static_assert(kColumns == model::kPackedColumns);
using packed::kRows;

// A packed panel of b and a block of a share the L2 cache (by measurement, bench/ops).
constexpr std::int64_t kDepth = 384;
// A task's share of c: large enough to use a panel from L1 again, and cut down until threads can share the tasks
// evenly.
constexpr std::int64_t kTaskRows = 4 * kRows;
constexpr std::int64_t kTaskPanels = 8;
constexpr std::int64_t kFewestTasks = 32;
// Rows whose distance is a multiple of this many floats fall into the same few sets of a cache: such an a is packed
// too.
constexpr std::int64_t kAliasingStride = 1024;
constexpr double kSmallestWork = 1 << 18;

std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

/// Columns [panel · kColumns, …) of b, depth [first, first + depth), as [depth][kColumns] with zeros past N.
void pack_b(const StridedOperand& b, std::int64_t n, std::int64_t panel, std::int64_t first, std::int64_t depth,
            float* target) {
  const std::int64_t column = panel * kColumns;
  const std::int64_t count = std::min(kColumns, n - column);
  const float* source = b.data + first * b.row_stride + column * b.column_stride;
  if (b.column_stride != 1) {
    packed::pack_transposed(source, b.column_stride, count, depth, kColumns, target);
    return;
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    std::memcpy(target + k * kColumns, source + k * b.row_stride, static_cast<std::size_t>(count) * sizeof(float));
    std::fill(target + k * kColumns + count, target + (k + 1) * kColumns, 0.0F);
  }
}

/// One product; the parts that stay the same over its tasks.
class Product {
 public:
  Product(std::int64_t m, std::int64_t n, std::int64_t k, StridedOperand a, StridedOperand b, Target target, float* c,
          std::int64_t c_stride)
      : m_(m),
        n_(n),
        k_(k),
        a_(a),
        b_(b),
        target_(target),
        c_(c),
        c_stride_(c_stride),
        panels_(divide_up(n, kColumns)) {
    packs_a_ = (a.row_stride != 1 && a.row_stride % kAliasingStride == 0) ||
               (a.column_stride != 1 && a.column_stride % kAliasingStride == 0);
  }

  void run() {
    const Tensor panels = scratch({panels_ * kColumns * k_}, at::kFloat);
    b_panels_ = panels.data_ptr<float>();
    for_each_unit(panels_, [&](std::int64_t, std::int64_t panel) {
      for (std::int64_t first = 0; first < k_; first += kDepth) {
        pack_b(b_, n_, panel, first, std::min(kDepth, k_ - first), panel_at(panel, first));
      }
    });
    cut_tasks();
    const std::int64_t panel_tasks = divide_up(panels_, task_panels_);
    for_each_unit(divide_up(m_, task_rows_) * panel_tasks, [&](std::int64_t, std::int64_t task) {
      run_task(task / panel_tasks * task_rows_, task % panel_tasks * task_panels_);
    });
  }

 private:
  void cut_tasks() {
    const auto too_few = [&] { return divide_up(m_, task_rows_) * divide_up(panels_, task_panels_) < kFewestTasks; };
    while (too_few() && task_rows_ > kRows) task_rows_ /= 2;
    while (too_few() && task_panels_ > 1) task_panels_ /= 2;
  }

  /// A panel's blocks of depth lie one behind the other.
  float* panel_at(std::int64_t panel, std::int64_t first) const { return b_panels_ + (panel * k_ + first) * kColumns; }

  void run_task(std::int64_t first_row, std::int64_t first_panel) const {
    const std::int64_t end_row = std::min(m_, first_row + task_rows_);
    const std::int64_t end_panel = std::min(panels_, first_panel + task_panels_);
    alignas(64) float a_block[kTaskRows * kDepth];
    for (std::int64_t first = 0; first < k_; first += kDepth) {
      const std::int64_t depth = std::min(kDepth, k_ - first);
      if (packs_a_) pack_a(first_row, end_row, first, depth, a_block);
      const bool accumulates = first > 0 || target_ == Target::kAccumulate;
      for (std::int64_t panel = first_panel; panel < end_panel; ++panel) {
        for (std::int64_t row = first_row; row < end_row; row += kRows) {
          packed::TileArguments arguments{a_.data + row * a_.row_stride + first * a_.column_stride,
                                          a_.row_stride,
                                          a_.column_stride,
                                          panel_at(panel, first),
                                          depth,
                                          c_ + row * c_stride_ + panel * kColumns,
                                          c_stride_};
          if (packs_a_) {
            arguments.a = a_block + (row - first_row) * depth;
            arguments.row_stride = 1;
            arguments.depth_stride = kRows;
          }
          multiply_tile(std::min(kRows, end_row - row), std::min(kColumns, n_ - panel * kColumns), accumulates,
                        arguments);
        }
      }
    }
  }

  /// Groups of kRows rows, each [depth][kRows].
  void pack_a(std::int64_t first_row, std::int64_t end_row, std::int64_t first, std::int64_t depth,
              float* target) const {
    for (std::int64_t row = first_row; row < end_row; row += kRows) {
      const std::int64_t count = std::min(kRows, end_row - row);
      const float* source = a_.data + row * a_.row_stride + first * a_.column_stride;
      float* group = target + (row - first_row) * depth;
      if (a_.row_stride == 1) {
        for (std::int64_t k = 0; k < depth; ++k) {
          std::memcpy(group + k * kRows, source + k * a_.column_stride,
                      static_cast<std::size_t>(count) * sizeof(float));
        }
      } else {
        packed::pack_transposed(source, a_.row_stride, count, depth, kRows, group);
      }
    }
  }

  /// A tile at the right edge goes through a buffer: the kernel writes whole vectors.
  static void multiply_tile(std::int64_t rows, std::int64_t columns, bool accumulates,
                            packed::TileArguments& arguments) {
    if (columns == kColumns) {
      accumulates ? packed::multiply_tile_accumulate(rows, arguments)
                  : packed::multiply_tile_overwrite(rows, arguments);
      return;
    }
    alignas(64) float buffer[kRows * kColumns];
    float* const c = std::exchange(arguments.c, buffer);
    const std::int64_t c_stride = std::exchange(arguments.c_stride, kColumns);
    packed::multiply_tile_overwrite(rows, arguments);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        float& element = c[i * c_stride + j];
        element = accumulates ? element + buffer[i * kColumns + j] : buffer[i * kColumns + j];
      }
    }
  }

  std::int64_t m_, n_, k_;
  StridedOperand a_, b_;
  Target target_;
  float* c_;
  std::int64_t c_stride_;
  std::int64_t panels_;
  std::int64_t task_rows_ = kTaskRows;
  std::int64_t task_panels_ = kTaskPanels;
  bool packs_a_ = false;
  float* b_panels_ = nullptr;
};

bool has_kernel() {
  // All of x86-64-v4, which the kernel's file is compiled for.
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512cd") != 0;
}

}  // namespace

bool has_packed_sgemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  static const bool has = has_kernel();
  return has && m >= kRows && n >= kColumns / 2 && k >= 16 &&
         static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) >= kSmallestWork;
}

void packed_sgemm(std::int64_t m, std::int64_t n, std::int64_t k, StridedOperand a, StridedOperand b, Target target,
                  float* c, std::int64_t c_stride) {
  Product(m, n, k, a, b, target, c, c_stride).run();
}

}  // namespace primus::ops
