#include "comm/group/backend_choice.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr CudaSupport kNoNccl{.has_nccl = false, .devices = 4}, kNoDevice{.has_nccl = true, .devices = 0},
    kOneDevice{.has_nccl = true, .devices = 1}, kFourDevices{.has_nccl = true, .devices = 4};

std::string error_of(const std::string& asked, int local_rank, const CudaSupport& cuda) {
  try {
    choose_backend(asked, local_rank, cuda);
  } catch (const UsageError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(BackendChoice, GivesEachLocalRankADeviceOfItsOwnWithNccl) {
  for (const char* asked : {"auto", "nccl"}) {
    for (int local_rank = 0; local_rank < 4; ++local_rank) {
      const BackendChoice choice = choose_backend(asked, local_rank, kFourDevices);
      EXPECT_EQ(choice.backend, "nccl");
      EXPECT_EQ(choice.device, c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)));
    }
  }
}

TEST(BackendChoice, TakesTheCpuByItselfWithoutNcclOrDevices) {
  for (const CudaSupport& cuda : {kNoNccl, kNoDevice}) {
    const BackendChoice choice = choose_backend("auto", 7, cuda);
    EXPECT_EQ(choice.backend, "cpu");
    EXPECT_EQ(choice.device, std::nullopt);
  }
}

TEST(BackendChoice, TheCpuTakesNoDeviceAndAnyNumberOfRanks) {
  for (const char* asked : {"cpu", "shm", "gloo", "hierarchical"}) {
    const BackendChoice choice = choose_backend(asked, 7, kFourDevices);
    EXPECT_EQ(choice.backend, asked);
    EXPECT_EQ(choice.device, std::nullopt);
  }
}

TEST(BackendChoice, RefusesALocalRankWithoutADevice) {
  for (const char* asked : {"auto", "nccl"}) {
    EXPECT_THAT(error_of(asked, 4, kFourDevices), HasSubstr("local rank 4 needs 5, found 4. Start at most 4 ranks"));
    EXPECT_THAT(error_of(asked, 1, kOneDevice), HasSubstr("local rank 1 needs 2, found 1. Start at most 1 rank on"));
  }
}

TEST(BackendChoice, SaysWhyThereIsNoNccl) {
  EXPECT_THAT(error_of("nccl", 0, kNoNccl), HasSubstr("not available: this build of fsdp has no NCCL"));
  EXPECT_THAT(error_of("nccl", 0, kNoDevice), HasSubstr("not available: LibTorch sees no CUDA device here"));
}

TEST(BackendChoice, ListsTheBackendsThatThereAre) {
  EXPECT_THAT(
      error_of("mpi", 0, kFourDevices),
      HasSubstr(
          "expected the backend \"auto\", \"nccl\", \"cpu\", \"shm\", \"gloo\" or \"hierarchical\", found \"mpi\""));
}

TEST(CudaSupport, CountsTheDevicesThatLibTorchCounts) {
  EXPECT_EQ(cuda_support().devices, static_cast<int>(torch::cuda::device_count()));
}

}  // namespace
}  // namespace fsdp
