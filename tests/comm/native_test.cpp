// The path that uses a backend's own collectives, with Gloo in NCCL's place.

#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <thread>
#include <vector>

#include "comm/c10d/c10d_communicator.h"
#include "comm/c10d/gloo_backend.h"
#include "comm/error_of.h"
#include "support/counting_backend.h"

namespace fsdp::test {
namespace {

C10dOptions over_native_collectives(int rank, int world_size) {
  C10dOptions options;
  options.ranks = {rank, world_size};
  options.timeout = std::chrono::seconds(60);
  options.control = [](const auto& store, int own_rank, int size, auto timeout) {
    return make_gloo_backend(store, own_rank, size, timeout, "127.0.0.1");
  };
  options.data = options.control;
  return options;
}

struct BackendWithoutCollectives : c10d::Backend {
  using c10d::Backend::Backend;
  ~BackendWithoutCollectives() override = default;
};

// As on a machine with a device: the data of its tensors would go over a backend that fails here.
C10dOptions beside_a_device(int rank, int world_size) {
  C10dOptions options = over_native_collectives(rank, world_size);
  options.data = [](const auto&, int own_rank, int size, auto) {
    return c10::make_intrusive<BackendWithoutCollectives>(own_rank, size);
  };
  options.data_device = c10::Device(c10::kCUDA, 0);
  return options;
}

void run_native(int world_size, const std::function<void(Communicator&, int)>& fn,
                const std::function<C10dOptions(int, int)>& options = over_native_collectives) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto communicator = make_c10d_communicator(store, options(rank, world_size));
      fn(*communicator, rank);
      communicator->barrier({})->wait();
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(DeviceBackend, OfTheCallersCarriesItsDevicesData) {
  const auto made = std::make_shared<CountingBackend::Counts>();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto counting = [&](const auto& lane, int rank, int world_size, auto timeout) {
    auto gloo = make_gloo_backend(lane, rank, world_size, timeout, "127.0.0.1");
    return c10::make_intrusive<CountingBackend>(std::move(gloo), made);
  };
  const auto run_rank = [&](int rank) {
    const auto group = new_process_group(
        {.device_backend = DeviceBackend{c10::kCPU, counting}, .rank = rank, .world_size = 2, .store = store});
    const at::Tensor own = at::full({3}, static_cast<float>(rank)), whole = at::zeros({6});
    group->communicator().all_gather(whole, own, std::array<int64_t, 3>{0, 3, 6}, {"gather", {}})->wait();
    EXPECT_EQ(whole[4].item<float>(), 1);
    group->communicator().barrier({})->wait();
  };
  std::thread other([&] { run_rank(1); });
  run_rank(0);
  other.join();
  EXPECT_EQ(made->gathers, 2);
  EXPECT_EQ(made->sends, 0);
}

class NativeCollectives : public testing::TestWithParam<std::vector<int64_t>> {};

// Small integers: every order of summation gives the same bits.
TEST_P(NativeCollectives, GiveTheResultsOfMessages) {
  const auto offsets = GetParam();
  const int world_size = static_cast<int>(offsets.size()) - 1;
  const int64_t numel = offsets.back();
  run_native(world_size, [&](Communicator& communicator, int rank) {
    const at::Tensor ramp = at::arange(static_cast<double>(numel));
    const at::Tensor sum = ramp * world_size + world_size * (world_size - 1) / 2;
    const auto part = [&](const at::Tensor& flat) { return flat.slice(0, offsets[rank], offsets[rank + 1]); };
    const at::Tensor gathered = at::zeros({numel});
    communicator.all_gather(gathered, part(ramp).clone(), offsets, {"gather", {}})->wait();
    EXPECT_TRUE(gathered.equal(ramp));

    const at::Tensor reduced = at::zeros({offsets[rank + 1] - offsets[rank]});
    communicator.reduce_scatter(reduced, ramp + rank, offsets, {"reduce", {}})->wait();
    EXPECT_TRUE(reduced.equal(part(sum)));

    const at::Tensor total = ramp + rank, highest = ramp + rank;
    communicator.all_reduce(total, ReduceOp::kSum, {"sum", {}})->wait();
    EXPECT_TRUE(total.equal(sum));
    communicator.all_reduce(highest, ReduceOp::kMax, {"max", {}})->wait();
    EXPECT_TRUE(highest.equal(ramp + (world_size - 1)));

    const at::Tensor from_last = ramp + rank;
    communicator.broadcast(from_last, world_size - 1, {"broadcast", {}})->wait();
    EXPECT_TRUE(from_last.equal(ramp + (world_size - 1)));
  });
}

INSTANTIATE_TEST_SUITE_P(Parts, NativeCollectives,
                         testing::Values(std::vector<int64_t>{0, 5, 10}, std::vector<int64_t>{0, 4, 8, 12},
                                         std::vector<int64_t>{0, 0, 7, 9}, std::vector<int64_t>{0, 0, 0}));

TEST(DataDevice, HasTheDataOfTheCpuGoByMessagesAndRefusesOtherTensors) {
  const auto with_a_device = [](Communicator& communicator, int rank) {
    const at::Tensor tensor = at::full({6}, rank + 1.0);
    communicator.all_reduce(tensor, ReduceOp::kSum, {"sum", {}})->wait();
    EXPECT_TRUE(tensor.equal(at::full({6}, 3.0)));
    EXPECT_THAT(error_of([&] { communicator.broadcast(at::empty({6}, at::kMeta), 0, {"far", {}})->wait(); }),
                testing::HasSubstr("this rank's tensors are on cuda:0 or the CPU, found one on meta"));
  };
  run_native(2, with_a_device, beside_a_device);
}

}  // namespace
}  // namespace fsdp::test
