#include "comm/group/membership.h"

#include "comm/frame.h"

namespace fsdp::test {
namespace {

constexpr CudaSupport kNoNccl{.has_nccl = false, .devices = 4}, kNoDevice{.has_nccl = true, .devices = 0},
    kOneDevice{.has_nccl = true, .devices = 1}, kFourDevices{.has_nccl = true, .devices = 4};

// Returns "takes BACKEND on DEVICE.", or the message of the error.
std::string choice_of(const std::string& asked, int local_rank, CudaSupport cuda) {
  std::string text;
  const auto error = error_of([&] {
    const auto choice = choose_backend(asked, local_rank, cuda);
    text = str_cat("takes ", choice.backend, choice.device ? " on " + choice.device->str() : "", ".");
  });
  return text.empty() ? error : text;
}

TEST(BackendChoice, GivesEachLocalRankADeviceOfItsOwnWithNccl) {
  for (const char* asked : {"auto", "nccl"})
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(choice_of(asked, rank, kFourDevices), str_cat("takes nccl on cuda:", rank, "."));
}

TEST(BackendChoice, TakesNoDeviceForTheCpuOrSaysWhatIsMissing) {
  struct Row {
    std::string asked;
    int local_rank;
    CudaSupport cuda;
    std::string says;
  };
  const std::vector<Row> rows{
      {"auto", 7, kNoNccl, "takes cpu."},
      {"auto", 7, kNoDevice, "takes cpu."},
      {"cpu", 7, kFourDevices, "takes cpu."},
      {"shm", 7, kFourDevices, "takes shm."},
      {"gloo", 7, kFourDevices, "takes gloo."},
      {"hierarchical", 7, kFourDevices, "takes hierarchical."},
      {"auto", 4, kFourDevices, "local rank 4 needs 5 devices, found 4. Start at most 4 ranks"},
      {"nccl", 4, kFourDevices, "local rank 4 needs 5 devices, found 4. Start at most 4 ranks"},
      {"auto", 1, kOneDevice, "local rank 1 needs 2 devices, found 1. Start at most 1 rank on"},
      {"nccl", 0, kNoNccl, "not available: this build of fsdp has no NCCL"},
      {"nccl", 0, kNoDevice, "not available: LibTorch sees no CUDA device here"},
      {"mpi", 0, kFourDevices,
       "expected the backend \"auto\", \"nccl\", \"cpu\", \"shm\", \"gloo\" or \"hierarchical\", found \"mpi\""}};
  for (const auto& [asked, local_rank, cuda, says] : rows)
    EXPECT_THAT(choice_of(asked, local_rank, cuda), testing::HasSubstr(says));
}

}  // namespace
}  // namespace fsdp::test
