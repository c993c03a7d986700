// Where ranks share memory, a rank that has no graph left which may run backward lets its peers write.

#include <future>

#include "runtime/shm_writers.h"

namespace fsdp::test {
namespace {

using torch::autograd::grad;

TEST(LiveGraphs, AGraphThatIsDroppedLetsPeersWrite) {
  for (const bool is_frozen : {false, true})
    run_against_writers([](Reader& reader) { return reader.forward(); },
                        [](Reader&, torch::Tensor y, Writers& writers) {
                          writers.expect_waiting();
                          y.reset();
                          writers.expect_writing();
                        },
                        is_frozen);
}

TEST(LiveGraphs, AGraphOfCustomFunctionsThatIsDroppedLetsPeersWrite) {
  run_against_writers(own_forward, [](Reader&, torch::Tensor y, Writers& writers) {
    writers.expect_waiting();
    y.reset();
    writers.expect_writing();
  });
}

TEST(LiveGraphs, AGraphThatWasConsumedLetsPeersWriteThoughItsLossIsHeld) {
  run_against_writers(
      [](Reader& reader) {
        auto y = reader.forward();
        y.backward();
        return y;
      },
      [](Reader&, torch::Tensor, Writers& writers) { writers.expect_writing(); });
}

TEST(LiveGraphs, TwoGraphsOfAScopeConsumedOneAfterTheOtherLetPeersWriteThoughBothAreHeld) {
  static std::mutex mutex;
  static std::vector<torch::Tensor> held;
  run_against_writers(
      [](Reader& reader) {
        const auto [y, other] = reader.two_outputs();
        other.backward();
        y.backward();
        const std::lock_guard lock(mutex);
        held.push_back(other);
        return y;
      },
      [](Reader&, torch::Tensor, Writers& writers) { writers.expect_writing(); });
  held.clear();
}

TEST(LiveGraphs, AGraphThatWasKeptLetsPeersWriteWhenItIsDropped) {
  run_against_writers(
      [](Reader& reader) {
        auto y = reader.forward();
        y.backward({}, /*retain_graph=*/true);
        return y;
      },
      [](Reader&, torch::Tensor y, Writers& writers) {
        writers.expect_waiting();
        y.reset();
        writers.expect_writing();
      });
}

// The graph that ran keeps the accumulators alive.
TEST(LiveGraphs, AGraphThatIsDroppedBesideOneThatRanAndIsHeldLetsPeersWriteOnceTheRankWaits) {
  run_thread_ranks(2,
                   [](int rank) {
                     auto net = build_alike([] { return std::make_shared<SmallNetImpl>(12, 2); });
                     const auto group = fully_shard(*net);
                     const Reader reader{*net, group};
                     auto [ran, dropped] = reader.two_outputs();
                     ran.backward();
                     dropped.reset();
                     if (rank == 1) write_rows(*net);
                     EXPECT_EQ(all_reduce(torch::ones({})).item<float>(), 2);
                     if (rank == 0) write_rows(*net);
                   },
                   {.backend = "shm"});
}

TEST(LiveGraphs, TheRanksOwnWriteLetsPeersWriteThoughItsGraphIsLeft) {
  run_against_writers([](Reader& reader) { return reader.forward(); },
                      [](Reader& reader, const torch::Tensor&, Writers& writers) {
                        writers.expect_waiting();
                        write_rows(reader.net);
                        reader.has_written = true;
                        writers.expect_writing();
                      });
}

// The peers make the write when rank 0, which made it before them, is in a backward that may wait for them.
TEST(LiveGraphs, ABackwardAfterTheRanksOwnWriteLetsPeersMakeThatWriteToo) {
  std::promise<void> begins;
  const auto has_begun = begins.get_future().share();
  torch::Tensor output;  // rank 0's
  run_against_writers(
      [&](Reader& reader) {
        if (rank() != 0) {
          reader.forward();
          has_begun.wait_for(kLong);
          return torch::Tensor();
        }
        ForwardScope scope(reader.group);
        output = reader.net.forward(reader.x);
        return output.sum();
      },
      [&](Reader& reader, torch::Tensor y, Writers& writers) {
        auto parameters = reader.net.parameters();
        torch::NoGradGuard no_grad;
        parameters[0].add_(1.0);
        y.register_hook([&](const torch::Tensor&) {
          begins.set_value();
          writers.expect_writing();
        });
        {
          torch::AutoGradMode recording(true);
          grad({y * 1.0}, {output});  // reads no parameter, or it would wait for theirs
        }
        output.reset();
        for (size_t i = 1; i < parameters.size(); ++i) parameters[i].add_(1.0);
        reader.has_written = true;
      });
}

// Steps whose losses, and graphs that never run, live on; accumulation and evaluation between.
TEST(LiveGraphs, TrainingGoesOnWhileEveryRankKeepsAllItsGraphs) {
  std::vector<std::shared_ptr<SmallNetImpl>> nets;
  for (int rank = 0; rank < kReaders; ++rank)
    nets.push_back(build_alike([] { return std::make_shared<SmallNetImpl>(12, 2); }));
  run_thread_ranks(kReaders,
                   [&](int rank) {
                     auto& net = *nets[static_cast<size_t>(rank)];
                     const auto group = shard_blocks(net);
                     auto optimizer = sgd(net.parameters());
                     Values kept;
                     for (int step = 0; step < 4; ++step) {
                       optimizer.zero_grad();
                       for (int part = 0; part < 2; ++part) {
                         {
                           ForwardScope scope(group);
                           kept.push_back(small_net_loss(net, {2 * step + part, rank * 2, 2}));
                         }
                         kept.back().backward();
                         ForwardScope scope(group);
                         if (rank != step % kReaders) kept.push_back(small_net_loss(net, {step, rank * 2, 2}));
                       }
                       optimizer.step();
                       torch::NoGradGuard no_grad;
                       ForwardScope scope(group);
                       EXPECT_TRUE(std::isfinite(small_net_loss(net, {step, rank * 2, 2}).item<double>()));
                     }
                   },
                   {.backend = "shm"});
}

}  // namespace
}  // namespace fsdp::test
