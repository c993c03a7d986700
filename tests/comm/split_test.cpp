// Process groups that are made of the ranks of another one.

#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "comm/error_of.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Of the global ranks of a group, by a collective of its own.
int64_t sum_over(const ProcessGroup& group) {
  const at::Tensor sum = at::full({1}, group.global_ranks()[static_cast<size_t>(group.rank())], at::kLong);
  group.communicator().all_reduce(sum, ReduceOp::kSum, {"global ranks", {}})->wait();
  return sum.item<int64_t>();
}

// No rank leaves before all are done.
void run_and_meet(int world_size, const std::function<void(int rank)>& fn) {
  run_thread_ranks(world_size, [&](int rank) {
    fn(rank);
    barrier();
  });
}

TEST(CommSplit, MakesDisjointGroupsAtOnceInTheOrderOfGlobalRanks) {
  run_and_meet(4, [](int rank) {
    const auto group = default_process_group()->split({{2, 0}, {3, 1}}, "pairs");
    EXPECT_EQ(group->rank(), rank / 2);
    EXPECT_EQ(group->world_size(), 2);
    EXPECT_EQ(group->name(), "pairs");
    EXPECT_THAT(group->global_ranks(), ElementsAre(rank % 2, rank % 2 + 2));
    EXPECT_EQ(sum_over(*group), rank % 2 == 0 ? 2 : 4);
  });
}

TEST(CommSplit, LeavesOutRanksThatAreNotNamed) {
  run_and_meet(3, [](int rank) {
    const auto group = default_process_group()->split({{0, 2}}, "ends");
    ASSERT_EQ(group == nullptr, rank == 1);
    if (group) {
      EXPECT_EQ(sum_over(*group), 2);
    }
  });
}

TEST(CommSplit, OfASubgroupGoesByGlobalRanks) {
  run_and_meet(4, [](int rank) {
    const auto upper = default_process_group()->split({{1, 2, 3}}, "upper");
    if (upper) {
      const auto pair = upper->split({{1, 3}}, "odd");
      ASSERT_EQ(pair == nullptr, rank == 2);
      if (pair) {
        EXPECT_EQ(sum_over(*pair), 4);
      }
      EXPECT_EQ(sum_over(*upper), 6);
    }
  });
}

TEST(CommSplit, OfOneRankEachIsLocal) {
  run_thread_ranks(2, [](int rank) {
    const auto alone = default_process_group()->split({{0}, {1}}, "alone");
    EXPECT_EQ(alone->world_size(), 1);
    EXPECT_EQ(sum_over(*alone), rank);
    EXPECT_THAT(error_of([&] { (void)alone->reductions().broadcast(at::zeros({1}), 1, {}); }),
                HasSubstr(c10::str("[fsdp rank ", rank, "/2, 'alone' 0/1] broadcast: ")));
  });
}

TEST(CommSplit, TwiceOfTheSameRanksGivesTwoGroups) {
  run_and_meet(3, [](int rank) {
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
  });
}

TEST(CommSplit, RanksThatAskForDifferentGroupsAreAMismatch) {
  run_thread_ranks(2, [](int rank) {
    const auto all = default_process_group();
    const auto message = error_of<Mismatch>([&] { all->split({{rank}}, "alone"); });
    EXPECT_THAT(message, HasSubstr("split into 'alone': {0}"));
    EXPECT_THAT(message, HasSubstr("split into 'alone': {1}"));
  });
}

TEST(CommSplit, ARankThatLeavesItsSubgroupIsLostToThatOneOnly) {
  run_and_meet(4, [](int rank) {
    auto pair = default_process_group()->split({{0, 1}, {2, 3}}, "pairs");
    if (rank == 3) pair.reset();
    if (rank == 2) {
      EXPECT_THROW(pair->communicator().barrier({})->wait(), PeerLost);
    } else if (pair) {
      EXPECT_EQ(sum_over(*pair), 1);
    }
  });
}

TEST(CommSplit, ErrorsOfASubgroupBeginWithTheGlobalRank) {
  run_and_meet(4, [](int rank) {
    const auto all = default_process_group(), odd = all->split({{1, 3}}, "odd");
    EXPECT_EQ(all->where("step"), c10::str("[fsdp rank ", rank, "/4] step: "));
    EXPECT_THAT(error_of([&] { all->split({{0, 4}}, "far"); }), HasSubstr("which are 0, 1, 2, 3, found 4."));
    if (odd) {
      const auto place = c10::str("[fsdp rank ", rank, "/4, 'odd' ", rank / 2, "/2] ");
      EXPECT_EQ(odd->where("step"), place + "step: ");
      EXPECT_THAT(error_of([&] { odd->split({{0}}, "far"); }), HasSubstr(place + "split: "));
      EXPECT_THAT(error_of([&] { odd->split({{1, 3}, {3}}, "twice"); }), HasSubstr("found rank 3 in two"));
      EXPECT_THAT(error_of([&] { (void)odd->communicator().broadcast(at::zeros({1}), 3, {}); }),
                  HasSubstr(place + "broadcast: expected a rank from 0 to 1, found 3."));
    }
  });
}

TEST(CommSplit, RanksThatDifferAreNamedByTheirGlobalNumbers) {
  run_and_meet(4, [](int rank) {
    const auto all = default_process_group(), collectives = all->split({{1, 3}}, "odd"),
               messages = all->split({{1, 3}}, "odd messages");
    if (!collectives) return;
    const std::string subject = rank == 1 ? "one" : "other";
    EXPECT_THAT(error_of<Mismatch>([&] { collectives->communicator().barrier({subject, {}})->wait(); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", rank, "/4, 'odd' ", rank / 2, "/2] barrier of '", subject)),
                      HasSubstr("rank 1 runs barrier of 'one'"), HasSubstr("rank 3 runs barrier of 'other'")));
    // Of other sizes on both sides.
    const at::Tensor tensor = at::zeros({int64_t{rank}});
    auto& ranks = messages->communicator();
    const auto exchange = [&] {
      (rank == 1 ? ranks.send(tensor, 1, {"x", {}}) : ranks.recv(tensor, 0, {"x", {}}))->wait();
    };
    EXPECT_THAT(error_of<Mismatch>(exchange), AllOf(HasSubstr("rank 1 runs send of 'x' to rank 3"),
                                                    HasSubstr("rank 3 runs recv of 'x' from rank 1")));
  });
}

TEST(CommSplit, ALostRankIsNamedByItsGlobalNumber) {
  run_and_meet(4, [](int rank) {
    auto odd = default_process_group()->split({{1, 3}}, "odd");
    if (rank == 3) odd.reset();
    if (rank != 1) return;
    try {
      odd->communicator().barrier({})->wait();
      ADD_FAILURE() << "no error";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.rank(), 3);
      EXPECT_THAT(error.what_without_backtrace(),
                  AllOf(HasSubstr("[fsdp rank 1/4, 'odd' 0/2] barrier"), HasSubstr("rank 3 has left the process group"),
                        HasSubstr("Last operations: rank 1: ")));
    }
  });
}

}  // namespace
}  // namespace fsdp::test
