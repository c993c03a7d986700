#pragma once
/// \file
/// Functions that tests of steps with several micro-batches share.

#include "strategies/steps.h"

namespace fsdp::test::micro_batches {

using namespace strategies;  // NOLINT(google-build-using-namespace)

/// Returns options with buckets so small that a param group has several of them, if every rank has all rows.
inline FullyShardOptions in_small_buckets(Strategy strategy, const Shape& shape) {
  return options_for(strategy, shape, {.bucket_cap_bytes = 300});
}

/// A strategy over a mesh.
struct ShardedRun {
  Strategy strategy;
  Shape shape;
};

/// Returns the program of a small net in which each block is a param group, sharded as `run` says. The caller sets
/// Program::run.
inline Program<SmallNetImpl> small_net_program(const ShardedRun& run) {
  Program<SmallNetImpl> program;
  program.build = [] { return std::make_shared<SmallNetImpl>(11, 2); };
  program.shard = [run](SmallNetImpl& net, const FullyShardOptions&) {
    shard_blocks(net, in_small_buckets(run.strategy, run.shape));
  };
  return program;
}

/// Trains with three micro-batches per step. Before each forward, `before` is called with the micro-batch's number.
template <class Before>
void expect_micro_batches_equal_the_unsharded_run(const ShardedRun& run, const Before& before) {
  SCOPED_TRACE(text_of(run.strategy, run.shape));
  auto program = small_net_program(run);
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
  expect_equals_unsharded(program, {ranks_of(run.shape)});
}

inline const ShardedRun kRuns[]{{Strategy::kFullShard, {}},          {Strategy::kFullShard, {2, 2}},
                                {Strategy::kShardOptimizer, {2, 2}}, {Strategy::kShardGradOp, {1, 3}},
                                {Strategy::kFullShard, {3, 1}},      {Strategy::kReplicate, {}},
                                {Strategy::kReplicate, {2, 2}}};

}  // namespace fsdp::test::micro_batches
