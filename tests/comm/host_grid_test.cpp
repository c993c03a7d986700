// Which rank stands for which on another host, and which carrier the ranks' hosts call for.

#include <map>

#include "comm/core/host_grid.h"
#include "comm/frame.h"
#include "comm/group/roster.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int> hosts_with(const std::vector<int>& sizes) {
  std::vector<int> hosts;
  for (size_t host = 0; host < sizes.size(); ++host)
    hosts.insert(hosts.end(), static_cast<size_t>(sizes[host]), static_cast<int>(host));
  return hosts;
}

// On unequal hosts too, the deputy that a rank sends to is the rank that expects its data.
TEST(HostGrid, LetsEveryRankHaveOneDeputyOnEachHost) {
  for (const auto& sizes : {std::vector{2, 2}, {3, 1}, {1, 3}, {2, 3, 5}, {1, 1}, {4, 2, 1}}) {
    const auto hosts = hosts_with(sizes);
    const int world_size = static_cast<int>(hosts.size());
    for (int host = 0; host < static_cast<int>(sizes.size()); ++host) {
      std::map<int, int> charged;  // each rank's deputy on this host
      for (int deputy = 0; deputy < world_size; ++deputy) {
        if (hosts[deputy] != host) continue;
        const HostGrid grid(hosts, deputy);
        for (int other = 0; other < grid.count(); ++other) {
          const auto [begin, end] = grid.charges(other);
          for (int rank = begin; rank < end; ++rank) EXPECT_TRUE(charged.try_emplace(rank, deputy).second);
        }
      }
      for (int rank = 0; rank < world_size; ++rank)
        EXPECT_EQ(HostGrid(hosts, rank).deputy_on(host), charged.at(rank)) << "rank " << rank << " on host " << host;
    }
  }
}

TEST(HostGrid, SaysWhichRankIsNotBesideTheOthersOfItsHost) {
  EXPECT_EQ(HostGrid::why_not(hosts_with({2, 1, 3})), "");
  EXPECT_THAT(HostGrid::why_not(std::vector{0, 1, 0}),
              HasSubstr("found rank 2 on the host of lower ranks and rank 1 on another one"));
}

std::vector<Profile> profiles_on(const std::vector<std::string>& hosts) {
  std::vector<Profile> profiles;
  for (const auto& host : hosts) {
    auto& profile = profiles.emplace_back();
    profile.host = host;
    profile.user = 7;
  }
  return profiles;
}

CarrierChoice choice(const std::string& backend, const std::vector<Profile>& profiles) {
  const Ranks ranks{0, static_cast<int>(profiles.size())};
  return choose_carrier(backend, ranks, roster_of(profiles), "");
}

TEST(Carrier, IsWhatTheHostsCallFor) {
  EXPECT_THAT(roster_of(profiles_on({"b", "a", "b", "c", "a"})).hosts.unpack(), ElementsAre(0, 1, 0, 2, 1));
  for (const char* backend : {"cpu", "hierarchical"}) {
    EXPECT_EQ(choice(backend, profiles_on({"a", "a"})).carrier, Carrier::kSharedMemory);
    EXPECT_EQ(choice(backend, profiles_on({"a", "b"})).carrier, Carrier::kNetwork);
    EXPECT_EQ(choice(backend, profiles_on({"a", "a", "b"})).carrier, Carrier::kHierarchical);
  }
  EXPECT_EQ(choice("gloo", profiles_on({"a", "a", "b"})).carrier, Carrier::kNetwork);
}

TEST(Carrier, OfASubgroupIsWhatItsHostsCallForUnlessSomeHostOfAllHasAnObstacle) {
  auto profiles = profiles_on({"a", "a", "b", "b"});
  const std::vector<int> beside{0, 1}, across{1, 2}, several{0, 1, 2};
  const auto choose = [&](const std::vector<int>& members) {
    return choose_carrier("cpu", {0, static_cast<int>(members.size())}, roster_of(roster_of(profiles), members), "");
  };
  EXPECT_EQ(choose(beside).carrier, Carrier::kSharedMemory);
  EXPECT_EQ(choose(across).carrier, Carrier::kNetwork);
  EXPECT_EQ(choose(several).carrier, Carrier::kHierarchical);
  profiles[3].obstacle = "no memory";
  for (const auto& members : {beside, several}) {
    EXPECT_EQ(choose(members).carrier, Carrier::kNetwork);
    EXPECT_EQ(choose(members).obstacle, "rank 3: no memory");
  }
  EXPECT_EQ(choose(across).obstacle, "") << "it needs no shared memory";
}

TEST(Carrier, SaysWhyRanksOfAHostCannotShareMemory) {
  auto profiles = profiles_on({"a", "b", "b"});
  profiles[0].obstacle = "needs none";  // this rank is alone on its host
  EXPECT_EQ(choice("cpu", profiles).obstacle, "");
  profiles[2].user = 8;
  EXPECT_EQ(choice("cpu", profiles).carrier, Carrier::kNetwork);
  EXPECT_THAT(choice("cpu", profiles).obstacle,
              HasSubstr("a process of user 8 (rank 2) beside one of user 7 (rank 1)"));
  expect_error([&] { choice("hierarchical", profiles); },
               {"memory that the ranks of each host share: ranks of one user"});
  expect_error([&] { choice("shm", profiles); },
               {"memory that all ranks share: rank 0 and rank 1 are on different hosts"});
}

}  // namespace
}  // namespace fsdp::test
