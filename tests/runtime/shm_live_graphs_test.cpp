// Where ranks share memory, a rank reads as long as one of its graphs may run backward: its peers' writes wait for it.

#include "runtime/shm_writers.h"

namespace fsdp::test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::grad;
using torch::autograd::variable_list;

// The gradient of what `before` returns is that of the unsharded model, though peers are about to write.
void expect_unchanged(const std::function<torch::Tensor(Reader&)>& before,
                      const std::function<torch::Tensor(SmallNetImpl&, const torch::Tensor&)>& unsharded,
                      bool is_frozen = false) {
  torch::manual_seed(5);
  SmallNetImpl net(12, 2);
  run_against_writers(
      before,
      [&](Reader& reader, torch::Tensor y, Writers& writers) {
        writers.expect_waiting();
        const auto found = grad({y}, {reader.x})[0];
        const auto expected = grad({unsharded(net, reader.x)}, {reader.x})[0];
        EXPECT_LT(relative_difference(expected, found), 1e-5);
      },
      is_frozen);
}

torch::Tensor plain_output(SmallNetImpl& net, const torch::Tensor& x) { return net.forward(x).sum(); }

TEST(LiveGraphs, AGraphReadsOnAfterAScopeThatRecordedNothing) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        torch::NoGradGuard no_grad;
        reader.forward();
        return y;
      },
      plain_output);
}

TEST(LiveGraphs, AGraphReadsOnAfterTheBackwardOfAnotherOneOfItsScope) {
  expect_unchanged(
      [](Reader& reader) {
        const auto [y, other] = reader.two_outputs();
        other.backward();
        return y;
      },
      plain_output);
}

TEST(LiveGraphs, AGraphReadsOnAfterASecondForwardAndItsBackward) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        reader.forward().backward();
        return y;
      },
      plain_output);
}

TEST(LiveGraphs, AGraphReadsOnAfterASecondForwardWasDropped) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        reader.forward();
        return y;
      },
      plain_output);
}

TEST(LiveGraphs, AGraphReadsOnAfterSummonFullParams) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        const auto whole = summon_full_params(reader.group);
        return y;
      },
      plain_output);
}

TEST(LiveGraphs, AGraphThatWasKeptReadsOn) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        y.backward({}, /*retain_graph=*/true);
        return y;
      },
      plain_output);
}

TEST(LiveGraphs, AGraphOfCustomFunctionsReadsOn) { expect_unchanged(own_forward, own_output); }

// The same for a weight that was transposed before.
struct OwnProduct : torch::autograd::Function<OwnProduct> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, const torch::Tensor& weight) {
    context->save_for_backward({x, weight});
    return torch::matmul(x, weight);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {torch::matmul(gradients[0], saved[1].t()), torch::matmul(saved[0].t(), gradients[0])};
  }
};

// The only way from both to the parameter is one node, which the first backward runs.
TEST(LiveGraphs, AGraphOfACustomFunctionThatSharesAViewWithAnotherOneReadsOn) {
  expect_unchanged(
      [](Reader& reader) {
        torch::Tensor y, other;
        {
          ForwardScope scope(reader.group);
          const auto weight = reader.net.first->weight.t();
          y = OwnProduct::apply(reader.x, weight).sum();
          other = OwnProduct::apply(reader.x, weight).sum();
        }
        other.backward();
        return y;
      },
      [](SmallNetImpl& net, const torch::Tensor& x) { return OwnProduct::apply(x, net.first->weight.t()).sum(); });
}

TEST(LiveGraphs, AGraphOfCustomFunctionsOnFrozenParametersReadsOn) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = own_forward(reader);
        torch::NoGradGuard no_grad;
        reader.forward();
        return y;
      },
      own_output, /*is_frozen=*/true);
}

TEST(LiveGraphs, AGraphOfFrozenParametersReadsOn) {
  expect_unchanged(
      [](Reader& reader) {
        auto y = reader.forward();
        torch::NoGradGuard no_grad;
        reader.forward();
        return y;
      },
      plain_output, /*is_frozen=*/true);
}

TEST(LiveGraphs, AGraphBesideOneThatRanAndIsHeldReadsOnWhileTheRankWaits) {
  Writers writers(1);
  run_thread_ranks(3,
                   [&](int rank) {
                     auto net = build_alike([] { return std::make_shared<SmallNetImpl>(12, 2); });
                     const auto group = fully_shard(*net);
                     const Reader reader{*net, group};
                     auto [ran, left] = reader.two_outputs();
                     ran.backward();
                     auto& ranks = default_process_group()->communicator();
                     auto message = torch::zeros({1});
                     if (rank != 0) ran.reset(), left.reset();
                     if (rank == 0) ranks.recv(message, 2, {"message", {}})->wait();
                     if (rank == 2) {
                       writers.expect_waiting(std::chrono::milliseconds(400));
                       ranks.send(message, 0, {"message", {}})->wait();
                     }
                     left.reset();
                     is_writer = rank == 1;
                     write_rows(*net);
                     is_writer = false;
                   },
                   {.backend = "shm"});
}

}  // namespace
}  // namespace fsdp::test
