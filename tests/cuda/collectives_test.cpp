// Tests of NCCL and of the rank's device. They are skipped, with the reason, if there is no CUDA device.

#include <fsdp/communicator.h>
#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>

#include "comm/c10d/c10d_communicator.h"
#include "comm/c10d/backends.h"
#include "cuda/devices.h"
#include "support/collective_cases.h"
#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

using testing::HasSubstr;

constexpr std::chrono::seconds kTimeout{60};

// A group of one rank moves nothing, but this communicator uses NCCL even with one rank.
std::shared_ptr<Communicator> one_rank_over_nccl() {
  const c10::Device device(c10::kCUDA, 0);
  C10dOptions options;
  options.timeout = kTimeout;
  options.control = [](const auto& store, int rank, int size, auto timeout) {
    return make_gloo_backend(store, rank, size, timeout, "127.0.0.1");
  };
  options.data = [device](const auto& store, int rank, int size, auto timeout) {
    return make_nccl_backend(store, rank, size, timeout, device);
  };
  options.data_device = device;
  return make_c10d_communicator(c10::make_intrusive<c10d::HashStore>(), options);
}

PROCESS_CASE(collectives_over_nccl) {
  init_process_group({.backend = "nccl", .timeout = kTimeout});
  const c10::Device device = at::empty({1}, at::kCUDA).device();
  TORCH_CHECK(device.index() == local_rank(), "local rank ", local_rank(), " has ", device);
  const auto alone = world_size() == 1 ? one_rank_over_nccl() : nullptr;
  Communicator& communicator = alone ? *alone : default_process_group()->communicator();
  for (const c10::Device& place : {device, c10::Device(c10::kCPU)}) check_collectives(communicator, place);
  TORCH_CHECK(!testing::Test::HasFailure(), "the collectives' cases failed, see above");
  destroy_process_group();
}

void expect_collectives_work(int world_size) {
  ProcessRanks ranks("collectives_over_nccl", {.world_size = world_size});
  for (int rank = 0; rank < world_size; ++rank) EXPECT_EQ(ranks.wait(rank).exit_code, 0) << ranks.wait(rank).output;
}

TEST(Cuda, OneRankGoesThroughNccl) {
  if (const auto why = why_no_cuda(1); !why.empty()) GTEST_SKIP() << why;
  expect_collectives_work(1);
}

TEST(Cuda, EveryRankTakesTheDeviceOfItsLocalRank) {
  if (const auto why = why_no_cuda(2); !why.empty()) GTEST_SKIP() << why;
  expect_collectives_work(2);
  if (why_no_cuda(4).empty()) expect_collectives_work(4);
}

// The host of the rank that is left waits for a result when the other rank ends.
PROCESS_CASE(lose_a_rank_over_nccl) {
  init_process_group({.backend = "nccl", .timeout = std::chrono::seconds(20)});
  const auto sum = at::zeros({1 << 20}, at::kCUDA);
  try {
    for (int step = 0;; ++step) {
      if (rank() == 1 && step == 20) std::_Exit(3);
      default_process_group()->communicator().all_reduce(sum, ReduceOp::kSum, {"sum"})->wait();
      static_cast<void>(sum.sum().item<float>());
    }
  } catch (const PeerLost& error) {
    TORCH_CHECK(error.rank() == 1, "expected rank 1 to be named, found ", error.rank());
  }
}

TEST(Cuda, ALostRankEndsWhatTheHostWaitsForAndIsNamed) {
  if (const auto why = why_no_cuda(2); !why.empty()) GTEST_SKIP() << why;
  ProcessRanks ranks("lose_a_rank_over_nccl", {.world_size = 2});
  EXPECT_EQ(ranks.wait(0).exit_code, 0) << ranks.wait(0).output;
}

PROCESS_CASE(join_with_nccl) { init_process_group({.backend = "nccl", .timeout = kTimeout}); }

TEST(Cuda, ARankTooManyIsToldSo) {
  if (const auto why = why_no_cuda(1); !why.empty()) GTEST_SKIP() << why;
  const int devices = cuda_support().devices;
  ProcessRanks ranks("join_with_nccl", {.world_size = devices + 1});
  EXPECT_EQ(ranks.wait(devices).exit_code, 1);
  EXPECT_THAT(ranks.wait(devices).output, HasSubstr(c10::str("local rank ", devices, " needs ", devices + 1)));
}

}  // namespace
}  // namespace fsdp::test
