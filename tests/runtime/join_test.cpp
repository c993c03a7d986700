// Tests of ranks that run out of data. The other ranks train on, and every rank ends with the same model.

#include "runtime/join_net.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

// Number of batches of each rank in an epoch.
using BatchCounts = std::vector<int>;

BatchCounts counts_for(int world) {
  const BatchCounts counts{1, 2, 0, 2};
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

torch::optim::AdamW adamw(const std::vector<Tensor>& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(1e-2));
}

// Trains the oracle in one process, on the batches of all ranks that have any.
std::shared_ptr<SmallNetImpl> train_unsharded_on_what_there_is(const JoinedRun& run) {
  const auto net = double_small_net();
  auto optimizer = adamw(net->parameters());
  for (int epoch = 0; epoch < run.epochs; ++epoch)
    for (int step = 0; step < longest(run.counts); ++step) {
      const auto with_data = std::ranges::count_if(run.counts, [=](int batches) { return step < batches; });
      const auto divisor = run.join.divide_by_initial_world_size ? std::ssize(run.counts) : with_data;
      optimizer.zero_grad();
      for (int rank = 0; rank < std::ssize(run.counts); ++rank)
        if (step < run.counts[static_cast<size_t>(rank)])
          (small_net_loss(*net, {10 * epoch + step, rank * kJoinSamples, kJoinSamples}) / divisor).backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), 0.05);
      optimizer.step();
    }
  return net;
}

void expect_trains_as_unsharded(const JoinedRun& run) {
  SCOPED_TRACE(c10::str(run.options.strategy, " on ", run.counts.size(), " ranks"));
  const auto expected = train_unsharded_on_what_there_is(run);
  const auto train = [&](int rank) {
    auto options = run.options;
    if (!run.mesh.empty()) options.mesh = init_device_mesh(run.mesh, {"replicate", "shard"});
    JoinRank on(options);
    auto optimizer = adamw(on.net.parameters());
    for (int epoch = 0; epoch < run.epochs; ++epoch) {
      int step = 0, calls = 0;
      const int batches = run.counts[static_cast<size_t>(rank)];
      const auto backward = [&] {
        ++calls;
        on.forward(10 * epoch + step, rank).backward();
      };
      while (on.join(step < batches, backward, run.join)) {
        clip_grad_norm_(on.group, 0.05);
        optimizer.step();
        optimizer.zero_grad();
        ++step;
      }
      EXPECT_EQ(step, longest(run.counts));
      EXPECT_EQ(calls, step) << "every rank runs every step";
    }
    on.expect_parameters_of(*expected);
  };
  run_thread_ranks(static_cast<int>(run.counts.size()), train, {.backend = run.backend});
}

TEST(Join, TrainsAsTheUnshardedModelOnTheSamplesThatThereAre) {
  for (const int world : worlds_up_to(4)) expect_trains_as_unsharded({.counts = counts_for(world)});
  for (const auto& options : kJoinOptions)
    expect_trains_as_unsharded({.counts = counts_for(3), .options = options, .epochs = 1});
  // The divisor may also count only the ranks that have data.
  for (const auto strategy : {Strategy::kFullShard, Strategy::kReplicate})
    expect_trains_as_unsharded(
        {.counts = counts_for(3), .options = {.strategy = strategy}, .join = {.divide_by_initial_world_size = false}});
}

TEST(Join, TrainsAsTheUnshardedModelOnMeshesAndWithSecondShards) {
  for (const auto& options : kJoinOptions)
    expect_trains_as_unsharded({.counts = counts_for(4), .options = options, .mesh = {2, 2}, .epochs = 1});
  expect_trains_as_unsharded(
      {.counts = counts_for(4), .options = {.reshard_after_forward = Reshard::within(2)}, .backend = "gloo"});
}

}  // namespace
}  // namespace fsdp::test
