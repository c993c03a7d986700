// Training on several hosts: what a host holds once for its ranks, and what crosses between hosts.

#include <gmock/gmock.h>

#include <array>
#include <thread>

#include "api/group_view.h"
#include "runtime/param_group.h"
#include "runtime/cost_net.h"

namespace fsdp::test {
namespace {

// Two hosts of two ranks.
const ThreadRanksOptions kHosts{.backend = "hierarchical", .hosts = {0, 0, 1, 1}};
constexpr int kRanks = 4, kRanksOfHost = 2;

int64_t whole_bytes(const Group& group, size_t number) {
  int64_t bytes = 0;
  for (const auto& flat : param_groups(group)[number]->flats()) bytes += static_cast<int64_t>(flat.whole().bytes());
  return bytes;
}

// Of a host, if its ranks hold alike; each rank's account has its part.
int64_t of_host(int64_t bytes) { return bytes * kRanksOfHost; }

const void* address_of_whole(const Group& group, SmallNetImpl& net) {
  const ForwardScope scope(group);
  const torch::NoGradGuard no_grad;
  static_cast<void>(net.first->weight.sum());
  return net.first->weight.const_data_ptr();
}

TEST(OnSeveralHosts, WholeParametersLieOnceOnEach) {
  auto models = nets(kRanks, 64);
  std::array<const void*, kRanks> addresses{};
  run_thread_ranks(
      kRanks,
      [&](int r) {
        auto& net = *models[static_cast<size_t>(r)];
        const auto group = shard_blocks(net);
        const int64_t bound = whole_bytes(group, 0) + 2 * whole_bytes(group, 1);
        for (int step = 0; step < 2; ++step) {
          group.reset_peak_stats();
          auto loss = forward_loss(group, net, step);
          loss.backward();
          EXPECT_LE(of_host(group.stats().whole.peak), bound);
          EXPECT_GT(of_host(group.stats().whole.peak), bound / 2);
          EXPECT_EQ(group.stats().whole.current, 0);
        }
        addresses[static_cast<size_t>(r)] = address_of_whole(group, net);
      },
      kHosts);
  EXPECT_EQ(addresses[0], addresses[1]);
  EXPECT_EQ(addresses[2], addresses[3]);
  EXPECT_NE(addresses[0], addresses[2]);
}

TEST(OnSeveralHosts, RanksOfOneKeepWhatForwardGatheredForBackward) {
  auto models = nets(kRanks, 64);
  run_thread_ranks(
      kRanks,
      [&](int r) {
        auto& net = *models[static_cast<size_t>(r)];
        const auto group = shard_blocks(net, {.reshard_after_forward = Reshard::within(kRanksOfHost)});
        const int counterpart = (r + kRanksOfHost) % kRanks;
        int64_t all = 0, of_counterpart = 0;
        for (const auto& part : param_groups(group))
          for (const auto& flat : part->flats()) {
            all += static_cast<int64_t>(flat.whole().bytes());
            of_counterpart += static_cast<int64_t>(flat.whole().form.bytes(flat.layout().slice_numel(counterpart)));
          }
        auto optimizer = sgd(net.parameters());
        for (int step = 0; step < 3; ++step) {
          auto loss = forward_loss(group, net, step);
          const auto forward = group.stats();
          EXPECT_EQ(of_host(forward.whole.current), all) << "on each host once";
          const auto before = traffic();
          loss.backward();
          EXPECT_EQ(group.stats().gathers, forward.gathers) << "nothing is gathered in backward";
          EXPECT_EQ((traffic() - before).between_hosts.sent, of_counterpart) << "reductions alone";
          EXPECT_EQ(group.stats().whole.current, 0);
          optimizer.step();
          optimizer.zero_grad();
        }
      },
      kHosts);
}

TEST(OnSeveralHosts, SeveralGroupsAreGatheredWhileNobodyWaits) {
  auto models = nets(kRanks, 64);
  run_thread_ranks(
      kRanks,
      [&](int r) {
        auto& net = *models[static_cast<size_t>(r)];
        const auto group = shard_blocks(net);
        const auto first = group_of(*net.blocks[0]), second = group_of(*net.blocks[1]);
        const int counterpart = (r + kRanksOfHost) % kRanks;
        int64_t bytes = 0;
        for (const auto& of : {first, second})
          for (const auto& flat : param_groups(of).front()->flats())
            bytes += static_cast<int64_t>(flat.whole().form.bytes(flat.layout().slice_numel(counterpart)));
        const auto before = traffic();
        auto one = first.unshard(), other = second.unshard();
        while ((traffic() - before).between_hosts.received < bytes) std::this_thread::yield();
        EXPECT_EQ((traffic() - before).between_hosts.received, bytes);
        one.wait();
        other.wait();
        first.reshard();
        second.reshard();
        EXPECT_EQ(group.stats().whole.current, 0);
      },
      kHosts);
}

TEST(OnSeveralHosts, WhatIsWrittenToSummonedParametersIsEachRanksOwnUntilItIsWrittenBack) {
  auto models = nets(kRanks);
  run_thread_ranks(
      kRanks,
      [&](int r) {
        auto& net = *models[static_cast<size_t>(r)];
        const auto group = shard_blocks(net);
        const torch::NoGradGuard no_grad;
        {
          auto whole = summon_full_params(group);
          net.head->weight.fill_(r);
          barrier();
          EXPECT_TRUE(net.head->weight.eq(r).all().item<bool>());
          net.head->weight.fill_(7);
          whole.write_back();
        }
        EXPECT_EQ(group.stats().whole.current, 0);
        EXPECT_TRUE(full_tensor(net.head->weight).eq(7).all().item<bool>());
      },
      kHosts);
}

}  // namespace
}  // namespace fsdp::test
