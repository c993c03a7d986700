// Tests that a failure on a device comes to an end: calls of the host return, every rank throws, rows are as they were
// before the step, and training goes on after reset_iter_state().

#include <fsdp/activation_checkpoint.h>

#include <barrier>

#include "checked_device/training.h"

namespace fsdp::test::checked {
namespace {

using testing::HasSubstr;

struct RecomputedNetImpl : SmallNetImpl {
  RecomputedNetImpl() : SmallNetImpl(11, 2) {}
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::tanh(first->forward(x));
    for (auto& block : *blocks) h = activation_checkpoint(std::dynamic_pointer_cast<SmallBlockImpl>(block), h);
    return head->forward(h);
  }
};

// Calls `act(training, world)` for each way to train.
void for_each_way_to_train(const auto& act) {
  const auto run = [&](const char* name, const auto& training, int world) {
    SCOPED_TRACE(name);
    act(training, world);
  };
  run("plain", small_net(), 2);
  run("HSDP", small_net_over({2, 2}), 4);
  run("offload", small_net(on_host()), 2);
  run("bf16", small_net({.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16}}), 2);
  const auto build = [] { return std::make_shared<RecomputedNetImpl>(); };
  const auto shard = [](RecomputedNetImpl& net) { return shard_blocks(net); };
  run("activation checkpointing", device_training<RecomputedNetImpl>(build, shard, 5, 3), 2);
}

// Trains until a step throws; the host reads the loss of each step. Returns the type and the beginning of the error.
template <class M>
std::string train_until_failure(const DeviceTraining<M>& training, M& model, const Group& group) {
  auto optimizer = training.optimizer(model.parameters());
  try {
    for (int step = 0;; ++step) run_step(training, model, group, *optimizer, training.share_of(step)).item();
  } catch (const PeerLost& error) {
    return c10::str("PeerLost: ", error.what_without_backtrace());
  } catch (const Error& error) {
    return c10::str("Error: ", error.what_without_backtrace());
  }
}

class CheckedFailures : public CheckedOffload {};

// Returns copies of this rank's rows; set_rows writes such copies back.
std::vector<torch::Tensor> rows_of(const torch::nn::Module& net, const Group& group) {
  const LocalRows local(group);
  std::vector<torch::Tensor> rows;
  for (const auto& parameter : net.parameters()) rows.push_back(parameter.detach().clone());
  return rows;
}
void set_rows(const torch::nn::Module& net, const Group& group, const std::vector<torch::Tensor>& rows) {
  const LocalRows local(group);
  const torch::NoGradGuard no_grad;
  const auto parameters = net.parameters();
  for (size_t i = 0; i < rows.size(); ++i) parameters[i].detach().copy_(rows[i]);
}

// In the second step, `launches` collectives of the last rank run before one fails.
template <class M>
void expect_failure_ends(const DeviceTraining<M>& training, int world, int launches) {
  std::barrier meeting(world);
  on_ranks(training, world, [&](M& net, const Group& group, int rank) {
    run_step(training, net, group, *training.optimizer(net.parameters()), training.share_of());
    const auto rows = rows_of(net, group);
    const auto loss = [&] {
      const torch::NoGradGuard no_grad;
      return training.forward(net, group, training.share_of(1)).item().template to<double>();
    };
    const double before = loss();
    barrier();
    if (rank == world - 1) set_fate(device(rank), Fate::kFails, launches);
    EXPECT_THAT(train_until_failure(training, net, group), HasSubstr("the device's backend failed"));
    meeting.arrive_and_wait();
    if (rank == world - 1) set_fate(device(rank), Fate::kRuns);
    meeting.arrive_and_wait();
    try {
      group.reset_iter_state();
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(), HasSubstr("some ranks made an optimizer step that others did not make"));
    }
    set_rows(net, group, rows);
    EXPECT_EQ(loss(), before);
    EXPECT_NO_THROW(
        run_step(training, net, group, *training.optimizer(net.parameters()), training.share_of(1)).item());
  });
}

TEST_F(CheckedFailures, OfADeviceEndOnEveryRankAndTrainingGoesOn) {
  for_each_way_to_train([](const auto& training, int world) {
    for (const int launches : {0, 1, 4, 7}) {
      SCOPED_TRACE(c10::str("after ", launches, " launches"));
      expect_failure_ends(training, world, launches);
    }
  });
}

template <class M>
void expect_lost_rank_is_named(const DeviceTraining<M>& training, int world, bool in_backward) {
  const auto act = [&](M& net, const Group& group, int rank) {
    auto optimizer = training.optimizer(net.parameters());
    run_step(training, net, group, *optimizer, training.share_of());
    if (rank < world - 1) {
      const auto error = train_until_failure(training, net, group);
      EXPECT_THAT(error, testing::AllOf(HasSubstr("PeerLost"), HasSubstr(c10::str("rank ", world - 1))));
    } else if (in_backward) {
      training.forward(net, group, training.share_of(1));
    }
  };
  on_ranks(training, world, act, std::chrono::seconds(1));
}

TEST_F(CheckedFailures, ARankThatIsLostIsNamedWhateverTheHostWaitsFor) {
  for_each_way_to_train([](const auto& training, int world) {
    for (const bool in_backward : {false, true}) {
      SCOPED_TRACE(in_backward ? "in backward" : "between steps");
      expect_lost_rank_is_named(training, world, in_backward);
    }
  });
}

TEST_F(CheckedFailures, AStepInAGraphIsRefused) {
  const auto training = small_net();
  on_ranks(training, 1, [&](SmallNetImpl& net, const Group& group, int) {
    const auto share = training.share_of();
    pretend_to_record_graph(true);
    EXPECT_THAT([&] { training.forward(net, group, share); },
                testing::ThrowsMessage<UsageError>(HasSubstr("is capturing a graph")));
    pretend_to_record_graph(false);
    EXPECT_NO_THROW(training.forward(net, group, share));
  });
}

TEST_F(CheckedFailures, ADeadlineWithAllRanksAliveEndsWhatTheHostWaitsFor) {
  const auto training = small_net();
  set_fate(device(1), Fate::kHangs, /*launches=*/5);
  const auto act = [&](SmallNetImpl& net, const Group& group, int) {
    EXPECT_THAT(train_until_failure(training, net, group), HasSubstr("its data did not move in time"));
  };
  on_ranks(training, 2, act, std::chrono::seconds(1));
}

}  // namespace
}  // namespace fsdp::test::checked
