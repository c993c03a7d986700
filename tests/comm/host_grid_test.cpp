// Tests which hosts form a grid, and which carrier is chosen for the ranks' hosts.

#include "comm/core/host_grid.h"
#include "comm/frame.h"
#include "comm/group/roster.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<int> hosts_with(const std::vector<int>& sizes) {
  std::vector<int> hosts;
  for (size_t host = 0; host < sizes.size(); ++host)
    hosts.insert(hosts.end(), static_cast<size_t>(sizes[host]), static_cast<int>(host));
  return hosts;
}

TEST(HostGrid, SaysWhichHostHasOtherRanksThanTheFirst) {
  EXPECT_EQ(why_no_grid(hosts_with({2, 2, 2})), "");
  EXPECT_THAT(why_no_grid(std::vector{0, 1, 0}),
              HasSubstr("2 consecutive ranks on each host, as on the host of rank 0"));
  EXPECT_THAT(why_no_grid(hosts_with({2, 3, 2})), HasSubstr("this does not hold from rank 4 on"));
  EXPECT_THAT(why_no_grid(hosts_with({2, 2, 1})), HasSubstr("found 1 on the last host"));
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
  EXPECT_THAT(unpack_numbers(roster_of(profiles_on({"b", "a", "b", "c", "a"})).hosts), ElementsAre(0, 1, 0, 2, 1));
  for (const char* backend : {"cpu", "hierarchical"}) {
    EXPECT_EQ(choice(backend, profiles_on({"a", "a"})).carrier, Carrier::kSharedMemory);
    EXPECT_EQ(choice(backend, profiles_on({"a", "b"})).carrier, Carrier::kNetwork);
    EXPECT_EQ(choice(backend, profiles_on({"a", "a", "b", "b"})).carrier, Carrier::kHierarchical);
    EXPECT_EQ(choice(backend, profiles_on({"a", "a", "b"})).carrier, Carrier::kNetwork);
    EXPECT_THAT(choice(backend, profiles_on({"a", "a", "b"})).obstacle, HasSubstr("found 1 on the last host"));
  }
  EXPECT_EQ(choice("gloo", profiles_on({"a", "a", "b", "b"})).carrier, Carrier::kNetwork);
}

TEST(Carrier, OfASubgroupIsWhatItsHostsCallForUnlessSomeHostOfAllHasAnObstacle) {
  auto profiles = profiles_on({"a", "a", "b", "b", "b"});
  const std::vector<int> beside{0, 1}, across{1, 2}, several{0, 1, 2, 3};
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
  EXPECT_EQ(choose(across).obstacle, "") << "a group with one rank per host needs no shared memory";
}

TEST(Carrier, SaysWhyRanksOfAHostCannotShareMemory) {
  auto profiles = profiles_on({"a", "b", "b"});
  profiles[0].obstacle = "needs none";  // this rank is alone on its host
  EXPECT_THAT(choice("cpu", profiles).obstacle, Not(HasSubstr("needs none")));
  profiles[2].user = 8;
  EXPECT_EQ(choice("cpu", profiles).carrier, Carrier::kNetwork);
  EXPECT_THAT(choice("cpu", profiles).obstacle, HasSubstr("but user 8 runs rank 2 and user 7 runs rank 1"));
  expect_error([&] { choice("hierarchical", profiles); },
               {"memory that the ranks of each host share: only ranks of the same user"});
  expect_error([&] { choice("shm", profiles); },
               {"memory that all ranks share: rank 0 and rank 1 are on different hosts"});
}

}  // namespace
}  // namespace fsdp::test
