#include "diag/op_benchmark.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "diag/op_cases.hpp"

namespace primus::diag {
namespace {

Workload tiny() {
  Workload workload = workload_of(at::kCPU);
  workload.cache_bytes = 1e3;
  workload.tokens = 32;
  workload.sequence = 16;
  workload.hidden = 64;
  workload.heads = 2;
  workload.nope = 32;
  workload.rotary = 16;
  workload.value = 32;
  workload.kv_rank = 32;
  workload.dense_ffn = 96;
  workload.expert_ffn = workload.shared_ffn = 32;
  workload.experts = 4;
  workload.top_k = 2;
  workload.vocabulary = 128;
  workload.loss_tokens = 16;
  workload.parameters = std::int64_t{1} << 20;
  return workload;
}

TEST(OpBenchmark, EveryCaseRunsBesideLibtorchs) {
  std::set<std::string> seen;
  int num_beside_aten = 0;
  for (const OpCase& measured : op_cases(tiny())) {
    SCOPED_TRACE(measured.op + " " + measured.shape);
    EXPECT_TRUE(seen.insert(measured.op + " " + measured.shape).second) << "measured twice";
    EXPECT_GT(measured.amount, 0.0);
    const Calls calls = measured.prepare();
    for (int i = 0; i < 3; ++i) {
      EXPECT_NO_THROW(calls.ours(i));
      if (!calls.aten) continue;
      EXPECT_NO_THROW(calls.aten(i));
    }
    num_beside_aten += calls.aten ? 1 : 0;
  }
  EXPECT_GT(seen.size(), 45U);
  EXPECT_GT(num_beside_aten, 40);
}

TEST(OpBenchmark, ProductsCountEachMultiplicationAndAddition) {
  const Workload workload = tiny();
  std::map<std::string, double> amounts;
  for (const OpCase& measured : op_cases(workload)) amounts[measured.op + " " + measured.shape] = measured.amount;
  EXPECT_EQ(amounts.at("linear_forward o T 32 I 64 O 64"), 2.0 * 32 * 64 * 64);
  EXPECT_EQ(amounts.at("grouped_linear_wgrad experts fc1 R 64 E 4 I 64 O 64"), 2.0 * 64 * 64 * 64);
  // Queries and keys of 48, values of 32: the causal half of two products of B·S² scores a head.
  EXPECT_EQ(amounts.at("attention_forward B 2 S 16 A 2 head 48/32"), 2.0 * 16 * 16 * 2 * (48 + 32));
}

TEST(OpBenchmark, OneDocumentForPrograms) {
  testing::internal::CaptureStdout();
  run_op_benchmark({.device = ops::DeviceChoice::kCpu, .filter = "router", .format = BenchmarkFormat::kJson});
  const auto json = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_GT(json["copy_gb_s"].get<double>(), 0.0);
  EXPECT_GT(json["product_tflop_s"].get<double>(), 0.0);
  ASSERT_EQ(json["ops"].size(), 2U);
  const auto& forward = json["ops"][0];
  EXPECT_EQ(forward["op"], "router_forward");
  EXPECT_EQ(forward["unit"], "GB/s");
  EXPECT_GT(forward["median_us"].get<double>(), 0.0);
  EXPECT_NEAR(forward["ceiling_percent"].get<double>(),
              100.0 * forward["rate"].get<double>() / json["copy_gb_s"].get<double>(), 1e-6);
  EXPECT_NEAR(forward["times_aten"].get<double>(),
              forward["aten_us"].get<double>() / forward["median_us"].get<double>(), 1e-6);
  EXPECT_TRUE(json["ops"][1]["times_aten"].is_null()) << "libtorch has no operator for the backward pass";
}

TEST(OpBenchmark, ALineAnOpForPeople) {
  testing::internal::CaptureStdout();
  run_op_benchmark({.device = ops::DeviceChoice::kCpu, .filter = "permute_rows"});
  const std::string text = testing::internal::GetCapturedStdout();
  for (const char* part : {"ceilings: a copy", "median us", "x ATen", "permute_rows ", "GB/s"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

TEST(OpBenchmark, AnUnknownOpIsRefusedWithTheNearest) {
  try {
    run_op_benchmark({.device = ops::DeviceChoice::kCpu, .filter = "swiglu_forwrad"});
    FAIL() << "nothing has this name";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().front().key, "--filter");
    EXPECT_EQ(error.problems().front().nearest, "swiglu_forward");
  }
}

}  // namespace
}  // namespace primus::diag
