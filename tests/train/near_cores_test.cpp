// Binding near a GPU: lists of cores, threads that are there and threads to come, and machines that do not tell.
#include "train/near_cores.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/error.hpp"
#include "base/files.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;

std::vector<int> allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

class NearCores : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("primus_near_{}", ::getpid());
    fs::create_directories(folder_ / "0000:19:00.0");
    before_ = allowed();
    threads_ = at::get_num_threads();
  }
  void TearDown() override {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : before_) CPU_SET(core, &set);
    ::sched_setaffinity(0, sizeof set, &set);
    at::set_num_threads(threads_);
    fs::remove_all(folder_);
  }
  std::string bind(const std::string& list) {
    write_file(folder_ / "0000:19:00.0/local_cpulist", list);
    return bind_near("0000:19:00.0", folder_);
  }

  fs::path folder_;
  std::vector<int> before_;
  int threads_ = 1;
};

TEST_F(NearCores, ListsAreReadAsLinuxWritesThem) {
  EXPECT_EQ(cores_of("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(cores_of("\n"), std::vector<int>{});
  for (const char* wrong : {"a", "3-1", "-1", "1-", "0,,1", "0;1", "99999999999"}) {
    EXPECT_THROW(cores_of(wrong), UserError) << wrong;
  }
}

TEST_F(NearCores, ThreadsOfNowAndLaterRunThere) {
  const int core = before_.back();
  std::vector<int> of_a_thread;
  std::thread([&] {
    EXPECT_EQ(bind(std::to_string(core)), "bound to the 1 cores near the GPU at 0000:19:00.0");
    EXPECT_EQ(at::get_num_threads(), 1);  // of those that this thread asks for help
    std::thread([&] { of_a_thread = allowed(); }).join();
  }).join();
  EXPECT_EQ(of_a_thread, std::vector<int>{core}) << "a thread that was made later";
  EXPECT_EQ(allowed(), std::vector<int>{core}) << "a thread that was there";
}

TEST_F(NearCores, WhatIsNotKnownOrNotAllowedBindsNothing) {
  EXPECT_NE(bind_near("0000:20:00.0", folder_).find("does not say which cores"), std::string::npos);
  EXPECT_NE(bind(std::to_string(CPU_SETSIZE - 1)).find("no core near the GPU"), std::string::npos);
  EXPECT_NE(bind("\n").find("no core near the GPU"), std::string::npos);
  EXPECT_EQ(allowed(), before_);
}

TEST_F(NearCores, ACpuHasAllCores) {
  ::setenv("ENABLE_NUMA_BINDING", "1", 1);
  EXPECT_EQ(bind_if_asked(at::kCPU), "ENABLE_NUMA_BINDING: a run on the CPU has all cores");
  ::setenv("ENABLE_NUMA_BINDING", "0", 1);
  EXPECT_EQ(bind_if_asked(at::kCPU), "");
  ::unsetenv("ENABLE_NUMA_BINDING");
  EXPECT_EQ(bind_if_asked(at::kCPU), "");
  EXPECT_EQ(allowed(), before_);
}

}  // namespace
}  // namespace primus::train
