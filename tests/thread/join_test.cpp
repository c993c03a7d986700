// Ranks that run out of data: the others train on, and every rank ends with the model of the samples there were.

#include <gmock/gmock.h>

#include "support/small_net.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

constexpr int64_t kSamples = 2;  // of a rank in a step

// How many batches each rank has in an epoch.
using BatchCounts = std::vector<int>;

BatchCounts counts_for(int world) {
  const BatchCounts counts{1, 3, 0, 2};
  return {counts.begin(), counts.begin() + world};
}

int longest(const BatchCounts& counts) { return *std::ranges::max_element(counts); }

struct JoinedRun {
  BatchCounts counts;
  FullyShardOptions options = {};
  std::vector<int> mesh = {};
  JoinOptions join = {};
  int epochs = 2;
  std::string backend = {};
};

// Every rank's samples of a step, one after the other, and the share of the ranks that have some.
std::pair<std::vector<Batch>, double> joined_batch(const JoinedRun& run, int epoch, int step) {
  std::vector<Batch> batches;
  for (size_t rank = 0; rank < run.counts.size(); ++rank)
    if (step < run.counts[rank])
      batches.push_back({10 * epoch + step, static_cast<int64_t>(rank) * kSamples, kSamples});
  const double share = static_cast<double>(batches.size()) / static_cast<double>(run.counts.size());
  return {batches, share};
}

torch::optim::AdamW adamw(const std::vector<Tensor>& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(1e-2));
}

std::shared_ptr<SmallNetImpl> small_net() {
  auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
  net->to(torch::kDouble);
  return net;
}

// The oracle: one process, which has the batches of all ranks that have any.
std::vector<Tensor> train_unsharded_on_what_there_is(const JoinedRun& run) {
  const auto net = small_net();
  auto optimizer = adamw(net->parameters());
  for (int epoch = 0; epoch < run.epochs; ++epoch)
    for (int step = 0; step < longest(run.counts); ++step) {
      const auto [batches, share] = joined_batch(run, epoch, step);
      optimizer.zero_grad();
      for (const auto& batch : batches) {
        const double divisor =
            static_cast<double>(batches.size()) / (run.join.divide_by_initial_world_size ? share : 1);
        (small_net_loss(*net, batch) / divisor).backward();
      }
      torch::nn::utils::clip_grad_norm_(net->parameters(), 0.05);
      optimizer.step();
    }
  return net->parameters();
}

void expect_trains_as_unsharded(const JoinedRun& run) {
  const auto expected = train_unsharded_on_what_there_is(run);
  run_thread_ranks(static_cast<int>(run.counts.size()),
                   [&](int rank) {
                     const auto net = small_net();
                     auto options = run.options;
                     if (!run.mesh.empty()) options.mesh = init_device_mesh(run.mesh, {"replicate", "shard"});
                     const auto model = shard_blocks(*net, options);
                     auto optimizer = adamw(net->parameters());
                     for (int epoch = 0; epoch < run.epochs; ++epoch) {
                       int step = 0, calls = 0;
                       const auto has_data = [&] { return step < run.counts[static_cast<size_t>(rank)]; };
                       const auto train = [&] {
                         ++calls;
                         ForwardScope scope(model);
                         const auto loss = small_net_loss(*net, {10 * epoch + step, rank * kSamples, kSamples});
                         scope.close();
                         loss.backward();
                       };
                       while (join(model, has_data(), train, run.join)) {
                         clip_grad_norm_(model, 0.05);
                         optimizer.step();
                         optimizer.zero_grad();
                         ++step;
                       }
                       EXPECT_EQ(step, longest(run.counts));
                       EXPECT_EQ(calls, run.counts[static_cast<size_t>(rank)]);
                     }
                     const auto parameters = net->parameters();
                     for (size_t i = 0; i < parameters.size(); ++i)
                       expect_close(expected[i], full_tensor(parameters[i]), 1e-10);
                   },
                   {.backend = run.backend});
}

const std::vector<FullyShardOptions> kOptions{{},
                                              {.strategy = Strategy::kShardGradOp},
                                              {.strategy = Strategy::kShardOptimizer},
                                              {.strategy = Strategy::kReplicate},
                                              {.reshard_after_forward = Reshard::always()}};

TEST(Join, TrainsAsTheUnshardedModelOnTheSamplesThatThereAre) {
  for (const int world : worlds_up_to(4))
    for (const auto& options : kOptions) {
      SCOPED_TRACE(c10::str(options.strategy, " over ", world, " ranks"));
      expect_trains_as_unsharded({.counts = counts_for(world), .options = options});
    }
}

TEST(Join, DividesByTheRanksThatHaveDataWhereItIsToldTo) {
  for (const auto& options : kOptions) {
    SCOPED_TRACE(c10::str(options.strategy));
    expect_trains_as_unsharded(
        {.counts = counts_for(3), .options = options, .join = {.divide_by_initial_world_size = false}});
  }
}

TEST(Join, TrainsAsTheUnshardedModelOnMeshesAndWithSecondShards) {
  for (const auto& options : kOptions) {
    SCOPED_TRACE(c10::str(options.strategy));
    expect_trains_as_unsharded({.counts = counts_for(4), .options = options, .mesh = {2, 2}});
  }
  expect_trains_as_unsharded(
      {.counts = counts_for(4), .options = {.reshard_after_forward = Reshard::within(2)}, .backend = "gloo"});
}

// Steps of which no two are alike: what is read, how often, by how many backwards, gathered ahead or not at all.
void various_step(const Group& group, SmallNetImpl& net, const std::vector<Group>& blocks, int step, int rank) {
  const auto x = samples({step, rank * kSamples, kSamples}, {5});
  const auto forward = [&] {
    const ForwardScope scope(group);
    auto h = torch::tanh(net.first->forward(x));
    for (size_t i = 0; i < net.blocks->size(); ++i)
      if (static_cast<int>(i) != step % 4) h = net.blocks[i]->as<SmallBlock>()->forward(h);
    if (step > 3 && torch::GradMode::is_enabled())  // a forward in the middle of the backward
      h.register_hook([&](const Tensor&) {
        const torch::NoGradGuard no_grad;
        const ForwardScope inside(group);
        net.blocks[1]->as<SmallBlock>()->forward(torch::ones({2, 11}, torch::kDouble));
      });
    return net.head->forward(h).square().mean();
  };
  if (step % 3 == 0) {
    const torch::NoGradGuard no_grad;
    forward();
  }
  if (step % 3 == 1) {
    blocks[2].unshard().wait();
    const auto pending = group.no_sync();
    forward().backward();
  }
  if (step % 3 == 2) (forward() + forward()).backward();
  forward().backward();
  if (step == 4) forward();  // without a backward
}

TEST(Join, FollowsStepsThatDifferFromOneToTheNext) {
  constexpr int kSteps = 6;
  for (const auto& options : kOptions) {
    SCOPED_TRACE(c10::str(options.strategy));
    const auto gradients_with = [&](const std::function<bool(int step, int rank)>& has_data) {
      std::vector<Tensor> gradients;
      run_thread_ranks(2, [&](int rank) {
        const auto net = small_net();
        std::vector<Group> blocks;
        for (auto& block : *net->blocks) blocks.push_back(fully_shard(*block, options));
        const auto group = fully_shard(static_cast<torch::nn::Module&>(*net), options);
        group.set_reduce_scatter_unused_params(true);
        auto optimizer = sgd(net->parameters());
        for (int step = 0; step < kSteps; ++step) {
          // Both ranks' samples are the same, so the sum of one alone is half of the sum.
          const auto run = [&] { various_step(group, *net, blocks, step, 0); };
          EXPECT_TRUE(join(group, has_data(step, rank), run, {.divide_by_initial_world_size = false}));
          optimizer.step();
          for (const auto& parameter : net->parameters())
            if (auto gradient = full_grad(parameter); rank == 0) gradients.push_back(gradient);
          optimizer.zero_grad();
        }
        EXPECT_FALSE(join(group, false, [] { FAIL() << "called without data"; }));
      });
      return gradients;
    };
    const auto expected = gradients_with([](int, int) { return true; });
    const auto found = gradients_with([](int step, int rank) { return step % 2 == rank; });
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) expect_close(expected[i], found[i], 1e-10);
  }
}

TEST(Join, StepsInTheMiddleOfABackwardOnRanksWithoutDataToo) {
  for (const auto& options : kOptions) {
    SCOPED_TRACE(c10::str(options.strategy));
    run_thread_ranks(2, [&](int rank) {
      const auto net = small_net(), alone = small_net();
      const auto group = shard_blocks(*net, options);
      auto rest = net->parameters();
      std::erase_if(rest, [&](const Tensor& parameter) {
        const auto of_block = net->blocks->parameters();
        return std::ranges::any_of(of_block, [&](const Tensor& other) { return other.is_same(parameter); });
      });
      auto in_backward = sgd(net->blocks->parameters()), optimizer = sgd(rest), unsharded = sgd(alone->parameters());
      int calls = 0;
      for (auto& block : *net->blocks)
        group_of(*block).set_post_accumulate_grad_hook([&](const std::vector<Tensor>&) {
          ++calls;
          in_backward.step();
          in_backward.zero_grad();
        });
      for (int step = 0; step < 3; ++step) {
        const auto train = [&] {
          ForwardScope scope(group);
          const auto loss = small_net_loss(*net, {step, 0, kSamples});
          scope.close();
          loss.backward();
        };
        join(group, rank == step % 2, train, {.divide_by_initial_world_size = false});
        optimizer.step();
        optimizer.zero_grad();
        small_net_loss(*alone, {step, 0, kSamples}).backward();
        unsharded.step();
        unsharded.zero_grad();
      }
      EXPECT_EQ(calls, 3 * 3);
      const auto parameters = net->parameters(), expected = alone->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) expect_close(expected[i], full_tensor(parameters[i]), 1e-10);
    });
  }
}

struct Counter : torch::nn::Module {
  Tensor weight = register_parameter("weight", torch::ones({4})), count = register_buffer("count", torch::zeros({2}));
};

TEST(Join, TakesBuffersFromTheFirstRankThatHasData) {
  run_thread_ranks(3, [](int rank) {
    Counter net;
    net.count.fill_(rank + 1);
    const auto group = fully_shard(static_cast<torch::nn::Module&>(net), {.strategy = Strategy::kReplicate});
    const auto step = [&] {
      const ForwardScope scope(group);
      (net.weight.sum() * net.count).sum().backward();
    };
    join(group, rank > 0, step);
    EXPECT_TRUE(net.count.equal(torch::full({2}, 2.0)));
    net.count.fill_(rank + 1);
    join(group, true, step);
    EXPECT_TRUE(net.count.equal(torch::ones({2})));
  });
}

TEST(Join, OfAStepThatThrowsIsAMismatchElsewhereAndTrainingGoesOn) {
  run_thread_ranks(3, [](int rank) {
    const auto net = small_net();
    const auto group = shard_blocks(*net);
    const auto forward = [&](bool fails) {
      const ForwardScope scope(group);
      const auto loss = small_net_loss(*net, {0, 0, kSamples});
      if (fails) throw std::runtime_error("a broken file");
      return loss;
    };
    try {
      join(group, rank != 1, [&] { forward(rank == 0).backward(); });
      ADD_FAILURE() << "rank " << rank << " went on";
    } catch (const std::exception& error) {
      if (rank == 0)
        EXPECT_STREQ(error.what(), "a broken file");
      else
        EXPECT_NE(dynamic_cast<const Mismatch*>(&error), nullptr) << error.what();
    }
    group.reset_iter_state();
    EXPECT_TRUE(join(group, rank != 1, [&] { forward(false).backward(); }));
    EXPECT_FALSE(join(group, false, [] {}));
  });
}

TEST(Join, IsRefusedInAScopeAndWithoutAStepAndWhereOptionsDiffer) {
  run_thread_ranks(2, [](int rank) {
    const auto net = small_net();
    const auto group = shard_blocks(*net);
    EXPECT_THROW(join(group, true, nullptr), UsageError);
    {
      const ForwardScope scope(group);
      EXPECT_THROW(join(group, true, [] {}), UsageError);
    }
    EXPECT_FALSE(join(group, false, [] {}));
    EXPECT_THROW(join(group, true, [] {}, {.divide_by_initial_world_size = rank == 0}), Mismatch);
  });
}

}  // namespace
}  // namespace fsdp::test
