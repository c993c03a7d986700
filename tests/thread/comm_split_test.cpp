// Process groups that are made of the ranks of another one.

#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "comm/group/join.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Of the global ranks of a group, by a collective of its own.
int64_t sum_over(const ProcessGroup& group) {
  const at::Tensor sum = at::full({1}, group.global_ranks()[static_cast<size_t>(group.rank())], at::kLong);
  group.communicator().all_reduce(sum, ReduceOp::kSum, {"global ranks", {}})->wait();
  return sum.item<int64_t>();
}

template <class Exception>
std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Exception& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Split, MakesDisjointGroupsAtOnceInTheOrderOfGlobalRanks) {
  run_thread_ranks(4, [](int rank) {
    const auto group = default_process_group()->split({{2, 0}, {3, 1}}, "pairs");
    EXPECT_EQ(group->rank(), rank / 2);
    EXPECT_EQ(group->world_size(), 2);
    EXPECT_EQ(group->name(), "pairs");
    EXPECT_THAT(group->global_ranks(), ElementsAre(rank % 2, rank % 2 + 2));
    EXPECT_EQ(sum_over(*group), rank % 2 == 0 ? 2 : 4);
    barrier();
  });
}

TEST(Split, LeavesOutRanksThatAreNotNamed) {
  run_thread_ranks(3, [](int rank) {
    const auto group = default_process_group()->split({{0, 2}}, "ends");
    ASSERT_EQ(group == nullptr, rank == 1);
    if (group) {
      EXPECT_EQ(sum_over(*group), 2);
    }
    barrier();
  });
}

TEST(Split, OfASubgroupGoesByGlobalRanks) {
  run_thread_ranks(4, [](int rank) {
    const auto upper = default_process_group()->split({{1, 2, 3}}, "upper");
    if (upper) {
      const auto pair = upper->split({{1, 3}}, "odd");
      ASSERT_EQ(pair == nullptr, rank == 2);
      if (pair) {
        EXPECT_EQ(sum_over(*pair), 4);
      }
      EXPECT_EQ(sum_over(*upper), 6);
    }
    barrier();
  });
}

TEST(Split, OfOneRankEachIsLocal) {
  run_thread_ranks(2, [](int rank) {
    const auto alone = default_process_group()->split({{0}, {1}}, "alone");
    EXPECT_EQ(alone->world_size(), 1);
    EXPECT_EQ(sum_over(*alone), rank);
  });
}

TEST(Split, TwiceOfTheSameRanksGivesTwoGroups) {
  run_thread_ranks(3, [](int rank) {
    const auto all = default_process_group();
    const auto first = all->split({{0, 1}}, "first"), second = all->split({{1, 0}}, "second");
    if (rank < 2) {
      // In another order on each rank: they share none.
      const auto& early = rank == 0 ? first : second;
      const auto& late = rank == 0 ? second : first;
      const auto a = early->communicator().barrier({}), b = late->communicator().barrier({});
      a->wait();
      b->wait();
    }
    barrier();
  });
}

TEST(Split, RanksThatAskForDifferentGroupsAreAMismatch) {
  run_thread_ranks(2, [](int rank) {
    const auto all = default_process_group();
    const auto message = message_of<Mismatch>([&] { all->split({{rank}}, "alone"); });
    EXPECT_THAT(message, HasSubstr("split into 'alone': {0}"));
    EXPECT_THAT(message, HasSubstr("split into 'alone': {1}"));
  });
}

TEST(Split, RefusesForeignRanksAndThoseInTwoGroups) {
  run_thread_ranks(2, [](int) {
    const auto all = default_process_group();
    EXPECT_THAT(message_of<UsageError>([&] { all->split({{0, 2}}, "far"); }), HasSubstr("which are 0, 1, found 2."));
    EXPECT_THAT(message_of<UsageError>([&] { all->split({{0, 1}, {1}}, "twice"); }), HasSubstr("found rank 1 in two"));
    barrier();
  });
}

TEST(Split, ARankThatLeavesItsSubgroupIsLostToThatOneOnly) {
  run_thread_ranks(4, [](int rank) {
    auto pair = default_process_group()->split({{0, 1}, {2, 3}}, "pairs");
    if (rank == 3) pair.reset();
    if (rank == 2) {
      EXPECT_THROW(pair->communicator().barrier({})->wait(), PeerLost);
    } else if (pair) {
      EXPECT_EQ(sum_over(*pair), 1);
    }
    barrier();
  });
}

TEST(Hosts, AreOneForRanksOfOneMachine) {
  run_thread_ranks(3, [](int) { EXPECT_THAT(default_process_group()->hosts(), ElementsAre(0, 0, 0)); });
}

TEST(Hosts, AreNumberedByTheirFirstRanks) {
  EXPECT_THAT(number_hosts({"b", "a", "b", "c", "a"}), ElementsAre(0, 1, 0, 2, 1));
}

}  // namespace
}  // namespace fsdp::test
