#include "memory/block.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
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
#if !defined(__GLIBC__)
  GTEST_SKIP() << "another allocator than glibc's";
#endif
  constexpr size_t kBlocks = 1000, kBytes = size_t{100} << 10;  // too small for their own mappings
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

// Returns the free bytes at the end of the heap after 96 MiB were allocated and freed. The blocks are too small for
// their own mappings.
size_t kept_bytes() {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int i = 0; i < 6; ++i) blocks.emplace_back(new char[size_t{16} << 20]);
  blocks.clear();
  return mallinfo2().keepcost;
}

TEST(KeepFreePages, LetsTheNextStepHaveThePagesOfThisOne) {
#if !defined(__GLIBC__)
  GTEST_SKIP() << "another allocator than glibc's";
#endif
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  EXPECT_LE(kept_bytes(), size_t{64} << 20);
  setenv("MALLOC_TRIM_THRESHOLD_", "1", 1);
  keep_free_pages();
  EXPECT_LE(kept_bytes(), size_t{64} << 20) << "the environment's limit";
  unsetenv("MALLOC_TRIM_THRESHOLD_");
  keep_free_pages();
  EXPECT_GE(kept_bytes(), size_t{96} << 20);
}

}  // namespace
}  // namespace fsdp::memory
