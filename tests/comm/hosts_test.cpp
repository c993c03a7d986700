// Tests of the traffic between several hosts, and of the memory that a host's ranks share. CommCollectives tests the
// results.

#include <torch/torch.h>

#include <algorithm>
#include <mutex>

#include "comm/frame.h"

namespace fsdp::test {
namespace {

at::Tensor random_values(int rank, int64_t numel) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(50 + rank));
  return at::randn({numel}, generator, at::kFloat);
}

class Hosts : public testing::TestWithParam<std::vector<int>> {
 protected:
  static int world_size() { return static_cast<int>(GetParam().size()); }
  static void run(const std::function<void(int rank, Communicator& all)>& fn) {
    run_thread_ranks(world_size(), [&](int rank) { fn(rank, all_ranks()); },
                     {.backend = "hierarchical", .hosts = GetParam()});
  }
};

TEST_P(Hosts, GatherOnceIntoMemoryThatTheirRanksShare) {
  run([](int rank, Communicator& all) {
    for (const int64_t length : {3, 10'000}) {
      const int64_t numel = length * world_size();
      const std::vector<SharedPart> parts(2, {"w", static_cast<size_t>(numel) * sizeof(float)});
      const auto buffers = all.share_on_host(parts, at::kCPU);
      ASSERT_EQ(buffers.size(), 2U);
      for (int step = 0; step < 2; ++step) {
        const auto expected = random_values(step, numel);
        const auto before = traffic();
        {
          std::vector<c10::DataPtr> memory(2);
          std::vector<GatherPlane> planes;
          for (const auto i : {0, 1}) {
            memory[i] = buffers[i]->hold();
            const auto output = at::from_blob(memory[i].get(), {numel});
            planes.push_back({output, slice_of(expected, rank, world_size()) * (i + 1)});
          }
          all.all_gather(planes, {"w"})->wait();
          for (const auto i : {0, 1})
            EXPECT_TRUE(planes[i].output.equal(expected * (i + 1))) << "rank " << rank << ", step " << step;
          EXPECT_EQ((traffic() - before).inside_host, Traffic::Link{}) << "shared data is not passed on";
        }
        barrier();
        const auto left = at::from_blob(buffers[0]->data(), {numel});
        EXPECT_TRUE(left.eq(0).all().item<bool>()) << "the last rank that releases pages returns them to the system";
        barrier();
      }
    }
  });
}

TEST_P(Hosts, SendEachByteToEveryOtherHostOnce) {
  const auto hosts = static_cast<size_t>(GetParam().back() + 1);
  std::vector<Traffic> gathered(hosts), reduced(hosts);
  std::mutex mutex;
  constexpr int64_t kSlice = 10'000;
  const int64_t numel = kSlice * world_size();
  run([&](int rank, Communicator& all) {
    const auto values = random_values(rank, numel);
    const auto slice = slice_of(values, rank, world_size()).clone();
    const auto before = traffic();
    all.all_gather(at::empty({numel}), slice, {"w"})->wait();
    const auto between = traffic();
    all.reduce_scatter(slice, values, {"w"})->wait();
    const auto after = traffic();
    const std::lock_guard lock(mutex);
    for (auto [sum, of] : {std::pair(&gathered, between - before), std::pair(&reduced, after - between)}) {
      auto& link = (*sum)[static_cast<size_t>(GetParam()[static_cast<size_t>(rank)])].between_hosts;
      link.sent += of.between_hosts.sent;
      link.received += of.between_hosts.received;
    }
  });
  for (size_t host = 0; host < hosts; ++host) {
    const int64_t own = kSlice * std::ranges::count(GetParam(), static_cast<int>(host));
    const int64_t others = numel - own, peers = std::ssize(gathered) - 1, bytes = sizeof(float);
    EXPECT_EQ(gathered[host].between_hosts, (Traffic::Link{bytes * own * peers, bytes * others})) << "host " << host;
    EXPECT_EQ(reduced[host].between_hosts, (Traffic::Link{bytes * others, bytes * own * peers})) << "host " << host;
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, Hosts, testing::Values(std::vector{0, 0, 1, 1}, std::vector{0, 0, 1, 1, 2, 2}));

// The slices are so large that each one travels in several parts. The pieces of the input have a gap between them.
TEST(SeveralHosts, SumLargeSlicesPartByPart) {
  constexpr int64_t kNumel = 6'000'006, kGapBegin = 1'999'000, kGapEnd = 2'000'500, kBorder = 5'500'000;
  const auto values = at::arange(kNumel).remainder(100).to(at::kFloat), expected = values * (63 * 0.5);
  expected.slice(0, kGapBegin, kGapEnd).zero_();
  const auto act = [&](int rank) {
    const auto own = values * (1 << rank), sum = at::zeros({kNumel / 6});
    std::vector<Piece> pieces{
        {0, own.slice(0, 0, kGapBegin)}, {kGapEnd, own.slice(0, kGapEnd, kBorder)}, {kBorder, own.slice(0, kBorder)}};
    all_ranks().reduce_scatter({ReducePlane{sum, std::move(pieces)}}, 0.5, {"w"})->wait();
    EXPECT_TRUE(sum.equal(slice_of(expected, rank, 6))) << "rank " << rank;
  };
  run_thread_ranks(6, act, {.backend = "hierarchical", .hosts = {0, 0, 1, 1, 2, 2}});
}

TEST(HostsOfAGroup, AreThoseOfItsRanks) {
  run_thread_ranks(2, [](int) { EXPECT_THAT(default_process_group()->hosts(), testing::Each(0)); },
                   {.backend = "gloo"});
  const auto act = [](int rank) {
    const auto all = default_process_group();
    const auto host = all->split({{0, 1}, {2, 3}}, "host"), across = all->split({{0, 2}, {1, 3}}, "across");
    EXPECT_THAT(all->hosts(), testing::ElementsAre(0, 0, 1, 1));
    EXPECT_THAT(host->hosts(), testing::ElementsAre(0, 0));
    EXPECT_THAT(across->hosts(), testing::ElementsAre(0, 1));
    const auto tensor = at::full({1000}, static_cast<float>(1 << rank));
    sum_up(host->communicator(), tensor);
    sum_up(across->communicator(), tensor);
    EXPECT_TRUE(tensor.eq(15).all().item<bool>());
  };
  run_thread_ranks(4, act, {.backend = "hierarchical", .hosts = {0, 0, 1, 1}});
}

}  // namespace
}  // namespace fsdp::test
