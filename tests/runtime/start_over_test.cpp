// Tests of exceptions on one rank: the other ranks get an error, and reset_iter_state() on all ranks makes the model
// usable again.

#include <gmock/gmock.h>

#include <stdexcept>
#include <thread>

#include "support/small_net.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using torch::Tensor;

[[noreturn]] void throw_an_exception() { throw std::runtime_error("out of eggs"); }

struct ThrowInBackward : torch::autograd::Function<ThrowInBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw_an_exception();
  }
};

// A rank that trains with plain SGD.
struct SgdRank {
  explicit SgdRank(int r, const FullyShardOptions& options = {})
      : rank(r), net(alike_small_net()), group(shard_blocks(*net, options)), optimizer(net->parameters(), 0.1) {}

  Tensor forward(int step) const { return own_loss(*net, group, step); }
  void step(int number) {
    optimizer.zero_grad();
    forward(number).backward();
    optimizer.step();
  }
  // Runs a forward, and a backward that throws before it reaches the first block.
  void fail_in_backward() const {
    const auto loss = in_scope(group, [&] {
      auto hidden = net->blocks[0]->as<SmallBlock>()->forward(net->first->forward(torch::ones({1, 5})));
      return net->head->forward(ThrowInBackward::apply(hidden)).sum();
    });
    EXPECT_THROW(loss.backward(), std::runtime_error);
  }
  std::vector<Tensor> values() const {
    std::vector<Tensor> values;
    for (auto& parameter : net->parameters()) values.push_back(full_tensor(parameter));
    return values;
  }

  const int rank;
  const std::shared_ptr<SmallNetImpl> net;
  const Group group;
  torch::optim::SGD optimizer;
};

using Incident = std::function<void(SgdRank&)>;

// Trains one model with `incident` and a reset after each step, and another one without; the results must have the same
// bits. `ends_backward` means that the reset drops gradients on every rank, because some ranks have gradients that
// others lack.
void expect_survived(const Incident& incident, bool ends_backward = false) {
  for (const int world : {2, 3})
    run_thread_ranks(world, [&](int r) {
      const FullyShardOptions options{.reshard_after_forward = world == 2 ? Reshard::always() : Reshard::never()};
      SgdRank disturbed(r, options), quiet(r, options);
      for (int step = 0; step < 2; ++step) {
        disturbed.step(step);
        quiet.step(step);
        incident(disturbed);
        disturbed.group.reset_iter_state();
        for (const auto& item : disturbed.net->named_parameters())
          EXPECT_TRUE(!ends_backward || !item.value().grad().defined()) << item.key();
      }
      disturbed.step(3);
      quiet.step(3);
      const auto found = disturbed.values(), expected = quiet.values();
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
      EXPECT_EQ(disturbed.group.stats().whole.current, 0);
    });
}

void expect_told(const std::function<void()>& go_on, int thrower) {
  EXPECT_THAT(go_on, ThrowsMessage<Mismatch>(AllOf(AnyOf(HasSubstr(c10::str("rank ", thrower, " runs ")),
                                                         HasSubstr(c10::str("rank ", thrower, " starts over"))),
                                                   HasSubstr("reset_iter_state"))));
}

// Makes one rank throw: first rank 0, then the last rank. The other ranks go on until they get an error.
void expect_survived_by_all_but_one(const Incident& exception, bool ends_backward = false) {
  for (const bool is_last : {false, true})
    expect_survived(
        [&](SgdRank& t) {
          const int thrower = is_last ? world_size() - 1 : 0;
          if (t.rank == thrower) return exception(t);
          const auto go_on = [&] {
            t.forward(0).backward();
            t.forward(1);
          };
          expect_told(go_on, thrower);
        },
        ends_backward);
}

TEST(StartOver, AfterAnExceptionInForwardOfOneRank) {
  expect_survived_by_all_but_one([](SgdRank& t) {
    EXPECT_THROW(
        {
          ForwardScope scope(t.group);
          t.net->first->forward(torch::ones({1, 5}));
          throw_an_exception();
        },
        std::runtime_error);
  });
}

TEST(StartOver, AfterAnExceptionInBackwardOfOneRank) {
  expect_survived_by_all_but_one([](SgdRank& t) { t.fail_in_backward(); }, /*ends_backward=*/true);
}

TEST(StartOver, AfterRanksRanDifferentOperations) {
  expect_survived([](SgdRank& t) {
    EXPECT_THROW(
        {
          if (t.rank == 0) static_cast<void>(full_tensor(t.net->head->weight));
          t.forward(0).backward();
          t.forward(1);
        },
        Mismatch);
  });
}

TEST(StartOver, TheOtherOptimizerStateAndScopesStayInStep) {
  // In each incident, rank 1 opens one scope fewer than the other ranks.
  expect_survived([](SgdRank& t) {
    EXPECT_THROW(
        {
          if (t.rank == 1) throw_an_exception();
          t.forward(5);
        },
        std::exception);
  });
}

TEST(StartOver, AfterAnOptimizerStepOnSomeRanksOnlySaysSoOnce) {
  run_thread_ranks(3, [&](int r) {
    SgdRank t(r);
    t.step(0);
    t.optimizer.zero_grad();
    t.forward(1).backward();
    if (r == 1) t.optimizer.step();
    EXPECT_THROW(
        {
          if (r != 1) throw_an_exception();
          t.forward(2);
        },
        std::exception);
    EXPECT_THAT(
        [&] { t.group.reset_iter_state(); },
        ThrowsMessage<Mismatch>(AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/3] reset_iter_state")),
                                      HasSubstr("some ranks made an optimizer step"), HasSubstr("checkpoint"))));
    t.group.reset_iter_state();
    t.step(3);
  });
}

// Rank 0's backward begins after a write that its scope did not see, so the ranks would have to meet before it reads.
// The reset must forget that meeting: an unshard outside a scope waits for no rank.
TEST(StartOver, ForgetsThatABackwardHadToMeet) {
  run_thread_ranks(2, [&](int r) {
    SgdRank one(r), other(r);
    const auto loss = one.forward(0);
    other.step(0);
    if (r == 0) expect_told([&] { loss.backward(); }, 1);
    one.group.reset_iter_state();
    one.group.unshard().wait();
    one.step(1);
  });
}

// Rank 0 opened the other model's scope, and rank 1 did not.
TEST(StartOver, OfOneModelLeavesTheOtherOneUsable) {
  run_thread_ranks(2, [&](int r) {
    SgdRank one(r), other(r);
    one.step(0);
    other.step(0);
    if (r == 0) expect_told([&] { other.forward(1); }, 1);
    one.group.reset_iter_state();
    for (int step = 0; step < 2; ++step) {
      const auto before = other.values();
      std::this_thread::sleep_for(std::chrono::milliseconds(r * 5));
      other.step(step);
      one.step(step);
      EXPECT_FALSE(torch::equal(other.values()[0], before[0]));
    }
  });
}

TEST(StartOver, WithoutARankThatLeftIsPeerLost) {
  for (int leaver : {0, 2}) {
    const auto leave = [&] {
      run_thread_ranks(3, [&](int r) {
        SgdRank t(r);  // the rank leaves when its groups are destroyed
        t.step(0);
        if (r == leaver) throw_an_exception();
        EXPECT_THROW(
            {
              t.group.reset_iter_state();
              t.step(1);
            },
            PeerLost);
        EXPECT_THROW(t.group.reset_iter_state(), PeerLost);  // every later call throws, too
      });
    };
    EXPECT_THAT(leave, ThrowsMessage<Error>(HasSubstr("out of eggs")));
  }
}

// This test calls Communicator::start_over directly.
TEST(StartOver, DropsWhatIsInFlightAndBeginsEveryQueueAnew) {
  for (int world : {2, 4})
    run_thread_ranks(world, [&](int rank) {
      auto& main = default_process_group()->communicator();
      auto other = main.duplicate("other");
      for (int round = 0; round < 2; ++round) {
        auto sum = torch::full({300}, rank + 1.0), mine = torch::zeros({4});
        std::shared_ptr<Work> pending;
        try {
          if (rank == 0) pending = other->all_reduce(mine, ReduceOp::kSum, {"only rank 0", {}});
        } catch (const Mismatch&) {
          // Another rank has already started over.
        }
        if (rank == 1) {
          EXPECT_THROW(main.send(mine, 0, {"nobody receives", {}})->wait(); main.barrier({"never", {}})->wait(), Error);
        }
        main.start_over();
        other->start_over();
        if (pending) {
          EXPECT_THROW(pending->wait(), Error);
        }
        main.all_reduce(sum, ReduceOp::kSum, {"sum", {}})->wait();
        EXPECT_EQ(sum[299].item<double>(), world * (world + 1) / 2.0);
        other->barrier({"together", {}})->wait();
        auto message = torch::full({5}, rank + 10.0);
        if (rank == 0) main.send(message, 1, {"message", {}})->wait();
        if (rank == 1) {
          main.recv(message, 0, {"message", {}})->wait();
          EXPECT_EQ(message[4].item<double>(), 10.0);
        }
        main.barrier({"end of round", {}})->wait();  // or a rank that starts over would end others' operations
      }
    });
}

}  // namespace
}  // namespace fsdp::test
