#include "comm/group/backend_choice.h"

#include <gmock/gmock.h>
#include <torch/cuda.h>

#include <vector>

#include "comm/error_of.h"

namespace fsdp::test {
namespace {

constexpr CudaSupport kNoNccl{.has_nccl = false, .devices = 4}, kNoDevice{.has_nccl = true, .devices = 0},
    kOneDevice{.has_nccl = true, .devices = 1}, kFourDevices{.has_nccl = true, .devices = 4};

TEST(BackendChoice, GivesEachLocalRankADeviceOfItsOwnWithNccl) {
  for (const char* asked : {"auto", "nccl"}) {
    for (int local_rank = 0; local_rank < 4; ++local_rank) {
      const BackendChoice choice = choose_backend(asked, local_rank, kFourDevices);
      EXPECT_EQ(choice.backend, "nccl");
      EXPECT_EQ(choice.device, c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)));
    }
  }
}

TEST(BackendChoice, TheCpuTakesNoDeviceAndAnyNumberOfRanks) {
  struct Choice {
    std::string asked;
    CudaSupport cuda;
    std::string chosen;
  };
  for (const auto& [asked, cuda, chosen] : std::vector<Choice>{{"auto", kNoNccl, "cpu"},
                                                               {"auto", kNoDevice, "cpu"},
                                                               {"cpu", kFourDevices, "cpu"},
                                                               {"shm", kFourDevices, "shm"},
                                                               {"gloo", kFourDevices, "gloo"},
                                                               {"hierarchical", kFourDevices, "hierarchical"}}) {
    const BackendChoice choice = choose_backend(asked, 7, cuda);
    EXPECT_EQ(choice.backend, chosen);
    EXPECT_EQ(choice.device, std::nullopt);
  }
}

TEST(BackendChoice, SaysWhatIsMissing) {
  struct Refusal {
    std::string asked;
    int local_rank;
    CudaSupport cuda;
    std::string says;
  };
  for (const auto& refusal : std::vector<Refusal>{
           {"auto", 4, kFourDevices, "local rank 4 needs 5, found 4. Start at most 4 ranks"},
           {"nccl", 4, kFourDevices, "local rank 4 needs 5, found 4. Start at most 4 ranks"},
           {"auto", 1, kOneDevice, "local rank 1 needs 2, found 1. Start at most 1 rank on"},
           {"nccl", 0, kNoNccl, "not available: this build of fsdp has no NCCL"},
           {"nccl", 0, kNoDevice, "not available: LibTorch sees no CUDA device here"},
           {"mpi", 0, kFourDevices,
            "expected the backend \"auto\", \"nccl\", \"cpu\", \"shm\", \"gloo\" or \"hierarchical\", found \"mpi\""}})
    EXPECT_THAT(error_of([&] { choose_backend(refusal.asked, refusal.local_rank, refusal.cuda); }),
                testing::HasSubstr(refusal.says));
}

TEST(CudaSupport, CountsTheDevicesThatLibTorchCounts) {
  EXPECT_EQ(cuda_support().devices, static_cast<int>(torch::cuda::device_count()));
}

}  // namespace
}  // namespace fsdp::test
