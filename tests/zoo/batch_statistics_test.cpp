// Modules with statistics of the batch. The oracle runs the ranks' shares one after another on one model and averages
// the gradients; running statistics belong to each rank alone.

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// The buffers of each rank, for a model that plays all of them.
class OwnBuffers {
 public:
  OwnBuffers(const nn::Module& model, int ranks) : live_(model.buffers()) {
    for (int r = 0; r < ranks; ++r) saved_.push_back(copies());
  }
  template <class F>
  void as_rank(int rank, F&& body) {
    torch::NoGradGuard no_grad;
    auto& own = saved_[static_cast<size_t>(rank)];
    for (size_t i = 0; i < live_.size(); ++i) live_[i].copy_(own[i]);
    {
      torch::AutoGradMode with_grad(true);
      body();
    }
    own = copies();
  }
  /// Buffer `i` of every rank.
  torch::Tensor stacked(size_t i) const {
    std::vector<torch::Tensor> ranks;
    for (const auto& own : saved_) ranks.push_back(own[i].to(torch::kDouble));
    return torch::stack(ranks);
  }

 private:
  std::vector<torch::Tensor> copies() const {
    std::vector<torch::Tensor> clones;
    for (const auto& buffer : live_) clones.push_back(buffer.clone());
    return clones;
  }
  std::vector<torch::Tensor> live_;
  std::vector<std::vector<torch::Tensor>> saved_;
};

using Loss = std::function<torch::Tensor(nn::Module&, const Batch&)>;

Values train_shares(nn::Module& model, const Role& role, const Loss& loss) {
  auto optimizer = sgd(model.parameters());
  OwnBuffers buffers(model, role.is_sharded() ? 0 : role.world);
  Values values;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    if (role.is_sharded()) {
      auto value = role.whole(model, [&] { return loss(model, role.batch(step)); });
      value.backward();
      values.push_back(value.detach());
    } else {
      auto mean = torch::zeros({}, torch::kDouble);
      for (int r = 0; r < role.world; ++r)
        buffers.as_rank(r, [&] {
          auto value = loss(model, Role{role.world, r, role.samples_per_rank}.batch(step)) / role.world;
          value.backward();
          mean += value.detach();
        });
      values.push_back(mean);
    }
    optimizer.step();
  }
  for (size_t i = 0; i < model.buffers().size(); ++i)
    values.push_back(role.is_sharded() ? role.in_own_place(model.buffers()[i]) : buffers.stacked(i));
  return values;
}

Program<nn::Module> program_of(std::function<std::shared_ptr<nn::Module>()> build, const Loss& loss) {
  Program<nn::Module> program;
  program.build = std::move(build);
  program.shard = shard_children_then_root;
  program.run = [loss](nn::Module& model, const Role& role) { return train_shares(model, role, loss); };
  program.samples_per_rank = 3;
  return program;
}

TEST(ZooBatchStatistics, BatchNorm1dKeepsTheRanksOwnRunningStatistics) {
  auto program = program_of(
      [] { return nn::Sequential(nn::Linear(5, 6), nn::BatchNorm1d(6), nn::Tanh(), nn::Linear(6, 2)).ptr(); },
      [](nn::Module& m, const Batch& batch) {
        return distance_from_targets(m.as<nn::Sequential>()->forward(samples(batch, {5})), batch);
      });
  expect_equals_unsharded(program);
  expect_equals_unsharded(program, worlds_up_to(8));
}

TEST(ZooBatchStatistics, BatchNorm2dBetweenConvolutionsKeepsTheRanksOwnRunningStatistics) {
  auto loss = [](nn::Module& m, const Batch& batch) {
    return distance_from_targets(m.as<nn::Sequential>()->forward(samples(batch, {3, 6, 6})), batch);
  };
  auto program = program_of(
      [] { return nn::Sequential(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::Conv2d(4, 2, 3)).ptr(); },
      loss);
  expect_equals_unsharded(program);
  program.shard = shard_as_one_group;
  expect_equals_unsharded(program, worlds_up_to(3));
}

TEST(ZooBatchStatistics, InstanceNormWithRunningStatisticsKeepsTheRanksOwn) {
  auto options = nn::InstanceNorm1dOptions(3).affine(true).track_running_stats(true);
  expect_equals_unsharded(program_of([=] { return std::make_shared<nn::InstanceNorm1dImpl>(options); },
                                     [](nn::Module& m, const Batch& batch) {
                                       auto* norm = m.as<nn::InstanceNorm1d>();
                                       return distance_from_targets(norm->forward(samples(batch, {3, 5})), batch);
                                     }),
                          worlds_up_to(3));
}

// Evaluation in a scope reads the running statistics and leaves them alone.
TEST(ZooBatchStatistics, EvaluationInAScopeEqualsTheUnshardedModelsAndKeepsTheBuffers) {
  auto build = [] { return nn::Sequential(nn::Linear(5, 6), nn::BatchNorm1d(6), nn::Linear(6, 2)).ptr(); };
  Program<nn::SequentialImpl> program;
  program.build = build;
  program.shard = shard_children_then_root;
  program.run = [](nn::SequentialImpl& model, const Role& role) {
    model.eval();
    torch::NoGradGuard no_grad;
    auto before = model.buffers()[0].clone();
    auto loss = role.whole(
        model, [&] { return distance_from_targets(model.forward(samples(role.batch(0), {5})), role.batch(0)); });
    EXPECT_TRUE(torch::equal(before, model.buffers()[0]));
    EXPECT_FALSE(loss.requires_grad());
    return Values{loss};
  };
  expect_equals_unsharded(program);
}

}  // namespace
}  // namespace fsdp::test
