// Tests of modules with batch statistics. The oracle runs the ranks' batches one after another on one model and
// averages the gradients. Each rank has its own running statistics.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

void swap_values(const Values& left, const Values& right) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < left.size(); ++i) {
    const auto kept = left[i].clone();
    left[i].copy_(right[i]);
    right[i].copy_(kept);
  }
}

template <class Holder>
AnyProgram statistics_of(Holder (*build)(), std::vector<int64_t> sizes, Shard shard = shard_children_then_root) {
  using Impl = typename Holder::ContainedType;
  auto program = program_of<Impl>(
      [=](Impl& model, const Role& role) {
        // The buffers of each rank whose part the unsharded model plays.
        std::vector<Values> buffers;
        for (int r = 0; r < role.world && !role.is_sharded(); ++r) buffers.push_back(copies_of(model.buffers()));
        auto values = descend(model.parameters(), [&](int step) {
          auto mean = torch::zeros({}, torch::kDouble);
          for_each_rank_of(role, [&](const Role& rank, double part) {
            const auto batch = rank.batch(step);
            const auto loss = [&] { return distance_from_targets(model.forward(samples(batch, sizes)), batch); };
            const auto swap = [&] {
              if (!role.is_sharded()) swap_values(model.buffers(), buffers[static_cast<size_t>(rank.rank)]);
            };
            swap();
            mean += backward_of(role.whole(model, loss) * part);
            swap();
          });
          return mean;
        });
        for (size_t i = 0; i < model.buffers().size(); ++i) {
          Values of_ranks;
          for (const auto& own : buffers) of_ranks.push_back(own[i].to(torch::kDouble));
          values.push_back(role.is_sharded() ? role.in_own_place(model.buffers()[i]) : torch::stack(of_ranks));
        }
        return values;
      },
      std::move(shard));
  program.build = [build] { return build().ptr(); };
  program.samples_per_rank = 3;
  program.largest_world = 8;
  return program;
}

nn::Sequential normalised_layers() {
  return nn::Sequential(nn::Linear(5, 6), nn::BatchNorm1d(6), nn::Tanh(), nn::Linear(6, 2));
}
nn::Sequential normalised_convolutions() {
  return nn::Sequential(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::Conv2d(4, 2, 3));
}
nn::InstanceNorm1d instance_norm() {
  return nn::InstanceNorm1d(nn::InstanceNorm1dOptions(3).affine(true).track_running_stats(true));
}

class ZooBatchStatistics : public ZooTable {};

TEST_P(ZooBatchStatistics, AreTheRanksOwn) { expect_same(); }

INSTANTIATE_TEST_SUITE_P(Zoo, ZooBatchStatistics,
                         testing::Values(ZooCase{"BatchNorm1d", statistics_of(normalised_layers, {5})},
                                         ZooCase{"BatchNorm2dInOneGroup",
                                                 statistics_of(normalised_convolutions, {3, 6, 6}, shard_as_one_group)},
                                         ZooCase{"InstanceNorm", statistics_of(instance_norm, {3, 5})}),
                         name_of_case);

// Evaluation in a scope reads the running statistics but does not change them.
TEST(ZooEvaluation, InAScopeEqualsTheUnshardedModelsAndKeepsTheBuffers) {
  auto program = statistics_of(normalised_layers, {5});
  program.run = [](nn::Module& model, const Role& role) {
    model.eval();
    torch::NoGradGuard no_grad;
    auto before = model.buffers()[0].clone();
    auto loss = role.whole(model, [&] {
      return distance_from_targets(model.as<nn::Sequential>()->forward(samples(role.batch(0), {5})), role.batch(0));
    });
    EXPECT_TRUE(torch::equal(before, model.buffers()[0]));
    EXPECT_FALSE(loss.requires_grad());
    return Values{loss};
  };
  expect_equals_unsharded(program);
}

}  // namespace
}  // namespace fsdp::test
