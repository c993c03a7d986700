// Where ranks share memory, a rank lets its peers write once it has no graph left that may run backward.

#include <future>

#include "runtime/shm_writers.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

Tensor forward(Reader& reader) { return reader.forward(); }

// The output after a backward that keeps its graph or not.
Tensor after_backward(Reader& reader, bool is_kept) {
  auto y = reader.forward();
  y.backward({}, is_kept);
  return y;
}

TEST(EndedGraphs, ThatAreDroppedLetPeersWrite) {
  const auto drop = [](Reader&, Tensor y, Writers& writers) {
    writers.expect_waiting();
    y.reset();
    writers.expect_writing();
  };
  run_against_writers(forward, drop);
  run_against_writers(forward, drop, /*is_frozen=*/true);
  run_against_writers(own_forward, drop);
  run_against_writers([](Reader& reader) { return after_backward(reader, /*is_kept=*/true); }, drop);
}

TEST(EndedGraphs, ThatWereConsumedLetPeersWriteThoughTheirLossesAreHeld) {
  const auto expect_writing = [](Reader&, const Tensor&, Writers& writers) { writers.expect_writing(); };
  run_against_writers([](Reader& reader) { return after_backward(reader, /*is_kept=*/false); }, expect_writing);
  std::array<Tensor, kReaders> held;
  const auto both_backward = [&](Reader& reader) {
    const auto [y, other] = reader.two_outputs();
    other.backward();
    y.backward();
    held[static_cast<size_t>(rank())] = other;
    return y;
  };
  run_against_writers(both_backward, expect_writing);
}

// The graph that ran keeps the gradient accumulators alive.
TEST(EndedGraphs, BesideOneThatRanAndIsHeldLetPeersWriteOnceTheRankWaits) {
  run_readers(2, [](int rank, Reader& reader) {
    auto [ran, dropped] = reader.two_outputs();
    ran.backward();
    dropped.reset();
    if (rank == 1) write_rows(reader.net);
    EXPECT_EQ(all_reduce(torch::ones({})).item<float>(), 2);
    if (rank == 0) write_rows(reader.net);
  });
}

TEST(EndedGraphs, AreThoseWhoseRowsTheRankItselfWrites) {
  run_against_writers(forward, [](Reader& reader, const Tensor&, Writers& writers) {
    writers.expect_waiting();
    write_rows(reader.net);
    reader.has_written = true;
    writers.expect_writing();
  });
}

// Rank 0 writes first, and the peers make the same write while rank 0 is in a backward that may wait for them.
TEST(EndedGraphs, OfTheRanksOwnWriteLetPeersMakeThatWriteTooInABackwardAfterIt) {
  std::promise<void> begins;
  const auto has_begun = begins.get_future().share();
  Tensor output;  // rank 0's
  run_against_writers(
      [&](Reader& reader) {
        if (rank() != 0) {
          reader.forward();
          has_begun.wait_for(kLong);
          return Tensor();
        }
        ForwardScope scope(reader.group);
        output = reader.net.forward(reader.x);
        return output.sum();
      },
      [&](Reader& reader, Tensor y, Writers& writers) {
        auto parameters = reader.net.parameters();
        torch::NoGradGuard no_grad;
        parameters[0].add_(1.0);
        y.register_hook([&](const Tensor&) {
          begins.set_value();
          writers.expect_writing();
        });
        {
          torch::AutoGradMode recording(true);
          torch::autograd::grad({y * 1.0}, {output});  // reads no parameter, or it would wait for the peers' writes
        }
        output.reset();
        for (size_t i = 1; i < parameters.size(); ++i) parameters[i].add_(1.0);
        reader.has_written = true;
      });
}

// Losses of past steps and graphs that never run stay alive, with accumulation and evaluation in between.
TEST(EndedGraphs, AllOfWhichEveryRankKeepsDoNotHoldUpTraining) {
  run_thread_ranks_with(kReaders, {.backend = "shm"}, [](int rank) {
    const auto net = shm_net();
    const auto group = shard_blocks(*net);
    auto optimizer = sgd(net->parameters());
    Values kept;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      for (int part = 0; part < 2; ++part) {
        kept.push_back(own_loss(*net, group, 2 * step + part));
        kept.back().backward();
        ForwardScope scope(group);
        if (rank != step % kReaders) kept.push_back(small_net_loss(*net, {step, rank * 2, 2}));
      }
      optimizer.step();
      torch::NoGradGuard no_grad;
      EXPECT_TRUE(std::isfinite(own_loss(*net, group, step).item<double>()));
    }
  });
}

}  // namespace
}  // namespace fsdp::test
