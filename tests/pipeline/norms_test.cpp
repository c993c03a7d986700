// Tests of norms, clipping and loss scaling over all stages of a pipeline.

#include <gmock/gmock.h>

#include <cmath>
#include <latch>
#include <limits>
#include <stdexcept>

#include "pipeline/stages.h"
#include "support/error_text.h"

namespace fsdp::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct PipedNorms {
  double gradients, largest_gradient, parameters;
};

PipedNorms norms_of_whole(int frozen_blocks) {
  auto model = build_alike([] { return piped_model(); });
  for (int block = 0; block < frozen_blocks; ++block)
    for (auto& parameter : model->children()[static_cast<size_t>(block)]->parameters()) parameter.requires_grad_(false);
  piped_loss(model->forward(piped_rows(0)), piped_rows(0).flip(0)).backward();
  double squares = 0, largest = 0, of_parameters = 0;
  for (const auto& parameter : model->parameters()) {
    of_parameters += parameter.detach().square().sum().item<double>();
    if (!parameter.grad().defined()) continue;
    squares += parameter.grad().square().sum().item<double>();
    largest = std::max(largest, parameter.grad().abs().max().item<double>());
  }
  return {std::sqrt(squares), largest, std::sqrt(of_parameters)};
}

TEST(PipelineNorms, AreThoseOfTheWholeModelAndClipAllStages) {
  for (const auto& layout : std::vector<PipedLayout>{{{1, 2, 1, 1}, false},
                                                     {{1, 4, 1, 1}, false},
                                                     {{1, 2, 1, 1}, false, 2},
                                                     {{1, 2, 1, 1}, false, 1, 3},
                                                     {{1, 2, 1, 2}, false},
                                                     {{2, 2, 1, 1}},
                                                     {{2, 2, 1, 1}, true, 3},
                                                     {{2, 2, 1, 1}, true, 1, 3},
                                                     {{1, 2, 1, 2}},
                                                     {{2, 2, 1, 2}},
                                                     {{2, 2, 2, 1}}}) {
    SCOPED_TRACE(layout.text());
    const auto expected = norms_of_whole(layout.frozen_blocks);
    run_thread_ranks(layout.ranks(), [&](int) {
      PipedRank rank(layout);
      rank.step(0);
      EXPECT_NEAR(norm(rank.pipeline), expected.parameters, 1e-12);
      EXPECT_NEAR(get_total_norm(rank.pipeline, kInfinity), expected.largest_gradient, 1e-12);
      EXPECT_NEAR(clip_grad_norm_(rank.pipeline, 0.01), expected.gradients, 1e-12);
      EXPECT_NEAR(get_total_norm(rank.pipeline), 0.01, 1e-6);
      if (layout.is_sharded)
        EXPECT_THAT(text_of_error([&] { clip_grad_norm_(rank.groups[0], 1); }),
                    testing::HasSubstr("is a stage of a pipeline, and the norm must cover all stages. Pass the"));
    });
  }
}

TEST(PipelineScaling, AnInfInOneStageSkipsTheStepOnAllStages) {
  for (const auto& layout :
       std::vector<PipedLayout>{{{1, 2, 1, 1}, false}, {{2, 2, 1, 1}}, {{2, 2, 1, 1}, true, 1, 3}, {{1, 2, 1, 2}}}) {
    SCOPED_TRACE(layout.text());
    run_thread_ranks(layout.ranks(), [&](int number) {
      PipedRank rank(layout);
      torch::optim::SGD optimizer(rank.pipeline.parameters(), 0.5);
      GradScaler scaler({.init_scale = 4, .process_group = layout.is_sharded ? nullptr : rank.pipe});
      const auto values = [&] { return full_tensor(rank.own[0]->parameters()[0]).clone(); };
      const auto scaled = [&](const auto& output, const auto& target) {
        return scaler.scale(piped_loss(output, target));
      };
      const bool trains = rank.own[0]->parameters()[0].requires_grad();
      for (const bool has_inf : {true, false}) {
        optimizer.zero_grad();
        rank.step(0, scaled);
        // One rank of the last stage gets the infinity. It has only rows of some parameters.
        if (has_inf && number == layout.ranks() - 1)
          for (auto& parameter : rank.own[0]->parameters()) parameter.mutable_grad().fill_(kInfinity);
        const auto before = values();
        scaler.step(optimizer);
        scaler.update();
        EXPECT_EQ(at::equal(values(), before), has_inf || !trains)
            << "rank " << number << " of " << layout.text() << ", inf " << has_inf;
        EXPECT_EQ(scaler.get_scale(), 2) << "rank " << number << " of " << layout.text() << ", inf " << has_inf;
      }
    });
  }
}

// The last rank throws between two steps, while its peers wait for it, or for each other, on any axis.
TEST(PipelineFailures, OfOneRankBetweenStepsAreErrorsOnAllRanksAndAllAxesStartOver) {
  for (const auto* backend : {"shm", "gloo"})
    for (const auto& layout : std::vector<PipedLayout>{{{2, 2, 1, 1}}, {{1, 2, 1, 1}, false}})
      run_thread_ranks_with(layout.ranks(), {.timeout = std::chrono::seconds(30), .backend = backend}, [&](int number) {
        SCOPED_TRACE(layout.text());
        PipedRank rank(layout);
        rank.step(0);
        if (number + 1 < layout.ranks())
          EXPECT_THAT(text_of_error([&] {
                        clip_grad_norm_(rank.pipeline, 0.1);
                        rank.step(0);
                      }),
                      testing::HasSubstr("starts over"))
              << "rank " << number;
        rank.pipeline.reset_iter_state();
        EXPECT_GT(rank.step(0).item<double>(), 0);
      });
}

// Rank 0 shares no axis with rank 3, which ends.
TEST(PipelineFailures, OfARankThatEndsNameItOnEveryAxis) {
  std::vector<std::string> errors(3);
  std::latch have_ended(3);
  const auto act = [&](int number) {
    PipedRank rank({{2, 2, 1, 1}});
    rank.step(0);
    if (number == 3) throw std::runtime_error("out of eggs");
    errors[static_cast<size_t>(number)] = text_of_error([&] {
      clip_grad_norm_(rank.pipeline, 0.1);
      rank.step(0);
    });
    have_ended.arrive_and_wait();
  };
  EXPECT_THROW(run_thread_ranks_with(4, {.timeout = std::chrono::seconds(20), .backend = "gloo"}, act), std::exception);
  for (const auto& error : errors)
    EXPECT_THAT(error, testing::AllOf(testing::HasSubstr("rank 3 "), testing::Not(testing::HasSubstr("timed out"))));
}

}  // namespace
}  // namespace fsdp::test
