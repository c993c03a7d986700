// Tests of the benchmarks' tools: collectives with checked results, times, and statistics.

#include <bootstrap.h>
#include <collective_case.h>
#include <collective_timing.h>
#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pattern.h>
#include <statistics.h>
#include <step_times.h>
#include <torch/torch.h>

#include <array>
#include <semaphore>

#include "support/decorator.h"
#include "support/error_text.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using bench::Exercise;
using testing::HasSubstr;

Exercise exercise_of(int64_t numel, uint32_t round = 3) {
  return {.communicator = default_process_group()->communicator(),
          .first = torch::empty({numel}),
          .second = torch::empty({numel}),
          .round = round};
}

TEST(Pattern, OneWrongElementIsNamedWithWhatWasExpected) {
  const auto tensor = torch::empty({100});
  bench::fill(tensor, {.rank = 1, .round = 5}, /*first=*/40);
  bench::expect_sum(tensor, "all_gather", 1, 2, 5, 40);
  tensor[7] += 1;
  const std::string expected = c10::str("element 47 is wrong: expected ", bench::pattern({1, 5}, 47), ", found ",
                                        bench::pattern({1, 5}, 47) + 1);
  const auto message = text_of_error([&] { bench::expect_sum(tensor, "all_gather", 1, 2, 5, 40); });
  EXPECT_THAT(message, testing::AllOf(HasSubstr("all_gather"), HasSubstr(expected)));
}

TEST(Pattern, DiffersBetweenRanksAndRounds) {
  const auto tensor = torch::empty({16});
  bench::fill(tensor, {.rank = 0, .round = 0});
  EXPECT_THROW(bench::expect_sum(tensor, "", 1, 2, 0), Error);
  EXPECT_THROW(bench::expect_sum(tensor, "", 0, 1, 1), Error);
  EXPECT_THROW(bench::expect_sum(tensor, "", 0, 2, 0), Error);
}

TEST(CollectiveCases, RightResultsPassWithFewerElementsThanRanksToo) {
  for (const int world : {2, 3})
    run_thread_ranks(world, [](int) {
      for (const int64_t numel : {1, 2, 1000})
        for (const auto& collective : bench::collective_cases()) {
          const auto exercise = exercise_of(numel);
          collective.prepare(exercise);
          collective.run(exercise);
          collective.verify(exercise);
        }
    });
}

TEST(CollectiveCases, AResultThatDidNotArriveOrIsOfTheRoundBeforeIsFound) {
  run_thread_ranks(2, [](int rank) {
    for (const auto& collective : bench::collective_cases()) {
      const auto before = exercise_of(64, /*round=*/2);
      const Exercise now{before.communicator, before.first, before.second, /*round=*/3};
      collective.prepare(before);
      if (rank > 0) EXPECT_THROW(collective.verify(before), Error) << collective.name;
      collective.run(before);
      if (rank > 0) EXPECT_THROW(collective.verify(now), Error) << collective.name;
    }
    const auto exercise = exercise_of(64);
    bench::copy_case().prepare(exercise);
    EXPECT_THROW(bench::copy_case().verify(exercise), Error);
  });
}

// Makes rank 0 enter a collective only after rank 1 has left the barrier before it, and makes rank 1 leave a barrier
// only when rank 0 has entered the next collective. If a barrier waits for nobody, rank 0 thus leaves it before rank 1
// enters it.
class Staggered : public Decorator {
 public:
  Staggered(std::shared_ptr<Communicator> inner, std::counting_semaphore<>& went_on)
      : Decorator(std::move(inner), "main"), went_on_(went_on) {}

  std::shared_ptr<Work> barrier(Tag tag) override {
    auto work = Decorator::barrier(std::move(tag));
    work->wait();
    if (rank() == 1) went_on_.acquire();
    return work;
  }

 protected:
  void before(Operation operation, uint64_t, Tag&) override {
    if (rank() != 0 || operation == Operation::kDuplicate) return;
    if (inside_) went_on_.release();
    inside_ = operation == Operation::kBarrier;
  }
  std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> duplicate, const std::string&) override {
    return duplicate;
  }

 private:
  std::counting_semaphore<>& went_on_;
  bool inside_ = false;
};

class DoneAtOnce : public Work {
 public:
  void wait() override {}
};

class BarriersThatWaitForNobody : public Decorator {
 public:
  explicit BarriersThatWaitForNobody(std::shared_ptr<Communicator> inner) : Decorator(std::move(inner), "main") {}
  std::shared_ptr<Work> barrier(Tag) override { return std::make_shared<DoneAtOnce>(); }

 protected:
  void before(Operation, uint64_t, Tag&) override {}
  std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> duplicate, const std::string&) override {
    return duplicate;
  }
};

TEST(TimeBarrier, ABarrierThatIsLeftBeforeAllHaveComeIsFound) {
  std::counting_semaphore<> went_on(0);
  ThreadRanksOptions options;
  options.wrap = [&](auto inner, int) { return std::make_shared<Staggered>(std::move(inner), went_on); };
  run_thread_ranks(
      2,
      [](int) {
        const std::shared_ptr<Communicator> sound(&default_process_group()->communicator(), [](Communicator*) {});
        BarriersThatWaitForNobody broken(sound);
        const std::array<Communicator*, 1> communicators{&broken};
        const auto message = text_of_error([&] { (void)bench::time_barrier(communicators); });
        EXPECT_THAT(message, HasSubstr("before the last rank entered it"));
      },
      options);
}

TEST(TimeInTurns, GivesTheSameMediansOnEveryRankForEachContender) {
  std::array<std::vector<double>, 2> medians;
  run_thread_ranks(2, [&](int rank) {
    const auto group = default_process_group();
    const std::array<Communicator*, 1> communicators{&group->communicator()};
    EXPECT_THAT(bench::time_barrier(communicators), testing::ElementsAre(testing::Gt(0)));
    const auto& collective = bench::collective_cases()[0];
    const std::array<bench::Contender, 2> contenders{
        {{collective, group->communicator()}, {bench::copy_case(), group->reductions()}}};
    const auto exercise = exercise_of(16);
    medians[rank] = bench::time_in_turns(contenders, exercise.first, exercise.second);
  });
  EXPECT_EQ(medians[0].size(), 2U);
  EXPECT_EQ(medians[0], medians[1]);
}

}  // namespace
}  // namespace fsdp::test

namespace bench {
namespace {

TEST(Bound, IsForwardAndBackwardAndARanksShareOfTheOptimizer) {
  const StepTimes alone{.forward = 10, .backward = 20, .optimizer = 6};
  EXPECT_EQ(bound(alone, 1), alone.total());
  EXPECT_EQ(bound(alone, 3), 32);
}

TEST(Median, IsTheMiddleValueOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(BootstrapMedian, IsTheIntervalThatTheBinomialDistributionGives) {
  struct Case {
    std::vector<double> values;
    double confidence, low, high;
  };
  for (const auto& [values, confidence, low, high] : {
           // With 11 values, a resample's median is at most the k-th smallest value if 6 or more of its 11 draws are.
           // The probability of that is P(Bin(11, k/11) >= 6): 0.007 for k = 2, 0.051 for k = 3, 0.17 for k = 4, 0.38
           // for k = 5, 0.949 for k = 8 and 0.993 for k = 9.
           Case{{70, 10, 110, 40, 90, 20, 60, 100, 30, 80, 50}, 0.95, 30, 90},
           {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 0.5, 5, 7},
           {{1.5, 1.5, 1.5, 1.5}, 0.95, 1.5, 1.5},
       }) {
    const auto interval = bootstrap_median(values, confidence);
    EXPECT_EQ(interval.low, low);
    EXPECT_EQ(interval.high, high);
  }
}

TEST(BootstrapMedian, IsTheSameForTheSameSeedAndAnotherForAnother) {
  std::vector<double> values;
  for (int i = 0; i < 400; ++i) values.push_back((i * 7919) % 1009);
  const auto low = [&](uint64_t seed) { return bootstrap_median(values, 0.95, /*resamples=*/200, seed).low; };
  EXPECT_EQ(low(1), low(1));
  EXPECT_NE(low(1), low(2));
}

}  // namespace
}  // namespace bench
