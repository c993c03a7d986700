#include "memory/block.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

namespace fsdp::memory {
namespace {

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * getpagesize();
}

TEST(ReturnFreePages, GivesBackWhatABlockInUsePins) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
  GTEST_SKIP() << "another allocator than glibc's";
#endif
  constexpr size_t kBlocks = 1000, kBytes = size_t{100} << 10;  // too small for mappings of their own
  std::vector<std::unique_ptr<char[]>> blocks;
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(std::make_unique<char[]>(kBytes));
    std::memset(blocks.back().get(), 1, kBytes);
  }
  const auto last = std::move(blocks.back());
  blocks.clear();
  const int64_t before = resident_bytes();
  return_free_pages();
  EXPECT_LT(resident_bytes(), before - static_cast<int64_t>(kBlocks * kBytes) * 9 / 10);
  EXPECT_EQ(last[kBytes - 1], 1);
}

// Page faults of taking, filling and giving back several blocks that are too small for mappings of their own.
int64_t faults_of_a_step() {
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  std::vector<std::unique_ptr<char[]>> blocks;
  constexpr size_t kBlocks = 6, kBytes = size_t{16} << 20;
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks.emplace_back(new char[kBytes]);
    std::memset(blocks.back().get(), 1, kBytes);
  }
  blocks.clear();
  getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(KeepFreePages, LetsTheNextStepHaveThePagesOfThisOne) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
  GTEST_SKIP() << "another allocator than glibc's";
#endif
  mallopt(M_TRIM_THRESHOLD, 32 << 20);  // what the allocator itself arrives at
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  faults_of_a_step();
  const int64_t before = faults_of_a_step();
  keep_free_pages();
  faults_of_a_step();
  EXPECT_GT(before, 10000);
  EXPECT_LT(faults_of_a_step(), before / 10);
}

}  // namespace
}  // namespace fsdp::memory
