// Tests of LBFGS, whose dot products run over all rows of all ranks.

#include <fsdp/optim.h>

#include <sstream>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

using torch::optim::LBFGSOptions;

std::unique_ptr<torch::optim::Optimizer> lbfgs(MisuseNetImpl& net, const Role& role, const LBFGSOptions& options) {
  if (role.is_sharded()) return std::make_unique<optim::LBFGS>(net.parameters(), options);
  return std::make_unique<torch::optim::LBFGS>(net.parameters(), options);
}

// Takes a step on samples of its own, and returns its loss.
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
  program.tolerance = 1e-8;  // a line search magnifies rounding errors
  return program;
}

struct LbfgsCase {
  LBFGSOptions options;
  std::vector<int> worlds;
};

TEST(OptimLbfgs, EqualsTorchsOnTheUnshardedModel) {
  for (const auto& [options, worlds] :
       std::vector<LbfgsCase>{{LBFGSOptions(0.1).max_iter(4).history_size(3), {3}},
                              {LBFGSOptions(1).max_iter(5).history_size(3).line_search_fn("strong_wolfe"), {2}},
                              // The first step is far too long, so the line search must bracket and narrow.
                              {LBFGSOptions(1000).max_iter(3).line_search_fn("strong_wolfe"), {2}},
                              // These end because the gradient or the change is small enough, or because the
                              // evaluations are used up.
                              {LBFGSOptions(0.1).tolerance_grad(1e6), {2}},
                              {LBFGSOptions(0.1).tolerance_change(1e6), {2}},
                              {LBFGSOptions(0.1).max_iter(9).max_eval(2), {2}}})
    expect_equals_unsharded(program_of(options), worlds);
}

TEST(OptimLbfgs, SavedStateGoesOnWhereItWas) {
  run_thread_ranks(2, [](int rank) {
    const auto options = LBFGSOptions(0.1).max_iter(3);
    std::stringstream file;
    std::vector<torch::Tensor> before, after;
    for (bool goes_on : {false, true}) {
      auto net = build_alike([] { return MisuseNet(); });
      net->to(torch::kDouble);
      shard(*net);
      optim::LBFGS optimizer(net->parameters(), options);
      if (goes_on) {
        torch::NoGradGuard no_grad;
        for (size_t i = 0; i < before.size(); ++i) net->parameters()[i].copy_(before[i]);
        torch::load(optimizer, file);
      } else {
        step_of(optimizer, *net, {2, rank}, 0);
        torch::save(optimizer, file);
        for (const auto& parameter : net->parameters()) before.push_back(parameter.detach().clone());
      }
      step_of(optimizer, *net, {2, rank}, 1);
      for (size_t i = 0; i < before.size(); ++i) {
        const auto whole = full_tensor(net->parameters()[i]);
        if (!goes_on) after.push_back(whole);
        EXPECT_TRUE(torch::equal(whole, after[i])) << i;
      }
    }
  });
}

TEST(OptimLbfgs, AMistakeOfOneRankIsAnErrorOnTheOthersAtOnce) {
  run_thread_ranks_with(2, {.timeout = std::chrono::seconds(10)}, [](int rank) {
    auto net = build_alike([] { return torch::nn::Linear(3, 2); });
    const auto group = fully_shard(*net);
    optim::LBFGS optimizer(net->parameters());
    const auto closure = [&] {
      optimizer.zero_grad();
      const auto loss = in_scope(group, [&] { return net->forward(torch::ones({1, 3})).sum(); });
      loss.backward();
      return loss;
    };
    {
      ForwardScope scope(group);
      if (rank == 0) scope.close();
      expect_error<Error>([&] { optimizer.step(closure); }, {rank == 1 ? "is open on" : "rank 1 failed"});
    }
    optimizer.step(closure);
  });
}

TEST(OptimLbfgs, MistakesAreErrorsBeforeAnythingIsWritten) {
  expect_training_survives([](const InTraining& t) {
    const Role role{2, rank()};
    optim::LBFGS optimizer(t.net.parameters()), searching(t.net.parameters(), LBFGSOptions(1).line_search_fn("armijo"));
    expect_error([&] { optimizer.step(nullptr); }, {"expected a closure"});
    expect_error([&] { step_of(searching, t.net, role, 0); }, {"found \"armijo\""});
    optim::LBFGS mixed({t.net.head->weight, torch::ones({2}).requires_grad_()});
    expect_error([&] { step_of(mixed, t.net, role, 0); }, {"but one of sizes [2] does not"});
    ForwardScope scope(t.group);
    expect_error([&] { step_of(optimizer, t.net, role, 0); }, {"@optim::LBFGS::step"});
  });
}

}  // namespace
}  // namespace fsdp::test
