// LBFGS whose dot products are over all rows of all ranks.

#include <fsdp/optim.h>
#include <gmock/gmock.h>

#include <sstream>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

using testing::HasSubstr;
using torch::optim::LBFGSOptions;

std::unique_ptr<torch::optim::Optimizer> lbfgs(MisuseNetImpl& net, const Role& role, const LBFGSOptions& options) {
  if (role.is_sharded()) return std::make_unique<optim::LBFGS>(net.parameters(), options);
  return std::make_unique<torch::optim::LBFGS>(net.parameters(), options);
}

// A step on samples of its own; the loss that it returns.
torch::Tensor step_of(torch::optim::Optimizer& optimizer, MisuseNetImpl& net, const Role& role, int step) {
  return optimizer.step([&] {
    optimizer.zero_grad();
    auto loss = role.whole(net, [&] { return small_loss(net, role.batch(step)); });
    loss.backward();
    return loss;
  });
}

Program<MisuseNetImpl> program_of(const LBFGSOptions& options) {
  Program<MisuseNetImpl> program;
  program.build = [] { return std::make_shared<MisuseNetImpl>(); };
  program.shard = shard_children_then_root;
  program.run = [options](MisuseNetImpl& net, const Role& role) {
    const auto optimizer = lbfgs(net, role, options);
    Values losses;
    for (int step = 0; step < 2; ++step) losses.push_back(step_of(*optimizer, net, role, step));
    return losses;
  };
  program.tolerance = 1e-8;  // a line search magnifies roundings
  return program;
}

TEST(OptimLbfgs, EqualsTorchsOnTheUnshardedModel) {
  expect_equals_unsharded(program_of(LBFGSOptions(0.1).max_iter(4).history_size(3)), {1, 3});
}

TEST(OptimLbfgs, WithTheStrongWolfeConditionsEqualsTorchsOnTheUnshardedModel) {
  expect_equals_unsharded(program_of(LBFGSOptions(1).max_iter(5).history_size(3).line_search_fn("strong_wolfe")), {2});
}

// Far too long a first step, so that the line search has to bracket and to narrow.
TEST(OptimLbfgs, ComesBackFromAStepThatIsTooLongAsTorchsDoes) {
  expect_equals_unsharded(program_of(LBFGSOptions(1000).max_iter(3).line_search_fn("strong_wolfe")), {2});
}

TEST(OptimLbfgs, EndsWhereTheGradientIsSmallEnough) {
  expect_equals_unsharded(program_of(LBFGSOptions(0.1).tolerance_grad(1e6)), {2});
  expect_equals_unsharded(program_of(LBFGSOptions(0.1).tolerance_change(1e6)), {2});
  expect_equals_unsharded(program_of(LBFGSOptions(0.1).max_iter(9).max_eval(2)), {2});
}

TEST(OptimLbfgs, SavedStateGoesOnWhereItWas) {
  run_thread_ranks(2, [](int rank) {
    auto net = build_alike([] { return MisuseNet(); });
    net->to(torch::kDouble);
    shard(*net);
    const Role role{2, rank};
    const auto options = LBFGSOptions(0.1).max_iter(3);
    optim::LBFGS first(net->parameters(), options), second(net->parameters(), options);
    step_of(first, *net, role, 0);
    std::stringstream file;
    torch::save(first, file);
    std::vector<torch::Tensor> before, after;
    for (const auto& parameter : net->parameters()) before.push_back(parameter.detach().clone());
    step_of(first, *net, role, 1);
    for (auto& parameter : net->parameters()) after.push_back(full_tensor(parameter));
    {
      torch::NoGradGuard no_grad;
      for (size_t i = 0; i < before.size(); ++i) net->parameters()[i].copy_(before[i]);
    }
    torch::load(second, file);
    step_of(second, *net, role, 1);
    for (size_t i = 0; i < after.size(); ++i)
      EXPECT_TRUE(torch::equal(full_tensor(net->parameters()[i]), after[i])) << i;
  });
}

TEST(OptimLbfgs, MistakesAreErrorsBeforeAnythingIsWritten) {
  run_thread_ranks(2, [](int rank) {
    auto net = build_alike([] { return MisuseNet(); });
    net->to(torch::kDouble);
    const auto group = shard(*net);
    const Role role{2, rank};
    const auto before = full_tensor(net->head->weight);
    optim::LBFGS optimizer(net->parameters()), searching(net->parameters(), LBFGSOptions(1).line_search_fn("armijo"));
    EXPECT_THAT(message_of([&] { optimizer.step(nullptr); }), HasSubstr("expected a closure"));
    EXPECT_THAT(message_of([&] { step_of(searching, *net, role, 0); }), HasSubstr("found \"armijo\""));
    optim::LBFGS mixed({net->head->weight, torch::ones({2}).requires_grad_()});
    EXPECT_THAT(message_of([&] { step_of(mixed, *net, role, 0); }), HasSubstr("found one of sizes [2] that is not"));
    {
      ForwardScope scope(group);
      EXPECT_THAT(message_of([&] { step_of(optimizer, *net, role, 0); }),
                  HasSubstr(c10::str("[fsdp rank ", rank, "/2] optim::LBFGS::step")));
    }
    EXPECT_TRUE(torch::equal(before, full_tensor(net->head->weight)));
    step_of(optimizer, *net, role, 0);
    EXPECT_FALSE(torch::equal(before, full_tensor(net->head->weight)));
  });
}

}  // namespace
}  // namespace fsdp::test
