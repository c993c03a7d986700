// Training on several hosts: what a host holds once for its ranks, and what crosses between hosts.

#include <gmock/gmock.h>

#include <array>
#include <thread>

#include "api/group_view.h"
#include "runtime/param_group.h"
#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

constexpr int kRanks = 4, kRanksOfHost = 2;

// On two hosts of two ranks.
void on_hosts(const FullyShardOptions& options, const std::function<void(SmallNetImpl&, const Group&, int rank)>& act) {
  run_thread_ranks(kRanks,
                   [&](int rank) {
                     const auto net = make_small_net(64, 4);
                     const auto group = shard_blocks(*net, options);
                     act(*net, group, rank);
                   },
                   {.backend = "hierarchical", .hosts = {0, 0, 1, 1}});
}

// Of a group: whole parameters, and those of them whose rows a rank has.
struct BytesOf {
  int64_t whole = 0, slices = 0;
};

BytesOf bytes_of(runtime::ParamGroup& group, int rank) {
  BytesOf bytes;
  for (const auto& flat : group.flats()) {
    bytes.whole += static_cast<int64_t>(flat.whole().bytes());
    bytes.slices += static_cast<int64_t>(flat.whole().form.bytes(flat.layout().slice_numel(rank)));
  }
  return bytes;
}

// The rank of the other host with which one exchanges.
int counterpart_of(int rank) { return (rank + kRanksOfHost) % kRanks; }

// Of a host, if its ranks hold alike; each rank's account has its part.
int64_t of_host(int64_t bytes) { return bytes * kRanksOfHost; }

TEST(OnSeveralHosts, WholeParametersLieOnceOnEach) {
  std::array<const void*, kRanks> addresses{};
  on_hosts({}, [&](SmallNetImpl& net, const Group& group, int rank) {
    const auto groups = param_groups(group);
    const int64_t bound = bytes_of(*groups[0], rank).whole + 2 * bytes_of(*groups[1], rank).whole;
    for (int step = 0; step < 2; ++step) {
      group.reset_peak_stats();
      loss_of_rank(group, net, step).backward();
      EXPECT_LE(of_host(group.stats().whole.peak), bound);
      EXPECT_GT(of_host(group.stats().whole.peak), bound / 2);
      EXPECT_EQ(group.stats().whole.current, 0);
    }
    const ForwardScope scope(group);
    const torch::NoGradGuard no_grad;
    static_cast<void>(net.first->weight.sum());
    addresses[static_cast<size_t>(rank)] = net.first->weight.const_data_ptr();
  });
  EXPECT_EQ(addresses[0], addresses[1]);
  EXPECT_EQ(addresses[2], addresses[3]);
  EXPECT_NE(addresses[0], addresses[2]);
}

TEST(OnSeveralHosts, RanksOfOneKeepWhatForwardGatheredForBackward) {
  on_hosts({.reshard_after_forward = Reshard::within(kRanksOfHost)},
           [&](SmallNetImpl& net, const Group& group, int rank) {
             BytesOf all;
             for (const auto& part : param_groups(group)) {
               const auto bytes = bytes_of(*part, counterpart_of(rank));
               all = {all.whole + bytes.whole, all.slices + bytes.slices};
             }
             auto optimizer = sgd(net.parameters());
             for (int step = 0; step < 3; ++step) {
               auto loss = loss_of_rank(group, net, step);
               const auto forward = group.stats();
               EXPECT_EQ(of_host(forward.whole.current), all.whole) << "on each host once";
               const auto before = traffic();
               loss.backward();
               EXPECT_EQ(group.stats().gathers, forward.gathers) << "nothing is gathered in backward";
               EXPECT_EQ((traffic() - before).between_hosts.sent, all.slices) << "reductions alone";
               EXPECT_EQ(group.stats().whole.current, 0);
               optimizer.step();
               optimizer.zero_grad();
             }
           });
}

TEST(OnSeveralHosts, SeveralGroupsAreGatheredWhileNobodyWaits) {
  on_hosts({}, [&](SmallNetImpl& net, const Group& group, int rank) {
    const auto first = group_of(*net.blocks[0]), second = group_of(*net.blocks[1]);
    int64_t bytes = 0;
    for (const auto& of : {first, second}) bytes += bytes_of(*param_groups(of).front(), counterpart_of(rank)).slices;
    const auto before = traffic();
    auto one = first.unshard(), other = second.unshard();
    while ((traffic() - before).between_hosts.received < bytes) std::this_thread::yield();
    EXPECT_EQ((traffic() - before).between_hosts.received, bytes);
    one.wait();
    other.wait();
    first.reshard();
    second.reshard();
    EXPECT_EQ(group.stats().whole.current, 0);
  });
}

TEST(OnSeveralHosts, WhatIsWrittenToSummonedParametersIsEachRanksOwnUntilItIsWrittenBack) {
  on_hosts({}, [&](SmallNetImpl& net, const Group& group, int rank) {
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
