// Tests of ranks that share memory: a rank must let its peers write after it has written itself, or if it has kept no
// graph that may run backward.

#include <future>

#include "runtime/shm_writers.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

Tensor forward(Reader& reader) { return reader.forward(); }

TEST(EndedGraphs, ThatWereNeverRecordedLetPeersWrite) {
  const auto expect_writing = [](Reader&, const Tensor&, Writers& writers) { writers.expect_writing(); };
  const auto unrecorded = [](Reader& reader) {
    torch::NoGradGuard no_grad;
    return reader.forward();
  };
  run_against_writers(unrecorded, expect_writing);
  const auto forward_of_constants = [](Reader& reader) {
    const auto x = std::exchange(reader.x, reader.x.detach());
    auto y = reader.forward();
    reader.x = x;
    return y;
  };
  run_against_writers(forward_of_constants, expect_writing, /*is_frozen=*/true);
}

// Rank 1 writes alone, while its peers, whose graphs have run, go on to the next scope.
TEST(EndedGraphs, AreThoseOfAnOlderScopeForARankThatWritesAlone) {
  run_readers(3, [](int rank, Reader& reader) {
    const double before = reader.sum();
    const auto loss = reader.forward();
    loss.backward();
    double added = 0;
    if (rank == 1) {
      LocalRows rows(reader.group);
      write_rows(reader.net, 1.0);
      for (const auto& parameter : reader.net.parameters()) added += static_cast<double>(parameter.numel());
    }
    const double after = reader.sum();
    EXPECT_NEAR(after, before + all_reduce(torch::tensor({added})).item<double>(), 1e-2);
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

// Rank 0 writes first. Its peers make the same write while rank 0 is in a backward, and that backward may wait for
// them.
TEST(EndedGraphs, OfTheRanksOwnWriteLetPeersMakeThatWriteTooInABackwardAfterIt) {
  std::promise<void> begins;
  const auto has_begun = begins.get_future().share();
  Tensor output;  // of rank 0
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
          torch::autograd::grad({y * 1.0}, {output});  // reads no parameter; a read would wait for the peers' writes
        }
        output.reset();
        for (size_t i = 1; i < parameters.size(); ++i) parameters[i].add_(1.0);
        reader.has_written = true;
      });
}

// Losses of past steps, and graphs that never run, stay alive. Between them the ranks accumulate and evaluate.
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
        auto loss = small_net_loss(*net, {step, rank * 2, 2});
        if (rank != step % kReaders) kept.push_back(std::move(loss));
      }
      optimizer.step();
      torch::NoGradGuard no_grad;
      EXPECT_TRUE(std::isfinite(own_loss(*net, group, step).item<double>()));
    }
  });
}

}  // namespace
}  // namespace fsdp::test
