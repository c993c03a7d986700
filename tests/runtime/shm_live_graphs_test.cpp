// Where ranks share memory, a rank reads as long as one of its graphs may run backward: its peers' writes wait for it.

#include "runtime/shm_writers.h"

namespace fsdp::test {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::grad;
using torch::autograd::variable_list;

// The same as OwnLinear for a weight that was transposed before.
struct OwnProduct : torch::autograd::Function<OwnProduct> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    context->save_for_backward({x, weight});
    return torch::matmul(x, weight);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {torch::matmul(gradients[0], saved[1].t()), torch::matmul(saved[0].t(), gradients[0])};
  }
};

Tensor plain_output(SmallNetImpl& net, const Tensor& x) { return net.forward(x).sum(); }
Tensor output_of_a_view(SmallNetImpl& net, const Tensor& x) {
  return OwnProduct::apply(x, net.first->weight.t()).sum();
}

Tensor then_unrecorded(Reader& reader, const Tensor& y) {
  torch::NoGradGuard no_grad;
  reader.forward();
  return y;
}

// A graph, what happens before its backward, and the same output of the unsharded model.
struct LiveGraph {
  const char* name;
  std::function<Tensor(Reader&)> before;
  Tensor (*unsharded)(SmallNetImpl&, const Tensor&) = plain_output;
  bool is_frozen = false;
};

const LiveGraph kLiveGraphs[] = {
    {"AfterAScopeThatRecordedNothing", [](Reader& reader) { return then_unrecorded(reader, reader.forward()); }},
    {"AfterTheBackwardOfAnotherOneOfItsScope",
     [](Reader& reader) {
       const auto [y, other] = reader.two_outputs();
       other.backward();
       return y;
     }},
    {"AfterASecondForwardAndItsBackward",
     [](Reader& reader) {
       auto y = reader.forward();
       reader.forward().backward();
       return y;
     }},
    {"AfterASecondForwardWasDropped",
     [](Reader& reader) {
       auto y = reader.forward();
       reader.forward();
       return y;
     }},
    {"AfterSummonFullParams",
     [](Reader& reader) {
       auto y = reader.forward();
       const auto whole = summon_full_params(reader.group);
       return y;
     }},
    {"AfterABackwardThatKeptIt",
     [](Reader& reader) {
       auto y = reader.forward();
       y.backward({}, /*retain_graph=*/true);
       return y;
     }},
    {"OfCustomFunctions", own_forward, own_output},
    // The only way from both to the parameter is one node, which the first backward runs.
    {"OfACustomFunctionThatSharesAViewWithAnotherOne",
     [](Reader& reader) {
       Tensor y, other;
       {
         ForwardScope scope(reader.group);
         const auto weight = reader.net.first->weight.t();
         y = OwnProduct::apply(reader.x, weight).sum();
         other = OwnProduct::apply(reader.x, weight).sum();
       }
       other.backward();
       return y;
     },
     output_of_a_view},
    {"OfCustomFunctionsOnFrozenParameters", [](Reader& reader) { return then_unrecorded(reader, own_forward(reader)); },
     own_output, /*is_frozen=*/true},
    {"OfFrozenParameters", [](Reader& reader) { return then_unrecorded(reader, reader.forward()); }, plain_output,
     /*is_frozen=*/true},
};

class LiveGraphs : public testing::TestWithParam<LiveGraph> {};

// The gradient of what `before` returns is that of the unsharded model, though peers are about to write.
TEST_P(LiveGraphs, ReadOn) {
  const auto net = shm_net();
  run_against_writers(
      GetParam().before,
      [&](Reader& reader, const Tensor& y, Writers& writers) {
        writers.expect_waiting();
        const auto found = grad({y}, {reader.x})[0];
        const auto expected = grad({GetParam().unsharded(*net, reader.x)}, {reader.x})[0];
        EXPECT_LT(relative_difference(expected, found), 1e-5);
      },
      GetParam().is_frozen);
}

INSTANTIATE_TEST_SUITE_P(Shm, LiveGraphs, testing::ValuesIn(kLiveGraphs),
                         [](const auto& its) { return std::string(its.param.name); });

TEST(LiveGraphs, BesideOneThatRanAndIsHeldReadOnWhileTheRankWaits) {
  Writers writers(1);
  run_readers(3, [&](int rank, Reader& reader) {
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
    write_rows(reader.net);
    is_writer = false;
  });
}

}  // namespace
}  // namespace fsdp::test
