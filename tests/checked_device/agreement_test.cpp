// Tests that the ranks compare what they have issued on devices, some time after the operations, and that ranks that
// differ get an error in words.

#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <barrier>
#include <functional>
#include <string>
#include <vector>

#include "support/checked_device/checked_device.h"

namespace fsdp::test::checked {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class CheckedAgreement : public CheckedDevice {};

void gather(int rank, const std::string& subject, int64_t numel = 4) {
  const auto flat = at::zeros({2 * numel}, device(rank));
  default_process_group()->communicator().all_gather(flat, flat.narrow(0, numel * rank, numel), {subject})->wait();
}
void sum(Communicator& ranks, int rank, const std::string& subject) {
  ranks.all_reduce(at::zeros({8}, device(rank)), ReduceOp::kSum, {subject})->wait();
}

// Runs `act` on both ranks, and returns the message of what it throws on each.
std::vector<std::string> errors_of(const std::function<void(int rank)>& act) {
  std::vector<std::string> texts(2);
  std::barrier end(2);  // a rank that leaves first would be lost
  const auto run = [&](int rank) {
    try {
      act(rank);
    } catch (const Error& error) {
      texts[static_cast<size_t>(rank)] = error.what_without_backtrace();
    }
    end.arrive_and_wait();
  };
  run_ranks(2, run, std::chrono::seconds(1));
  return texts;
}

// The sizes are equal, so data moves before the error.
TEST_F(CheckedAgreement, RanksThatMoveTheSameBytesForSomethingElseAreToldAtTheNextBarrierOrWindow) {
  for (const bool meets : {true, false}) {
    const auto texts = errors_of([&](int rank) {
      for (int i = 0; i < 3; ++i) gather(rank, "alike");
      gather(rank, rank == 0 ? "rows" : "columns");
      if (meets) barrier();
      while (true) gather(rank, "alike");
    });
    EXPECT_THAT(texts, Each(AllOf(HasSubstr("disagree about the next collective (subject)"),
                                  HasSubstr("all_gather of 'rows' (#4)"), HasSubstr("all_gather of 'columns' (#4)"))));
  }
}

TEST_F(CheckedAgreement, RanksThatRunDifferentCollectivesAreToldWhichAtTheDeadline) {
  const auto texts = errors_of([&](int rank) {
    gather(rank, "alike");
    if (rank == 0)
      gather(rank, "rows");
    else
      sum(default_process_group()->communicator(), rank, "losses");
    while (true) gather(rank, "alike");
  });
  EXPECT_THAT(texts,
              Each(AllOf(HasSubstr("all_gather of 'rows' (#2)"), HasSubstr("all_reduce(sum) of 'losses' (#2)"))));
  EXPECT_THAT(violations(), Not(IsEmpty()));
}

TEST_F(CheckedAgreement, CollectivesOfTwoCommunicatorsInDifferentOrdersAreAViolationAndEnd) {
  const auto texts = errors_of([&](int rank) {
    auto& group = *default_process_group();
    for (const bool first : {true, false})
      sum(first == (rank == 0) ? group.communicator() : group.reductions(), rank, "sum");
    while (true) gather(rank, "alike");
  });
  EXPECT_THAT(texts, Each(HasSubstr("all_reduce(sum) of 'sum' (#1)")));
  EXPECT_THAT(violations(), testing::Contains(Field(&Violation::fault, Fault::kOrder)));
}

TEST_F(CheckedAgreement, RanksThatAgreeAreLeftAloneOverManyWindows) {
  run_ranks(2, [](int rank) {
    for (int i = 0; i < 300; ++i) {
      gather(rank, "alike");
      if (i % 100 == 0) barrier();
    }
  });
}

}  // namespace
}  // namespace fsdp::test::checked
