// Where ranks share memory, a rank reads as long as one of its graphs may run backward: its peers' writes wait for it.

#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>

#include "comm/core/fault_point.h"
#include "support/small_net.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::grad;
using torch::autograd::variable_list;

constexpr int kReaders = 3;
constexpr auto kMoment = std::chrono::milliseconds(60);
constexpr auto kLong = std::chrono::seconds(30);

thread_local bool is_writer = false;

// Ranks on their way to write the rows of one group: all but rank 0, unless said.
class Writers {
 public:
  explicit Writers(int count = kReaders - 1) : count_(count) {
    current = this;
    on_fault_point = [](const char* place) { current->pass(place); };
  }
  ~Writers() { on_fault_point = nullptr; }

  // On a rank that does not let them write.
  void expect_waiting(std::chrono::milliseconds moment = kMoment) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(moved_.wait_for(lock, kLong, [&] { return at_gate_ == count_; }));
    EXPECT_FALSE(moved_.wait_for(lock, moment, [&] { return writing_ > 0; })) << "a peer writes under a reader";
  }
  // On rank 0, which does nothing that would let them go on.
  void expect_writing() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(moved_.wait_for(lock, kLong, [&] { return writing_ == count_; })) << "peers wait for no reader";
  }

 private:
  void pass(const std::string& place) {
    if (!is_writer) return;
    const std::lock_guard lock(mutex_);
    at_gate_ += place == "rows gate";
    writing_ += place == "rows writing";
    moved_.notify_all();
  }

  inline static Writers* current = nullptr;
  const int count_;
  std::mutex mutex_;
  std::condition_variable moved_;
  int at_gate_ = 0, writing_ = 0;
};

void write_rows(SmallNetImpl& net) {
  torch::NoGradGuard no_grad;
  for (auto& parameter : net.parameters()) parameter.add_(1.0);
}

// What ranks do alike, before the others write.
struct Reader {
  SmallNetImpl& net;
  const Group& group;
  torch::Tensor x = torch::linspace(-1, 1, 10).reshape({2, 5}).requires_grad_();
  bool has_written = false;

  torch::Tensor output() const { return net.forward(x).sum(); }
  torch::Tensor forward() const {
    ForwardScope scope(group);
    return output();
  }
};

// Runs `before` on every rank, then writes the rows on all ranks but 0, which runs `meanwhile` at that time and writes
// afterwards.
void run_against_writers(const std::function<torch::Tensor(Reader&)>& before,
                         const std::function<void(Reader&, torch::Tensor, Writers&)>& meanwhile,
                         bool is_frozen = false) {
  torch::manual_seed(5);
  std::vector<std::shared_ptr<SmallNetImpl>> nets;
  for (int rank = 0; rank < kReaders; ++rank) {
    nets.push_back(std::make_shared<SmallNetImpl>(12, 2));
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < nets[0]->parameters().size(); ++i)
      nets.back()->parameters()[i].copy_(nets[0]->parameters()[i]).set_requires_grad(!is_frozen);
  }
  Writers writers;
  run_thread_ranks(kReaders,
                   [&](int rank) {
                     auto& net = *nets[static_cast<size_t>(rank)];
                     const auto group = fully_shard(net);
                     Reader reader{net, group};
                     auto y = before(reader);
                     is_writer = rank != 0;
                     if (is_writer)
                       write_rows(net);
                     else
                       meanwhile(reader, std::move(y), writers);
                     is_writer = false;
                     if (rank == 0 && !reader.has_written) write_rows(net);
                     reader.forward().backward();
                   },
                   {.backend = "shm"});
}

// The gradient of what `before` returns is that of the unsharded model, though peers are about to write.
void expect_unchanged(const std::function<torch::Tensor(Reader&)>& before,
                      const std::function<torch::Tensor(SmallNetImpl&, const torch::Tensor&)>& unsharded,
                      bool is_frozen = false) {
  torch::manual_seed(5);
  SmallNetImpl net(12, 2);
  run_against_writers(
      before,
      [&](Reader& reader, torch::Tensor y, Writers& writers) {
        writers.expect_waiting();
        const auto found = grad({y}, {reader.x})[0];
        const auto expected = grad({unsharded(net, reader.x)}, {reader.x})[0];
        EXPECT_LT(relative_difference(expected, found), 1e-5);
      },
      is_frozen);
}

torch::Tensor plain_output(SmallNetImpl& net, const torch::Tensor& x) { return net.forward(x).sum(); }

TEST(LiveGraphs, AGraphReadsOnAfterAScopeThatRecordedNothing) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        torch::NoGradGuard no_grad;
        reader.forward();
        return y;
      },
      plain_output);
}

TEST(LiveGraphs, AGraphReadsOnAfterTheBackwardOfAnotherOneOfItsScope) {
  expect_unchanged(
      [](Reader& reader) {
        torch::Tensor y, other;
        {
          ForwardScope scope(reader.group);
          y = reader.output();
          other = reader.output();
        }
        other.backward();
        return y;
      },
      plain_output);
}

TEST(LiveGraphs, AGraphReadsOnAfterASecondForwardAndItsBackward) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        reader.forward().backward();
        return y;
      },
      plain_output);
}

TEST(LiveGraphs, AGraphReadsOnAfterASecondForwardWasDropped) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        reader.forward();
        return y;
      },
      plain_output);
}

TEST(LiveGraphs, AGraphReadsOnAfterSummonFullParams) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        const auto whole = summon_full_params(reader.group);
        return y;
      },
      plain_output);
}

TEST(LiveGraphs, AGraphThatWasKeptReadsOn) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        y.backward({}, /*retain_graph=*/true);
        return y;
      },
      plain_output);
}

// x times a weight, out of autograd's sight.
struct OwnLinear : torch::autograd::Function<OwnLinear> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& weight) {
    context->save_for_backward({x, weight});
    return torch::matmul(x, weight.t());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {torch::matmul(gradients[0], saved[1]), torch::matmul(gradients[0].t(), saved[0])};
  }
};

torch::Tensor own_output(SmallNetImpl& net, const torch::Tensor& x) {
  return OwnLinear::apply(OwnLinear::apply(x, net.first->weight), net.head->weight).sum();
}

torch::Tensor own_forward(Reader& reader) {
  ForwardScope scope(reader.group);
  return own_output(reader.net, reader.x);
}

TEST(LiveGraphs, AGraphOfCustomFunctionsReadsOn) { expect_unchanged(own_forward, own_output); }

// The same for a weight that was transposed before.
struct OwnProduct : torch::autograd::Function<OwnProduct> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& weight) {
    context->save_for_backward({x, weight});
    return torch::matmul(x, weight);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {torch::matmul(gradients[0], saved[1].t()), torch::matmul(saved[0].t(), gradients[0])};
  }
};

// The only way from both to the parameter is one node, which the first backward runs.
TEST(LiveGraphs, AGraphOfACustomFunctionThatSharesAViewWithAnotherOneReadsOn) {
  expect_unchanged(
      [](Reader& reader) {
        torch::Tensor y, other;
        {
          ForwardScope scope(reader.group);
          const auto weight = reader.net.first->weight.t();
          y = OwnProduct::apply(reader.x, weight).sum();
          other = OwnProduct::apply(reader.x, weight).sum();
        }
        other.backward();
        return y;
      },
      [](SmallNetImpl& net, const torch::Tensor& x) { return OwnProduct::apply(x, net.first->weight.t()).sum(); });
}

TEST(LiveGraphs, AGraphOfCustomFunctionsOnFrozenParametersReadsOn) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = own_forward(reader);
        torch::NoGradGuard no_grad;
        reader.forward();
        return y;
      },
      own_output, /*is_frozen=*/true);
}

TEST(LiveGraphs, AGraphOfFrozenParametersReadsOn) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        torch::NoGradGuard no_grad;
        reader.forward();
        return y;
      },
      plain_output, /*is_frozen=*/true);
}

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
        torch::Tensor y, other;
        {
          ForwardScope scope(reader.group);
          y = reader.output();
          other = reader.output();
        }
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
  run_thread_ranks(
      2,
      [](int rank) {
        auto net = build_alike([] { return std::make_shared<SmallNetImpl>(12, 2); });
        const auto group = fully_shard(*net);
        const Reader reader{*net, group};
        torch::Tensor ran, dropped;
        {
          ForwardScope scope(group);
          ran = reader.output();
          dropped = reader.output();
        }
        ran.backward();
        dropped.reset();
        if (rank == 1) write_rows(*net);
        EXPECT_EQ(all_reduce(torch::ones({})).item<float>(), 2);
        if (rank == 0) write_rows(*net);
      },
      {.backend = "shm"});
}

TEST(LiveGraphs, AGraphBesideOneThatRanAndIsHeldReadsOnWhileTheRankWaits) {
  Writers writers(1);
  run_thread_ranks(
      3,
      [&](int rank) {
        auto net = build_alike([] { return std::make_shared<SmallNetImpl>(12, 2); });
        const auto group = fully_shard(*net);
        const Reader reader{*net, group};
        torch::Tensor ran, left;
        {
          ForwardScope scope(group);
          ran = reader.output();
          left = reader.output();
        }
        ran.backward();
        auto& ranks = default_process_group()->communicator();
        auto message = torch::zeros({1});
        if (rank != 0) ran.reset(), left.reset();
        if (rank == 0) ranks.recv(message, 2, {"message", {}})->wait();
        if (rank == 2) {
          writers.expect_waiting(std::chrono::milliseconds(400));
          ranks.send(message, 0, {"message", {}})->wait();
        }
        left.reset();
        is_writer = rank == 1;
        write_rows(*net);
        is_writer = false;
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
