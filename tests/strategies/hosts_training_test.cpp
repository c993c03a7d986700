// Tests of training on several hosts: the memory that a host holds once for its ranks, and the traffic between hosts.

#include <gmock/gmock.h>

#include <array>
#include <thread>

#include "api/group_view.h"
#include "runtime/param_group.h"
#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

constexpr int kRanks = 4, kRanksOfHost = 2;

// Runs `act` on two hosts of two ranks each.
void on_hosts(const std::function<void(SmallNetImpl&, const Group&, int rank)>& act) {
  const auto run = [&](int rank) {
    const auto net = make_small_net(64, 4);
    const auto group = shard_blocks(*net);
    act(*net, group, rank);
  };
  run_thread_ranks(kRanks, run, {.backend = "hierarchical", .hosts = {0, 0, 1, 1}});
}

TEST(OnSeveralHosts, WholeParametersLieOnceOnEach) {
  std::array<const void*, kRanks> addresses{};
  on_hosts([&](SmallNetImpl& net, const Group& group, int rank) {
    const ForwardScope scope(group);
    const torch::NoGradGuard no_grad;
    static_cast<void>(net.first->weight.sum());
    addresses[static_cast<size_t>(rank)] = net.first->weight.const_data_ptr();
  });
  EXPECT_EQ(addresses[0], addresses[1]);
  EXPECT_EQ(addresses[2], addresses[3]);
  EXPECT_NE(addresses[0], addresses[2]);
}

TEST(OnSeveralHosts, SeveralGroupsAreGatheredWhileNobodyWaits) {
  on_hosts([&](SmallNetImpl& net, const Group& group, int /*rank*/) {
    const auto first = group_of(*net.blocks[0]), second = group_of(*net.blocks[1]);
    int64_t bytes = 0;
    for (const auto& of : {first, second})
      for (const auto& flat : param_groups(of).front()->flats())
        bytes += static_cast<int64_t>(flat.whole().form.bytes(flat.plane().slice_numel));
    const auto before = traffic();
    auto one = first.unshard(), other = second.unshard();
    const auto received = [&] { return (traffic() - before).between_hosts.received; };
    while (received() < bytes) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(received(), bytes);
    one.wait();
    other.wait();
    first.reshard();
    second.reshard();
    EXPECT_EQ(group.stats().whole.current, 0);
  });
}

TEST(OnSeveralHosts, WhatIsWrittenToSummonedParametersIsEachRanksOwnUntilItIsWrittenBack) {
  on_hosts([&](SmallNetImpl& net, const Group& group, int rank) {
    const torch::NoGradGuard no_grad;
    {
      auto whole = summon_full_params(group);
      net.head->weight.fill_(rank);
      barrier();
      EXPECT_TRUE(net.head->weight.eq(rank).all().item<bool>());
      net.head->weight.fill_(7);
      whole.write_back();
    }
    EXPECT_EQ(group.stats().whole.current, 0);
    EXPECT_TRUE(full_tensor(net.head->weight).eq(7).all().item<bool>());
  });
}

}  // namespace
}  // namespace fsdp::test::strategies
