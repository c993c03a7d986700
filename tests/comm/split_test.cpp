// Tests of process groups that are made from some ranks of another group.

#include <fsdp/process_group.h>
#include <torch/torch.h>

#include "comm/frame.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Returns the sum of a group's global ranks, computed by a collective of the group itself.
int64_t sum_over(const ProcessGroup& group) {
  const at::Tensor sum = at::full({1}, group.global_ranks()[static_cast<size_t>(group.rank())], at::kLong);
  sum_up(group.communicator(), sum);
  return sum.item<int64_t>();
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

TEST(CommSplit, OfASubgroupGoesByGlobalRanksAndLeavesOutThoseThatAreNotNamed) {
  run_and_meet(4, [](int rank) {
    const auto upper = default_process_group()->split({{1, 2, 3}}, "upper");
    ASSERT_EQ(upper == nullptr, rank == 0);
    if (!upper) return;
    const auto odd = upper->split({{1, 3}}, "odd");
    EXPECT_EQ(odd == nullptr, rank == 2);
    if (odd) {
      EXPECT_EQ(sum_over(*odd), 4);
    }
    EXPECT_EQ(sum_over(*upper), 6);
  });
}

TEST(CommSplit, OfOneRankEachIsLocal) {
  run_thread_ranks(2, [](int rank) {
    const auto alone = default_process_group()->split({{0}, {1}}, "alone");
    EXPECT_EQ(alone->world_size(), 1);
    EXPECT_EQ(sum_over(*alone), rank);
    expect_error([&] { (void)alone->reductions().broadcast(at::zeros({1}), 1, {}); },
                 {str_cat("[fsdp rank ", rank, "/2, 'alone' 0/1] broadcast: ")});
  });
}

TEST(CommSplit, TwiceOfTheSameRanksGivesTwoGroups) {
  run_and_meet(2, [](int rank) {
    const auto all = default_process_group();
    std::array groups{all->split({{0, 1}}, "first"), all->split({{1, 0}}, "second")};
    if (rank == 1) std::swap(groups[0], groups[1]);  // the groups share no queue of operations
    const auto a = groups[0]->communicator().barrier({}), b = groups[1]->communicator().barrier({});
    a->wait();
    b->wait();
  });
}

TEST(CommSplit, RanksThatAskForDifferentGroupsAreAMismatch) {
  run_thread_ranks(2, [](int rank) {
    expect_error<Mismatch>([&] { default_process_group()->split({{rank}}, "alone"); },
                           {"split into 'alone': {0}", "split into 'alone': {1}"});
  });
}

TEST(CommSplit, ARankThatLeavesItsSubgroupIsLostToThatOneOnlyAndNamedByItsGlobalNumber) {
  run_and_meet(4, [](int rank) {
    auto pair = default_process_group()->split({{0, 2}, {1, 3}}, "pairs");
    if (rank == 3) return pair.reset();
    try {
      const auto sum = sum_over(*pair);
      EXPECT_EQ(rank == 1 ? "no error" : std::to_string(sum), "2");
    } catch (const PeerLost& error) {
      EXPECT_EQ(rank, 1);
      EXPECT_EQ(error.rank(), 3);
      EXPECT_THAT(error.what_without_backtrace(),
                  AllOf(HasSubstr("[fsdp rank 1/4, 'pairs' 0/2] all_reduce"),
                        HasSubstr("rank 3 has left the process group"), HasSubstr("Last operations: rank 1: ")));
    }
  });
}

TEST(CommSplit, ErrorsOfASubgroupBeginWithTheGlobalRankAndNameThoseThatDifferByTheirs) {
  run_and_meet(4, [](int rank) {
    const auto all = default_process_group(), odd = all->split({{1, 3}}, "odd"),
               messages = all->split({{1, 3}}, "odd messages");
    EXPECT_EQ(all->where("step"), str_cat("[fsdp rank ", rank, "/4] step: "));
    expect_error([&] { all->split({{0, 4}}, "far"); }, {"which are 0, 1, 2, 3, found 4."});
    if (!odd) return;
    const auto place = str_cat("[fsdp rank ", rank, "/4, 'odd' ", rank / 2, "/2] ");
    EXPECT_EQ(odd->where("step"), place + "step: ");
    expect_error([&] { odd->split({{0}}, "far"); }, {place + "split: "});
    expect_error([&] { odd->split({{1, 3}, {3}}, "twice"); }, {"found rank 3 in two"});
    expect_error([&] { (void)odd->communicator().broadcast(at::zeros({1}), 3, {}); },
                 {place + "broadcast: expected a rank from 0 to 1, found 3."});
    const std::string subject = rank == 1 ? "one" : "other";
    expect_error<Mismatch>(
        [&] { odd->communicator().barrier({subject, {}})->wait(); },
        {place + "barrier of '" + subject, "rank 1 runs barrier of 'one'", "rank 3 runs barrier of 'other'"});
    const at::Tensor tensor = at::zeros({int64_t{rank}});  // each rank has a tensor of another size
    auto& ranks = messages->communicator();
    expect_error<Mismatch>(
        [&] { (rank == 1 ? ranks.send(tensor, 1, {"x", {}}) : ranks.recv(tensor, 0, {"x", {}}))->wait(); },
        {"rank 1 runs send of 'x' to rank 3", "rank 3 runs recv of 'x' from rank 1"});
  });
}

}  // namespace
}  // namespace fsdp::test
