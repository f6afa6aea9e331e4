// Declared = held must be able to fail: a layer that keeps one tensor more than it declares is caught (decision 17).
#include "nn/saved.hpp"

#include <gtest/gtest.h>

#include "nn/specs.hpp"
#include "ops/allocator.hpp"

namespace primus {
namespace {

model::SavedDeclaration declaration() {
  return {{{"kept", {4, 3}, DType::kFloat32, model::SavedCategory::kAttention},
           {"absent", {0, 3}, DType::kFloat32, model::SavedCategory::kAttention}},
          {}};
}

TEST(SavedTest, AllocatesWhatIsDeclaredOnceAndForgetsIt) {
  ops::install_allocator();
  const std::int64_t before = ops::memory_report().held(ops::saved_tag(model::SavedCategory::kAttention));
  nn::Saved saved(declaration());
  EXPECT_EQ(saved.allocate(0).sizes(), (std::vector<std::int64_t>{4, 3}));
  EXPECT_EQ(ops::memory_report().held(ops::saved_tag(model::SavedCategory::kAttention)) - before,
            declaration().size_bytes());
  EXPECT_THROW(saved.allocate(0), InternalError);
  EXPECT_THROW(saved.at(1), InternalError);
  saved.release_all();
  EXPECT_EQ(ops::memory_report().held(ops::saved_tag(model::SavedCategory::kAttention)), before);
  EXPECT_THROW(saved.at(0), InternalError);
}

TEST(SavedTest, OneTensorMoreIsSeen) {
  ops::install_allocator();
  const std::int64_t before = ops::memory_report().total_bytes;
  nn::Saved saved(declaration());
  saved.allocate(0);
  // What a careless layer does: it keeps a workspace tensor alive past forward.
  const at::Tensor kept = at::empty({4, 3}, at::kFloat);
  EXPECT_NE(ops::memory_report().total_bytes - before, declaration().size_bytes());
}

TEST(SavedTest, ScopesNestAndCountByWhoAllocates) {
  ops::install_allocator();
  const auto held = [](ops::MemoryTag tag) { return ops::memory_report().held(tag); };
  const std::int64_t parameters = held(ops::MemoryTag::kParameters);
  const std::int64_t optimizer = held(ops::MemoryTag::kOptimizer);
  at::Tensor outer, inner;
  {
    const ops::MemoryScope scope(ops::MemoryTag::kParameters);
    {
      const ops::MemoryScope nested(ops::MemoryTag::kOptimizer);
      inner = at::empty({100}, at::kFloat);
    }
    outer = at::empty({10}, at::kFloat);
  }
  EXPECT_EQ(held(ops::MemoryTag::kParameters) - parameters, 40);
  EXPECT_EQ(held(ops::MemoryTag::kOptimizer) - optimizer, 400);
  outer.reset();
  inner.reset();
  EXPECT_EQ(held(ops::MemoryTag::kParameters), parameters);
  EXPECT_EQ(held(ops::MemoryTag::kOptimizer), optimizer);
}

TEST(SavedTest, CacheServesTheSameSizeAgainAndGivesItBack) {
  ops::install_allocator();
  ops::release_cache();
  const std::int64_t reserved = ops::memory_report().reserved_bytes;
  at::empty({1 << 20}, at::kFloat).reset();
  EXPECT_GE(ops::memory_report().reserved_bytes - reserved, 4 << 20);
  const std::int64_t cached = ops::memory_report().reserved_bytes;
  const at::Tensor again = at::empty({1 << 20}, at::kFloat);
  EXPECT_EQ(ops::memory_report().reserved_bytes, cached);
  ops::release_cache();
  EXPECT_EQ(ops::memory_report().reserved_bytes, cached);
}

TEST(SavedTest, AnySizeIsServedFromTheCacheTheSecondTime) {
  ops::install_allocator();
  ops::release_cache();
  for (std::int64_t num_bytes = 1000; num_bytes < (40 << 20); num_bytes += num_bytes / 7 + 1) {
    at::empty({num_bytes}, at::kByte).reset();
    const std::int64_t reserved = ops::memory_report().reserved_bytes;
    for (int i = 0; i < 3; ++i) at::empty({num_bytes}, at::kByte).reset();
    EXPECT_EQ(ops::memory_report().reserved_bytes, reserved) << num_bytes;
  }
  ops::release_cache();
}

}  // namespace
}  // namespace primus
