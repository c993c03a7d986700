// Whose turn it is where ranks share memory: readers and writers at different speeds.

#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <chrono>
#include <mutex>
#include <thread>

#include "support/small_net.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

constexpr auto kDelay = std::chrono::milliseconds(60);

// Every rank a model of its own, with the same values.
template <class Run>
void run_over_shm(int world, const Run& run) {
  torch::manual_seed(5);
  auto models = std::vector<std::shared_ptr<SmallNetImpl>>();
  const auto source = std::make_shared<SmallNetImpl>(12, 3);
  for (int r = 0; r < world; ++r) {
    models.push_back(std::make_shared<SmallNetImpl>(12, 3));
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < source->parameters().size(); ++i)
      models.back()->parameters()[i].copy_(source->parameters()[i]);
  }
  run_thread_ranks(world, [&](int rank) { run(rank, *models[static_cast<size_t>(rank)]); }, {.backend = "shm"});
}

double sum_of_parameters(const SmallNetImpl& net) {
  double sum = 0;
  for (const auto& parameter : net.parameters())
    sum += (parameter * 1.0).detach().to(torch::kDouble).sum().item<double>();
  return sum;
}

double whole_sum(const Group& group, SmallNetImpl& net) {
  torch::NoGradGuard no_grad;
  ForwardScope scope(group);
  return sum_of_parameters(net);
}

void add_to_rows(SmallNetImpl& net, double value) {
  torch::NoGradGuard no_grad;
  for (auto& parameter : net.parameters()) parameter.add_(value);
}

TEST(Turns, AWriterWaitsForASlowReader) {
  for (int world : {2, 4}) {
    run_over_shm(world, [](int rank, SmallNetImpl& net) {
      auto group = fully_shard(net);
      const double before = whole_sum(group, net);
      for (int step = 0; step < 3; ++step) {
        const double expected = whole_sum(group, net);
        {
          torch::NoGradGuard no_grad;
          ForwardScope scope(group);
          if (rank == step % world_size()) std::this_thread::sleep_for(kDelay);
          EXPECT_EQ(sum_of_parameters(net), expected) << "rank " << rank << " saw a peer's write in step " << step;
        }
        add_to_rows(net, 0.5);
      }
      EXPECT_NE(whole_sum(group, net), before);
    });
  }
}

// Backward reads the weight as it is then, for as long as `delay`.
struct ReadsInBackward : torch::autograd::Function<ReadsInBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x, SmallNetImpl* net) {
    net_ = net;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    const double sum = sum_of_parameters(*net_);
    std::this_thread::sleep_for(delay);
    EXPECT_EQ(sum, sum_of_parameters(*net_)) << "a peer wrote meanwhile";
    return {gradients[0] * sum, {}};
  }
  static thread_local SmallNetImpl* net_;
  static thread_local std::chrono::milliseconds delay;
};
thread_local SmallNetImpl* ReadsInBackward::net_ = nullptr;
thread_local std::chrono::milliseconds ReadsInBackward::delay{0};

// Backward reads the parameters, on the way to the gradient of `x`.
torch::Tensor read_in_backward(const Group& group, SmallNetImpl& net, const torch::Tensor& x) {
  ForwardScope scope(group);
  return ReadsInBackward::apply(x, &net);
}

TEST(Turns, ABackwardAfterAnUpdateReadsWhatASlowPeerWrote) {
  run_over_shm(2, [](int rank, SmallNetImpl& net) {
    auto group = fully_shard(net);
    const auto x = torch::ones({1}, torch::requires_grad());
    const auto y = read_in_backward(group, net, x);
    if (rank == 1) std::this_thread::sleep_for(kDelay);
    add_to_rows(net, 0.5);
    y.backward();
    EXPECT_EQ(x.grad().item<float>(), static_cast<float>(whole_sum(group, net)));
  });
}

TEST(Turns, AWriterWaitsForASlowReaderInABackwardAfterAnUpdate) {
  run_over_shm(2, [](int rank, SmallNetImpl& net) {
    auto group = fully_shard(net);
    const auto x = torch::ones({1}, torch::requires_grad());
    const auto y = read_in_backward(group, net, x);
    add_to_rows(net, 0.5);
    ReadsInBackward::delay = rank == 1 ? kDelay : std::chrono::milliseconds(0);
    y.backward();
    add_to_rows(net, 1.0);
    EXPECT_NE(x.grad().item<float>(), static_cast<float>(whole_sum(group, net)));
  });
}

TEST(Turns, AReaderWaitsForASlowWriter) {
  run_over_shm(2, [](int rank, SmallNetImpl& net) {
    auto group = fully_shard(net);
    const double before = whole_sum(group, net);
    int64_t numel = 0;
    for (const auto& parameter : net.parameters()) numel += c10::multiply_integers(global_sizes(parameter));
    if (rank == 1) std::this_thread::sleep_for(kDelay);
    add_to_rows(net, 1.0);
    EXPECT_NEAR(whole_sum(group, net), before + static_cast<double>(numel), 1e-2);
  });
}

// Ranks that are threads have one mapping of what they share.
TEST(Turns, RowsAreThereOncePerHost) {
  for (int world : {2, 3}) {
    std::vector<std::vector<const void*>> seen(static_cast<size_t>(world));
    int64_t rows_bytes = 0, parameter_bytes = 0;
    std::mutex mutex;
    run_over_shm(world, [&](int rank, SmallNetImpl& net) {
      auto group = fully_shard(net);
      ForwardScope scope(group);
      for (const auto& parameter : net.parameters()) {
        (parameter * 1.0).sum();  // reads it
        seen[static_cast<size_t>(rank)].push_back(parameter.const_data_ptr());
      }
      const std::lock_guard lock(mutex);
      rows_bytes += group.stats().rows.current;
      parameter_bytes = group.stats().parameter_numel * static_cast<int64_t>(sizeof(float));
      EXPECT_EQ(group.stats().whole.peak, 0);
    });
    EXPECT_THAT(seen, Each(seen[0]));
    EXPECT_GE(rows_bytes, parameter_bytes);
    EXPECT_LE(rows_bytes, parameter_bytes * 102 / 100 + 64 * static_cast<int64_t>(seen[0].size()));
  }
}

// Of several rounds, while nobody waits for it.
TEST(Turns, AReductionGoesOnWheneverARankComesBy) {
  constexpr int kWorld = 2;
  constexpr int64_t kNumel = int64_t{1} << 20;  // half of it takes 8 slots of 256 KiB
  std::barrier together(kWorld);
  run_over_shm(kWorld, [&](int rank, SmallNetImpl&) {
    const auto ranks = default_process_group()->communicator().duplicate("alone");
    const auto input = torch::full({kNumel}, rank + 1.0), output = torch::zeros({kNumel / kWorld});
    const std::array<int64_t, 3> offsets{0, kNumel / 2, kNumel};
    std::shared_ptr<Work> work;
    for (int starter = 0; starter < kWorld; ++starter) {  // one after another, or both might go through all rounds
      if (rank == starter) work = ranks->reduce_scatter(output, input, offsets, {"slow", {}});
      together.arrive_and_wait();
    }
    EXPECT_EQ(output[-1].item<double>(), 0.0);
    for (int round = 0; round < 16; ++round) {
      ranks->progress();
      together.arrive_and_wait();
    }
    EXPECT_TRUE(output.eq(3.0).all().item<bool>());
    work->wait();
  });
}

TEST(Turns, AScopeThatRecordedAndHasNoBackwardHoldsNobodyUp) {
  run_over_shm(2, [](int rank, SmallNetImpl& net) {
    auto group = fully_shard(net);
    const double before = whole_sum(group, net);
    torch::Tensor loss;
    for (int step = 0; step < 3; ++step) {
      {
        ForwardScope scope(group);
        loss = small_net_loss(net, {step, rank * 2, 2});
      }
      if (rank == 0) std::this_thread::sleep_for(kDelay);
      add_to_rows(net, 0.5);
    }
    EXPECT_NEAR(whole_sum(group, net) - before, 1.5 * static_cast<double>(group.stats().parameter_numel), 1e-3);
  });
}

TEST(Turns, OneRankMayWriteItsRowsAloneUnderLocalRows) {
  run_over_shm(3, [](int rank, SmallNetImpl& net) {
    auto group = fully_shard(net);
    const double before = whole_sum(group, net);
    double added = 0;
    if (rank == 2) {
      std::this_thread::sleep_for(kDelay);
      LocalRows rows(group);
      torch::NoGradGuard no_grad;
      for (auto& parameter : net.parameters()) {
        parameter.add_(1.0);
        added += static_cast<double>(parameter.numel());
      }
    }
    auto total = torch::tensor({added});
    default_process_group()->communicator().all_reduce(total, ReduceOp::kSum, {"added", {}})->wait();
    EXPECT_GT(total.item<double>(), 0);
    EXPECT_NEAR(whole_sum(group, net), before + total.item<double>(), 1e-2);
  });
}

// Another task over the same graph reads the same rows, though a fast peer would like to write its own.
TEST(Turns, ARankThatKeepsItsGraphReadsWhatItsForwardRead) {
  run_over_shm(2, [](int rank, SmallNetImpl& net) {
    auto group = fully_shard(net);
    auto x = torch::ones({2, 5}, torch::requires_grad());
    torch::Tensor y;
    {
      ForwardScope scope(group);
      y = net.forward(x).sum();
    }
    const auto first = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true)[0];
    if (rank == 0) std::this_thread::sleep_for(kDelay);
    const auto second = torch::autograd::grad({y}, {x})[0];
    add_to_rows(net, 1.0);
    EXPECT_TRUE(torch::equal(first, second));
  });
}

TEST(Turns, AnExceptionInAScopeOfEveryRankLeavesTheModelUsable) {
  run_over_shm(2, [](int rank, SmallNetImpl& net) {
    auto group = fully_shard(net);
    const double before = whole_sum(group, net);
    for (int round = 0; round < 2; ++round) {
      try {
        ForwardScope scope(group);
        if (rank == round) std::this_thread::sleep_for(kDelay);
        auto loss = small_net_loss(net, {0, rank * 2, 2});
        throw std::runtime_error("the user's own");
      } catch (const std::runtime_error&) {
        group.reset_iter_state();
      }
      EXPECT_EQ(whole_sum(group, net), before);
    }
    add_to_rows(net, 1.0);
    EXPECT_GT(whole_sum(group, net), before);
  });
}

// What ranks say when they run different programs.
std::vector<std::string> mismatches(int world, const std::function<void(int, SmallNetImpl&, const Group&)>& run) {
  std::mutex mutex;
  std::vector<std::string> messages;
  run_over_shm(world, [&](int rank, SmallNetImpl& net) {
    auto group = fully_shard(net);
    whole_sum(group, net);
    try {
      run(rank, net, group);
    } catch (const Mismatch& error) {
      std::lock_guard lock(mutex);
      messages.emplace_back(error.what_without_backtrace());
    }
  });
  return messages;
}

TEST(Turns, AnOptimizerStepOnOneRankOnlyIsAMismatch) {
  const auto messages = mismatches(3, [](int rank, SmallNetImpl& net, const Group& group) {
    if (rank == 1) add_to_rows(net, 1.0);
    whole_sum(group, net);
  });
  EXPECT_THAT(messages, SizeIs(3));
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("writes to the rows"), HasSubstr("rank 1 runs barrier of 'forward scope"),
                                   HasSubstr("writes to the rows (optimizer steps): 1"))));
}

TEST(Turns, ASecondOptimizerStepOnOneRankOnlyIsAMismatch) {
  const auto messages = mismatches(2, [](int rank, SmallNetImpl& net, const Group& group) {
    for (int step = 0; step < 1 + rank; ++step) add_to_rows(net, 1.0);
    whole_sum(group, net);
  });
  EXPECT_THAT(messages, SizeIs(2));
  EXPECT_THAT(messages,
              Each(AllOf(HasSubstr("writes to the rows"), HasSubstr("rank 1 runs barrier of 'forward scope"))));
}

TEST(Turns, ABackwardOnOneRankOnlyIsAMismatchAndNoHang) {
  const auto messages = mismatches(2, [](int rank, SmallNetImpl& net, const Group& group) {
    torch::Tensor loss;
    {
      ForwardScope scope(group);
      loss = small_net_loss(net, {0, rank * 2, 2});
    }
    if (rank == 0) loss.backward();
    whole_sum(group, net);
  });
  EXPECT_THAT(messages, SizeIs(2));
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("ranks wait for each other"), HasSubstr("reduce_scatter of 'SmallNet'"),
                                   HasSubstr("barrier of 'forward scope of SmallNet'"))));
}

}  // namespace
}  // namespace fsdp::test
