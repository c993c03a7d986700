// Tests how many calls to the rendezvous store each rank makes while the ranks meet.

#include <fsdp/device_mesh.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <atomic>
#include <random>

#include "comm/core/store_message.h"
#include "comm/frame.h"
#include "comm/group/roster.h"
#include "support/stores.h"

namespace fsdp::test {
namespace {

struct Calls {
  int joining = 0, splitting = 0;  // of the rank with the most calls
};

// Counts the calls of ranks on one host. They need the store only to meet.
Calls calls_over_shared_memory(int world_size) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::atomic<int>> calls(static_cast<size_t>(world_size));
  std::vector<int> joining(calls.size()), splitting(calls.size());
  run_threads(world_size, [&](int rank) {
    const auto number = static_cast<size_t>(rank);
    const c10::intrusive_ptr<c10d::Store> own =
        c10::make_intrusive<WatchedStore>(store, [&calls, number] { ++calls[number]; });
    const auto group = new_process_group({.backend = "shm", .rank = rank, .world_size = world_size, .store = own});
    joining[number] = calls[number];
    const auto mesh = init_device_mesh({2, world_size / 2}, {"replicate", "shard"}, group);
    const at::Tensor sum = at::ones({1});
    for (const char* axis : {"replicate", "shard"}) sum_up(mesh.process_group(axis)->communicator(), sum);
    EXPECT_EQ(sum.item<float>(), static_cast<float>(world_size));
    splitting[number] = calls[number] - joining[number];
  });
  return {std::ranges::max(joining), std::ranges::max(splitting)};
}

TEST(Joining, TakesNoMoreCallsOfTheStoreWithMoreRanksAndSubgroupsNone) {
  for (const int world_size : {4, 16}) {
    SCOPED_TRACE(world_size);
    const auto calls = calls_over_shared_memory(world_size);
    EXPECT_LE(calls.joining, 8);
    EXPECT_EQ(calls.splitting, 0);
  }
}

// Returns the profile of each rank, on the host that `host_of` returns for the rank.
std::vector<Profile> profiles_of(int ranks, const std::function<int(int rank)>& host_of) {
  std::vector<Profile> profiles;
  for (int rank = 0; rank < ranks; ++rank)
    profiles.push_back({.claims = "world size 16384, backend cpu",
                        .domain = str_cat("0123456789abcdef0123456789abcdef0123/net:[", host_of(rank), ']'),
                        .host = "",
                        .obstacle = "",
                        .user = 1000,
                        .contact = {rank, std::string(130, 'x')}});
  return profiles;
}

TEST(Joining, ReadsAtMost64KiBAt16384Ranks) {
  for (const int per_host : {1, 2, 8, 64}) {
    const auto profiles = profiles_of(16384, [&](int rank) { return rank / per_host; });
    const auto roster = roster_of(profiles);
    const auto hosts = unpack_numbers(roster.hosts);
    EXPECT_LE(encode(roster).size(), 1024U);
    EXPECT_EQ(hosts.back(), 16383 / per_host);
    EXPECT_LE(static_cast<size_t>(per_host) * encode(profiles.front()).size(), 32768U);
  }
  std::mt19937 random(1);
  const auto scattered = profiles_of(1024, [&](int) { return static_cast<int>(random() % 300); });
  EXPECT_LE(encode(roster_of(scattered)).size(), 65536U);
}

TEST(Rosters, OfSubgroupsAreThoseThatTheirRanksWouldHaveMade) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 100; ++trial) {
    const int ranks = 1 + static_cast<int>(random() % 20);
    auto profiles = profiles_of(ranks, [&](int) { return static_cast<int>(random() % 4); });
    for (auto& profile : profiles) {
      if (random() % 4 == 0) profile.host = "pretended";
      if (random() % 5 == 0) profile.obstacle = str_cat("reason ", random() % 2);
      if (random() % 5 == 0) profile.user = 7;
    }
    std::vector<int> members;
    std::vector<Profile> of_members;
    for (int rank = 0; rank < ranks; ++rank)
      if (random() % 2 == 0) members.push_back(rank), of_members.push_back(profiles[static_cast<size_t>(rank)]);
    const auto all = roster_of(profiles), part = roster_of(decode<Roster>(encode(all)), members),
               made = roster_of(of_members);
    EXPECT_EQ(unpack_numbers(part.hosts), unpack_numbers(made.hosts));
    EXPECT_EQ(part.obstacle, all.obstacle) << "whether memory is shared is the same in all groups";
    EXPECT_EQ(part.is_one_domain, all.is_one_domain);
  }
}

}  // namespace
}  // namespace fsdp::test
