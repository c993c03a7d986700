#pragma once
/// \file
/// Steps of several micro-batches, and what is refused until the last one.

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "support/small_net.h"

namespace fsdp::test::micro_batches {

template <class Act>
std::string message_of(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

/// The sizes of "replicate" and "shard"; none: no mesh.
using Shape = std::vector<int>;

/// Collective.
inline FullyShardOptions options_for(Strategy strategy, const Shape& shape) {
  FullyShardOptions options{.strategy = strategy};
  options.bucket_cap_bytes = 300;  // several of each group, where every rank has all rows
  if (!shape.empty()) options.mesh = init_device_mesh(shape, {"replicate", "shard"});
  return options;
}

/// A strategy over a mesh.
struct ShardedRun {
  Strategy strategy;
  Shape shape;
  int ranks() const { return shape.empty() ? 3 : shape[0] * shape[1]; }
};

/// Three micro-batches a step; `before` sees each one's number before its forward.
template <class Before>
void expect_micro_batches_equal_the_unsharded_run(const ShardedRun& run, const Before& before) {
  SCOPED_TRACE(c10::str(run.strategy, " over ", run.shape.empty() ? "3 ranks" : c10::Join(" x ", run.shape)));
  Program<SmallNetImpl> program;
  program.build = [] { return std::make_shared<SmallNetImpl>(11, 2); };
  program.shard = [&](SmallNetImpl& net, const FullyShardOptions&) {
    shard_blocks(net, options_for(run.strategy, run.shape));
  };
  program.run = [&](SmallNetImpl& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      for (int micro = 0; micro < 3; ++micro) {
        if (role.is_sharded()) before(group_of(net), micro);
        losses.push_back(role.whole(net, [&] { return small_net_loss(net, role.batch(3 * step + micro)) / 3; }));
        losses.back().backward();
      }
      optimizer.step();
    }
    return losses;
  };
  expect_equals_unsharded(program, {run.ranks()});
}

inline const std::vector<ShardedRun> kRuns{{Strategy::kFullShard, {}},          {Strategy::kFullShard, {2, 2}},
                                           {Strategy::kShardOptimizer, {2, 2}}, {Strategy::kShardGradOp, {1, 4}},
                                           {Strategy::kFullShard, {4, 1}},      {Strategy::kReplicate, {}}};

struct OneWeight : torch::nn::Module {
  torch::Tensor weight = register_parameter("weight", torch::zeros({7, 3}));
};

/// Over many orders of magnitude, so that the order of addition shows in the last bits.
inline torch::Tensor gradient_of(int rank, int micro) {
  return (samples({micro, rank, 1}, {7, 3}) * torch::pow(10.0, 4 * samples({micro + 9, rank, 1}, {7, 3})))
      .squeeze(0)
      .to(torch::kFloat);
}

inline void backward_of(const Group& group, const OneWeight& net, const torch::Tensor& gradient) {
  torch::Tensor loss;
  {
    const ForwardScope scope(group);
    loss = (net.weight * gradient).sum();
  }
  loss.backward();
}

/// What is refused while gradients wait, by which sentence.
inline void expect_nothing_reads_gradients(const Group& group, OneWeight& net, const char* way_out) {
  EXPECT_FALSE(net.weight.grad().defined());
  torch::optim::SGD plain({net.weight}, 0.1);
  optim::SGD fused({net.weight}, torch::optim::SGDOptions(0.1));
  net.weight.mutable_grad() = torch::ones({local_rows(net.weight).count, 3});
  EXPECT_THAT(message_of([&] { plain.step(); }), testing::HasSubstr(way_out));
  EXPECT_THAT(message_of([&] { fused.step(); }), testing::HasSubstr(way_out));
  EXPECT_THAT(message_of([&] { clip_grad_norm_(group, 1); }), testing::HasSubstr(way_out));
  EXPECT_THAT(message_of([&] { full_grad(net.weight); }),
              testing::AllOf(testing::HasSubstr(way_out), testing::HasSubstr("full_grad"),
                             testing::HasSubstr("reset_iter_state()")));
  net.weight.mutable_grad().reset();
}

}  // namespace fsdp::test::micro_batches
